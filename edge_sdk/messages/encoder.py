"""Encoders that write results, events and the summary of a camera's view as the bytes of their messages.

A `ResultEncoder` belongs to one camera's stream and is used in its thread; an `EventEncoder` writes the same device,
model and clock as the results of its camera. The encoders add the header with device, camera and times; the entry of
the task encodes the items of a result.
"""

from __future__ import annotations

import time
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
        identity: the publishing device, boot and run.
        names: labels by class id.
        model: the model that gives the results, without a variant.
        clock_ns: the clock of `Frame.captured_ns`, monotonic nanoseconds.
        wall_clock: tells whether the device's clock is synchronised; with None messages have no field `clock`.
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
        """Make an encoder for a bundle and an optional second one; raise BundleError if a labels file was changed."""
        manifest, model = bundle.manifest, _reference(bundle)
        if then is not None:
            model = msgspec.structs.replace(model, then=_reference(then))
        encoder = cls(identity, bundle.labels_by_id(), model, wall_clock=wall_clock)
        encoder.answers_by(manifest.variants[0].name)
        return encoder

    def answers_by(self, variant: str) -> None:
        """Write this variant into all further results; to be called between two results, in the encoding thread."""
        self._answering = msgspec.structs.replace(self.model, variant=variant)

    def encode(self, result: Result, seq: int | None = None) -> bytes:
        """Encode one result as one line of JSON with the number `seq`, by default that of its frame.

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
            "file": frame.file or UNSET,
            "not_finite": UNSET if result.is_finite else True,
        }
        entry = entry_of(result)
        return self._encode(entry.message(**header | entry.payload(result, self.label)))

    def label(self, class_id: int) -> str:
        """Return the label of a class; `class_N` if the class has none."""
        return self._names.get(class_id) or f"class_{class_id}"


def _reference(bundle: Bundle) -> ModelRef:
    return ModelRef(bundle.manifest.name, bundle.manifest.version, bundle.digest)


class EventEncoder:
    """Encodes the events of one camera as JSON; thread-safe.

    Every message names this camera, whatever the event itself names, and the camera's model, if there is one. The clock
    tells whether the device's clock is synchronised; with None messages have no field `clock`.
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
        """Encode one event, with its number `seq` among the camera's events, as one line of JSON."""
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


def encode_seen(identity: Identity, camera: str, seen: Mapping[str, int] | str | None) -> bytes:
    """Encode what one camera sees at present: objects by label, or one class, None where there is none."""
    header = {"camera": camera, **msgspec.structs.asdict(identity)}
    if isinstance(seen, Mapping):
        message = SeenMessage(**header, total=sum(seen.values()), labels=dict(sorted(seen.items())))
    else:
        message = SeenMessage(**header, label=UNSET if seen is None else seen)
    return msgspec.json.encode(message)
