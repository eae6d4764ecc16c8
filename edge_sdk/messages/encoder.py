"""Encoders: results, events and what a camera sees, as the bytes of their messages.

One `ResultEncoder` belongs to one camera's stream and is used in its thread; `EventEncoder` says of the device, the
model and the clock what the results beside it say; `SeenEncoder` sums results up and encodes only what changed. They
decide what is rounded and what is left out; `schema` says what the messages are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import WallClock
from edge_sdk.core.frame import Classification, Detections, Result, Segmentation
from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import (
    NESTED,
    ClassificationMessage,
    ClassItem,
    DetectionItem,
    DetectionMessage,
    EventMessage,
    FrameSize,
    Identity,
    ModelRef,
    NestedResult,
    ResultMessage,
    SeenMessage,
    SegmentationMessage,
    SegmentItem,
)
from edge_sdk.tasks.spec import has_background

_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # boxes to 0.1 px, confidences and shares to 0.0001
_POINT_STEPS = np.array([10.0, 10.0, 100.0])  # keypoints to 0.1 px, their confidences to 0.01
_MOST_OUTLINES = 8  # of one object, which other objects may cover in part


class ResultEncoder:
    """Encodes the results of one stream as JSON.

    Args:
        identity: who publishes.
        labels: lines of labels.txt, in output order.
        model: the model whose results these are; it names no variant.
        background_class: line 0 of the labels is the background, and class_id is the output's index - 1.
        clock_ns: the clock of `Frame.captured_ns`.
        wall_clock: tells whether times can be trusted; None claims nothing of it.
    """

    def __init__(
        self,
        identity: Identity,
        labels: Sequence[str],
        model: ModelRef,
        *,
        background_class: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock: WallClock | None = None,
    ) -> None:
        self.identity, self.model, self.wall_clock = identity, model, wall_clock
        self._answering = model
        first = -1 if background_class else 0
        self._labels = {-1: "background", **{number: label for number, label in enumerate(labels, first) if label}}
        self._clock_ns = clock_ns
        self._encode = msgspec.json.Encoder().encode

    @classmethod
    def for_bundle(
        cls, bundle: Bundle, identity: Identity, wall_clock: WallClock | None = None, *, then: Bundle | None = None
    ) -> ResultEncoder:
        """Make an encoder for the results of a bundle and a second one; labels that changed raise `BundleError`."""
        manifest = bundle.manifest
        model = _reference(bundle)
        if then is not None:
            model = msgspec.structs.replace(model, then=_reference(then))
        background = has_background(manifest)
        encoder = cls(identity, bundle.labels(), model, background_class=background, wall_clock=wall_clock)
        encoder.answers_by(manifest.variants[0].name)
        return encoder

    def answers_by(self, variant: str) -> None:
        """Name this variant in results from now on; to be called between two results, in the encoding thread."""
        self._answering = msgspec.structs.replace(self.model, variant=variant)

    def encode(self, result: Result, seq: int | None = None) -> bytes:
        """Encode one result as one line of JSON, with its frame's number or another (`seq`).

        NaN and infinity are left out, because JSON cannot express them.
        """
        frame = result.frame
        is_set = self.wall_clock is None or self.wall_clock.is_synchronised
        header: dict[str, Any] = {
            "device": self.identity.device,
            "camera": frame.camera,
            "boot_id": self.identity.boot_id,
            "run_id": self.identity.run_id,
            "seq": frame.seq if seq is None else seq,
            "captured_at": datetime.fromtimestamp(round(frame.captured_at, 3), timezone.utc),
            "age_ms": (self._clock_ns() - frame.captured_ns) // 1000 / 1000,
            "infer_ms": result.inference_ns // 1000 / 1000,
            "clock": UNSET if is_set else "unsynchronised",
            "model": self._answering,
            "frame": FrameSize(*frame.size_wh),
            "not_finite": UNSET if result.is_finite else True,
        }
        kind, content = _content(result, self.label)
        return self._encode(kind(**header, **content))

    def label(self, class_id: int) -> str:
        """Return the label of one class; `class_N` where it has none."""
        return self._labels.get(class_id) or f"class_{class_id}"


def _reference(bundle: Bundle) -> ModelRef:
    return ModelRef(bundle.manifest.name, bundle.manifest.version, bundle.digest)


def _content(result: Result, label: Callable[[int], str]) -> tuple[type[ResultMessage], dict[str, Any]]:
    """Return the type of a result's message, and what it has of its task."""

    def items(kind: Callable[..., Any], class_ids: NDArray[np.int64], *columns: list[Any]) -> list[Any]:
        ids: list[int] = class_ids.tolist()
        return list(map(kind, map(label, ids), ids, *columns))

    if isinstance(result, Segmentation):
        shares = np.rint(result.shares.astype(np.float64) * 10_000) / 10_000
        ids = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
        return SegmentationMessage, {"segments": items(SegmentItem, ids, shares[ids].tolist())}
    if isinstance(result, Classification):
        rounded, ids = _rounded(result.confidence[:, np.newaxis], result.class_id)
        return ClassificationMessage, {"classes": items(ClassItem, ids, rounded[:, 0].tolist())}
    rows = np.column_stack((result.xyxy, result.confidence))
    rounded, ids = _rounded(rows, result.class_id)
    objects = items(DetectionItem, ids, rounded[:, 4].tolist(), rounded[:, :4].tolist())
    if result.keypoints is not None or result.masks is not None or result.then is not None:
        places = np.flatnonzero(np.isfinite(rows).all(axis=1)).tolist()
        objects = [_with_details(item, result, place) for item, place in zip(objects, places, strict=True)]
    return DetectionMessage, {"detections": objects}


def _nested(result: Result) -> NestedResult:
    """Return a result that is within another one, with the labels that it has itself."""
    kind, content = _content(result, lambda class_id: result.names.get(class_id) or f"class_{class_id}")
    not_finite = UNSET if result.is_finite else True
    return NESTED[kind](infer_ms=result.inference_ns // 1000 / 1000, not_finite=not_finite, **content)


def _with_details(item: DetectionItem, result: Detections, place: int) -> DetectionItem:
    """Add the keypoints and the outlines of one object, and what a second model says of it."""
    if result.then is not None and (then := result.then[place]) is not None:
        item = msgspec.structs.replace(item, then=_nested(then))
    if result.keypoints is not None:
        points = np.rint(result.keypoints[place].astype(np.float64) * _POINT_STEPS) / _POINT_STEPS
        item = msgspec.structs.replace(item, keypoints=points.tolist())
    if result.masks is not None:
        outlines = [outline.astype(int).tolist() for outline in result.polygons(place)[:_MOST_OUTLINES]]
        item = msgspec.structs.replace(item, polygons=outlines)
    return item


def _rounded(rows: NDArray[np.float32], class_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Round the rows, (N, 5) with a box and a confidence or (N, 1) with a confidence; leave out those not finite."""
    if not len(rows):
        return rows.astype(np.float64), class_ids
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        kept = is_finite.all(axis=1)
        rows, class_ids = rows[kept], class_ids[kept]
    steps = _STEPS[-rows.shape[1] :]
    return np.rint(rows * steps) / steps, class_ids


class EventEncoder:
    """Encodes the events of one camera as JSON, in whichever thread.

    They are of this camera, whatever they say themselves, and name the model that answers there, if one does. The clock
    tells whether times can be trusted; None claims nothing of it.
    """

    def __init__(
        self, identity: Identity, camera: str, model: ModelRef | None = None, clock: WallClock | None = None
    ) -> None:
        self._header = {**msgspec.structs.asdict(identity), "camera": camera}
        self._clock = clock
        self._model = UNSET if model is None else msgspec.structs.replace(model, variant=UNSET)

    @classmethod
    def beside(cls, results: ResultEncoder, camera: str) -> EventEncoder:
        """Make an encoder with the device, model and clock of the camera's results."""
        return cls(results.identity, camera, results.model, results.wall_clock)

    def encode(self, event: Event, seq: int) -> bytes:
        """Encode one event, with its number among those of the camera, as one line of JSON."""
        at, box = event.at.astimezone(timezone.utc), event.box_xyxy
        facts: dict[str, Any] = {
            "label": event.label,
            "class_id": event.class_id,
            "confidence": None if event.confidence is None else round(float(event.confidence), 4),
            "box_xyxy": None if box is None else tuple(round(float(side), 1) for side in box),
            "frame": None if event.frame_wh is None else FrameSize(*event.frame_wh),
            "frame_seq": event.frame_seq,
            "detail": event.detail,
        }
        return msgspec.json.encode(
            EventMessage(
                **self._header,
                seq=seq,
                kind=event.kind,
                at=at.replace(microsecond=at.microsecond // 1000 * 1000),
                clock=UNSET if self._clock is None or self._clock.is_synchronised else "unsynchronised",
                model=self._model,
                **{name: fact for name, fact in facts.items() if fact is not None},
            )
        )


_Summary: TypeAlias = "tuple[int, ...] | int | None"


class SeenEncoder:
    """Encodes what one camera sees at present, where that changed."""

    def __init__(self, camera: str, encoder: ResultEncoder) -> None:
        self._camera, self._encoder = camera, encoder
        self._summary: _Summary = ()
        self._is_first = True

    def encode_change(self, result: Result) -> bytes | None:
        """Encode what a result shows; None where nothing changed, or where nothing is known (not finite)."""
        summary = _summarise(result)
        if not result.is_finite or (summary == self._summary and not self._is_first):
            return None
        self._summary, self._is_first = summary, False
        header = {"camera": self._camera, **msgspec.structs.asdict(self._encoder.identity)}
        label = self._encoder.label
        if isinstance(summary, tuple):
            counts = Counter(map(label, summary))
            message = SeenMessage(**header, total=len(summary), labels=dict(sorted(counts.items())))
        else:
            message = SeenMessage(**header, label=UNSET if summary is None else label(summary))
        return msgspec.json.encode(message)


def _summarise(result: Result) -> _Summary:
    """Return the class ids of detections, sorted; of other tasks the first class, None where there is none."""
    if isinstance(result, Detections):
        return tuple(sorted(result.class_id.tolist()))
    if isinstance(result, Segmentation):
        return int(result.shares.argmax()) if len(result.shares) else None
    return int(result.class_id[0]) if len(result.class_id) else None
