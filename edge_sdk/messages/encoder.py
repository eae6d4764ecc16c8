"""Encoders: results, events and what a camera sees, as the bytes of their messages.

One `ResultEncoder` belongs to one camera's stream and is used in its thread; `EventEncoder` says of the device, the
model and the clock what the results beside it say; `SeenEncoder` sums results up and encodes only what changed. They
say whose results these are and when they were taken; a task's entry says what its results hold.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec
from msgspec import UNSET

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.clock import WallClock
from edge_sdk.core.frame import Result
from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import EventMessage, Identity, SeenMessage
from edge_sdk.tasks.detection import entry_of
from edge_sdk.tasks.entry import FrameSize, ModelRef


class ResultEncoder:
    """Encodes the results of one stream as JSON.

    Args:
        identity: who publishes.
        names: labels by class id.
        model: the model whose results these are; it names no variant.
        clock_ns: the clock of `Frame.captured_ns`.
        wall_clock: tells whether times can be trusted; None claims nothing of it.
    """

    def __init__(
        self,
        identity: Identity,
        names: Mapping[int, str],
        model: ModelRef,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock: WallClock | None = None,
    ) -> None:
        self.identity, self.model, self.wall_clock = identity, model, wall_clock
        self._answering, self._names = model, names
        self._clock_ns = clock_ns
        self._encode = msgspec.json.Encoder().encode

    @classmethod
    def for_bundle(
        cls, bundle: Bundle, identity: Identity, wall_clock: WallClock | None = None, *, then: Bundle | None = None
    ) -> ResultEncoder:
        """Make an encoder for the results of a bundle and a second one; labels that changed raise `BundleError`."""
        manifest, model = bundle.manifest, _reference(bundle)
        if then is not None:
            model = msgspec.structs.replace(model, then=_reference(then))
        encoder = cls(identity, bundle.labels_by_id(), model, wall_clock=wall_clock)
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
        entry = entry_of(result)
        return self._encode(entry.message(**header | entry.payload(result, self.label)))

    def label(self, class_id: int) -> str:
        """Return the label of one class; `class_N` where it has none."""
        return self._names.get(class_id) or f"class_{class_id}"


def _reference(bundle: Bundle) -> ModelRef:
    return ModelRef(bundle.manifest.name, bundle.manifest.version, bundle.digest)


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


class SeenEncoder:
    """Encodes what one camera sees at present, where that changed."""

    def __init__(self, camera: str, encoder: ResultEncoder) -> None:
        self._camera, self._encoder = camera, encoder
        self._summary: object = None
        self._is_first = True

    def encode_change(self, result: Result) -> bytes | None:
        """Encode what a result shows; None where nothing changed, or where nothing is known (not finite)."""
        label = self._encoder.label
        summary = result.summary(label) if result.xyxy is None else sorted(result.class_id.tolist())
        if not result.is_finite or (summary == self._summary and not self._is_first):
            return None
        self._summary, self._is_first = summary, False
        header = {"camera": self._camera, **msgspec.structs.asdict(self._encoder.identity)}
        if isinstance(summary, list):
            counts = Counter(map(label, summary))
            message = SeenMessage(**header, total=len(summary), labels=dict(sorted(counts.items())))
        else:
            message = SeenMessage(**header, label=UNSET if summary is None else summary)
        return msgspec.json.encode(message)
