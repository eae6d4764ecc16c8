"""EventEncoder: events as the bytes of their messages. What the messages are is payload.py's."""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec
from msgspec import UNSET

from edge_sdk.event import Event
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.payload import EventMessage, FrameSize, ModelRef
from edge_sdk.wall_clock import WallClock


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
