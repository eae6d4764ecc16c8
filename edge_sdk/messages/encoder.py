"""ResultEncoder: results as the bytes of their messages.

Owns the rounding, and what is left out. What the messages are is payload.py's.

EventEncoder: events as the bytes of their messages. What the messages are is payload.py's.

SeenMessage: what a camera sees at present, in a few words.

The JSON Schemas of what a device publishes, made of its messages; docs/ holds them for people who subscribe.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import WallClock
from edge_sdk.core.errors import UsageError
from edge_sdk.core.frame import Classification, Detections, Result, Segmentation
from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import (
    SCHEMA_VERSION,
    ClassificationMessage,
    ClassItem,
    DetectionItem,
    DetectionMessage,
    EventMessage,
    FrameSize,
    Identity,
    ModelRef,
    ResultMessage,
    SegmentationMessage,
    SegmentItem,
    StateMessage,
    StatusMessage,
    TelemetryMessage,
)

_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # a pixel, four times, and the confidence
_CHANGING = b'"seq":%d,"captured_at":%b,"age_ms":%r,"infer_ms":%r'  # neighbours in payload.py, in this order
_UNCHANGED = (0, b'"1970-01-01T00:00:00Z"', 0.0, 0.0)
_MOST_FRAMES = 16  # cameras, and sizes of their frames

_Scored: TypeAlias = Detections | Classification


class ResultEncoder:
    """Turns the results of one stream into JSON, in the stream's thread.

    Args:
        identity: who speaks.
        labels: lines of labels.txt, in output order.
        model: what answers.
        background_class: line 0 of the labels is the background, and class_id is the output's index - 1.
        clock_ns: monotonic nanoseconds, the clock of `Frame.captured_ns`.
        wall_clock: whose times are in the messages; None claims nothing of it.

    Attributes:
        identity, wall_clock: as given.
        model: as given; it names no variant.
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
        numbered = enumerate(labels, start=-1 if background_class else 0)
        self._labels = {number: label or f"class_{number}" for number, label in numbered}
        self._labels.setdefault(-1, "background")
        self._clock_ns = clock_ns
        self._json = msgspec.json.Encoder()
        # One of each a number, and no broadcasting, is half the time; they grow with the largest result.
        self._values, self._steps = np.empty(0), np.empty(0)
        self._frames: dict[tuple[str, tuple[int, int], type[Result], bool, bool], tuple[bytes, bytes]] = {}

    @classmethod
    def for_bundle(cls, bundle: Bundle, identity: Identity, wall_clock: WallClock | None = None) -> ResultEncoder:
        """An encoder for the results of one bundle.

        Raises:
            BundleError: when its labels changed since it was opened.
        """
        promise = bundle.manifest
        model = ModelRef(promise.name, promise.version, bundle.digest)
        # Only class ids of a classifier are counted without the background.
        background = promise.task == "classification" and promise.classification.background_class
        encoder = cls(identity, bundle.labels(), model, background_class=background, wall_clock=wall_clock)
        encoder.answers_by(promise.variants[0].name)
        return encoder

    def check(self, identity: Identity) -> None:
        """Refuse to speak for another device, or another start of the program.

        Raises:
            UsageError: it is not this encoder's identity.
        """
        if identity != self.identity:
            raise UsageError(f"results are encoded for {self.identity}, published by {identity}; give both the same")

    def answers_by(self, variant: str) -> None:
        """From now on results are of this variant; to be called between two results, by whoever encodes them."""
        self._answering = msgspec.structs.replace(self.model, variant=variant)
        self._frames = {}

    def encode(self, result: Result, seq: int | None = None) -> bytes:
        """One result as one line of JSON; what is not finite is left out, because JSON cannot say it.

        Args:
            result: what was seen.
            seq: the number that the message bears; the frame's by default.
        """
        items = self._items(result)
        front, back = self._frame_of(result)
        age_ms = (self._clock_ns() - result.frame.captured_ns) // 1000 / 1000
        moment = self._json.encode(datetime.fromtimestamp(round(result.frame.captured_at, 3), timezone.utc))
        number = result.frame.seq if seq is None else seq
        changing = (number, moment, age_ms, result.inference_ns // 1000 / 1000)
        return b"%b%b%b%b}" % (front, _CHANGING % changing, back, items)

    def label(self, class_id: int) -> str:
        """Of one class; `class_N` where it has none."""
        return self._labels.get(class_id) or f"class_{class_id}"

    def _items(self, result: Result) -> bytes:
        """What was seen, as a JSON list."""
        if isinstance(result, Segmentation):
            return self._json.encode(self._segments(result))
        if not len(result.confidences):
            return b"[]"
        ids: list[int] = result.class_ids.tolist()
        labels = self._labels_of(ids)
        if isinstance(result, Classification):
            # A handful: numpy would cost more.
            confidences = [round(confidence, 4) for confidence in result.confidences.tolist()]
            if not math.isfinite(sum(confidences)):
                return self._items(_finite_part(result))
            return self._json.encode(list(map(ClassItem, labels, ids, confidences)))
        rounded = self._rounded(result)
        if rounded is None:
            return self._items(_finite_part(result))
        confidences, boxes = rounded[:, 4].tolist(), rounded[:, :4].tolist()
        return self._json.encode(list(map(DetectionItem, labels, ids, confidences, boxes)))

    def _labels_of(self, ids: list[int]) -> list[str]:
        try:
            return list(map(self._labels.__getitem__, ids))
        except KeyError:
            return [self._labels.get(i, f"class_{i}") for i in ids]

    def _segments(self, result: Segmentation) -> list[SegmentItem]:
        """Shares to 0.0001; a class without a share of that size is left out."""
        shares = np.rint(result.shares.astype(np.float64) * 10_000) / 10_000
        order = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
        ids: list[int] = order.tolist()
        return list(map(SegmentItem, self._labels_of(ids), ids, shares[order].tolist()))

    def _rounded(self, result: Detections) -> NDArray[np.float64] | None:
        """Boxes to 0.1 px and confidences to 0.0001, in one go: it costs half.

        Returns:
            float64 (N, 5), overwritten by the next call; None where something is not finite.
        """
        size = len(result.confidences) * len(_STEPS)
        if size > len(self._values):
            self._values = np.empty(size)
            self._steps = np.tile(_STEPS, size // len(_STEPS))
        flat, steps = self._values[:size], self._steps[:size]
        values = flat.reshape(-1, len(_STEPS))
        values[:, 4] = result.confidences
        values[:, :4] = result.boxes_xyxy
        # The sum of squares is finite when all are: the cheapest way to ask. float32 squared cannot overflow float64.
        if not math.isfinite(flat.dot(flat)):
            return None
        np.multiply(flat, steps, flat)
        np.rint(flat, flat)
        np.divide(flat, steps, flat)
        return values

    def _frame_of(self, result: Result) -> tuple[bytes, bytes]:
        """A message up to what changes with every frame, and from there to its list."""
        is_set = self.wall_clock is None or self.wall_clock.is_synchronised
        key = (result.frame.camera, result.frame.size_wh, type(result), result.is_finite, is_set)
        found = self._frames.get(key)
        if found is None:
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            front, _, back = self._json.encode(self._empty(result, is_set=is_set)).partition(_CHANGING % _UNCHANGED)
            found = self._frames[key] = front, back.removesuffix(b"[]}")
        return found

    def _empty(self, result: Result, *, is_set: bool) -> ResultMessage:
        """The message of nothing seen, at the epoch."""
        seq, _, age_ms, infer_ms = _UNCHANGED
        header: dict[str, Any] = {
            "device": self.identity.device,
            "camera": result.frame.camera,
            "boot_id": self.identity.boot_id,
            "run_id": self.identity.run_id,
            "seq": seq,
            "captured_at": datetime.fromtimestamp(0, timezone.utc),
            "age_ms": age_ms,
            "infer_ms": infer_ms,
            "clock": msgspec.UNSET if is_set else "unsynchronised",
            "model": self._answering,
            "frame": FrameSize(*result.frame.size_wh),
            "not_finite": msgspec.UNSET if result.is_finite else True,
        }
        if isinstance(result, Segmentation):
            return SegmentationMessage(segments=[], **header)
        if isinstance(result, Classification):
            return ClassificationMessage(classes=[], **header)
        return DetectionMessage(detections=[], **header)


def _finite_part(result: _Scored) -> _Scored:
    finite = np.isfinite(result.confidences)
    if isinstance(result, Classification):
        return Classification(
            result.frame,
            result.inference_ns,
            result.confidences[finite],
            result.class_ids[finite],
            result.is_finite,
        )
    finite &= np.isfinite(result.boxes_xyxy).all(axis=1)
    return Detections(
        result.frame,
        result.inference_ns,
        result.boxes_xyxy[finite],
        result.confidences[finite],
        result.class_ids[finite],
        result.is_finite,
    )


class EventEncoder:
    """Turns the events of one camera into JSON, in whichever thread.

    Args:
        identity: who speaks.
        camera: where they happen, whatever they say themselves.
        model: what answers there; None where no model does.
        clock: what times are to be trusted; None claims nothing.
    """

    def __init__(
        self, identity: Identity, camera: str, model: ModelRef | None = None, clock: WallClock | None = None
    ) -> None:
        self._who = msgspec.structs.asdict(identity)
        self._camera, self._clock = camera, clock
        self._model = UNSET if model is None else msgspec.structs.replace(model, variant=UNSET)

    @classmethod
    def beside(cls, results: ResultEncoder, camera: str) -> EventEncoder:
        """One that says of itself, of its model and its clock what the camera's results say."""
        return cls(results.identity, camera, results.model, results.wall_clock)

    def encode(self, event: Event, seq: int) -> bytes:
        """One event as one line of JSON.

        Args:
            event: what happened.
            seq: its number among the events of the camera.
        """
        box = event.box_xyxy
        return msgspec.json.encode(
            EventMessage(
                **self._who,
                camera=self._camera,
                seq=seq,
                kind=event.kind,
                at=_to_ms(event.at),
                clock=UNSET if self._clock is None or self._clock.is_synchronised else "unsynchronised",
                label=UNSET if event.label is None else event.label,
                class_id=UNSET if event.class_id is None else event.class_id,
                confidence=UNSET if event.confidence is None else round(float(event.confidence), 4),
                box_xyxy=UNSET if box is None else _to_tenths(box),
                frame=UNSET if event.frame_wh is None else FrameSize(*event.frame_wh),
                frame_seq=UNSET if event.frame_seq is None else event.frame_seq,
                model=self._model,
                detail=UNSET if event.detail is None else event.detail,
            )
        )


def _to_ms(at: datetime) -> datetime:
    utc = at.astimezone(timezone.utc)
    return utc.replace(microsecond=utc.microsecond // 1000 * 1000)


def _to_tenths(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = (round(float(side), 1) for side in box)
    return left, top, right, bottom


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="seen"):
    """What a camera sees at present; retained, published when it changes, once a second at most.

    Attributes:
        device, camera, boot_id, run_id: as in results.
        total: objects, of a detector.
        labels: of them by label, those that are there.
        label: the likeliest class, or the one that covers most of the picture, of other tasks.
    """

    schema: Literal[1] = SCHEMA_VERSION
    device: str
    camera: str
    boot_id: str
    run_id: str
    total: Annotated[int, Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    labels: dict[str, Annotated[int, Meta(ge=1)]] | msgspec.UnsetType = msgspec.UNSET
    label: str | msgspec.UnsetType = msgspec.UNSET


_Gist: TypeAlias = "tuple[int, ...] | int | None"


class Seen:
    """What one camera's results come to, looked at after each of them.

    Args:
        camera: whose.
        encoder: of its results.
    """

    def __init__(self, camera: str, encoder: ResultEncoder) -> None:
        self._camera, self._encoder = camera, encoder
        self._gist: _Gist = ()
        self._is_first = True

    def news(self, result: Result) -> bytes | None:
        """The message, JSON; None where nothing changed, or the outputs were no numbers: then nothing is known."""
        if not result.is_finite:
            return None
        gist = _gist_of(result)
        if gist == self._gist and not self._is_first:
            return None
        self._gist, self._is_first = gist, False
        return msgspec.json.encode(self._message(gist))

    def _message(self, gist: _Gist) -> SeenMessage:
        label, identity = self._encoder.label, self._encoder.identity
        header = {"camera": self._camera, **msgspec.structs.asdict(identity)}
        if isinstance(gist, tuple):
            counts = Counter(map(label, gist))
            return SeenMessage(**header, total=len(gist), labels=dict(sorted(counts.items())))
        return SeenMessage(**header, label=msgspec.UNSET if gist is None else label(gist))


def _gist_of(result: Result) -> _Gist:
    """Class ids of detections, sorted; of other tasks the first class; None where there is none."""
    if isinstance(result, Detections):
        return tuple(sorted(result.class_ids.tolist()))
    if isinstance(result, Segmentation):
        return int(result.shares.argmax()) if len(result.shares) else None
    return int(result.class_ids[0]) if len(result.class_ids) else None


_MESSAGES: dict[str, object] = {
    "result": ResultMessage,
    "status": StatusMessage,
    "state": StateMessage,
    "telemetry": TelemetryMessage,
    "event": EventMessage,
    "seen": SeenMessage,
}


def message_schema(stream: str) -> bytes:
    """The JSON Schema of the messages of one stream that a device publishes, indented.

    docs/STREAM.schema.json is this.
    """
    return schema_document(stream, _MESSAGES[stream])


def schema_document(stream: str, message: object) -> bytes:
    """The JSON Schema of the messages of one stream, indented."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {stream}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(message),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
