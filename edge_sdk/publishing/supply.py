"""Supply: what goes over a connection beside the device's own words: events first, then results, then pictures.

Owns which message is next, and what becomes of it once the broker has answered. Results keep a place in the window
while a backlog of events goes out, so that a device that was away for a week is seen at once.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.durable import EventOutbox, Held
from edge_sdk.publishing.flight import Flight
from edge_sdk.publishing.link import Answer, Kind, Link
from edge_sdk.publishing.outbox import CameraKind, Message
from edge_sdk.publishing.poison import Poison
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.refusals import Refusals
from edge_sdk.publishing.sent import Sent

TOO_LARGE = "is above the broker's maximum packet size and is not sent; raise that there (max_packet_size)"
_POISON = (
    "it ended the connection each time it got one of {} bytes; raise its limit of a message (max_packet_size, "
    "message_size_limit), or have its ACL let this device write it"
)
_SLOW = (
    "one of {} bytes took longer on this link than the broker may be silent, each time; send less at once "
    "([publish.snapshots] width, quality)"
)
End: TypeAlias = Literal["", "ended", "timed out"]
"""Of a connection: by ourselves or because it broke; by the broker; because nothing came from it for too long."""

_QUEUED: tuple[CameraKind, ...] = ("result", "snapshot")
_FOR_RESULTS = 2  # messages of a window
_FINAL_CODES = frozenset({0x90, 0x99})  # that the same message will always get: topic name, payload format invalid
# Not authorized: of one topic where others are taken; else perhaps a slip in an ACL, for which no backlog is given up.
_DENIED_CODE = 0x87
_HELD = (
    "the broker does not take events of {}: {}; they wait and are tried again, allow this device to write it in the "
    "broker's ACL"
)
_QUOTA_CODE = 0x97  # exceeded: says something of the broker's day, and nothing of the message
_MOST_TRIES = 8  # of one event that the broker refuses without saying that it always will
_MOST_TRIED = 1000  # events whose tries are counted; a window of them comes again and again, not more


class Supply:
    """Used by the publisher's thread.

    Args:
        queues: where results and pictures wait.
        events: where events wait.
        flight: what is on its way.
        refusals: take what is answered of anything but events.
        hold: how long no event is sent after the broker refused one.

    Attributes:
        poison: whether messages go one by one, to find the one at which the broker hangs up.
    """

    def __init__(
        self, queues: Queues, events: EventOutbox, flight: Flight, refusals: Refusals, hold: Backoff | None = None
    ) -> None:
        self._queues, self._events, self._flight, self._refusals = queues, events, flight, refusals
        self._counts: dict[tuple[str, CameraKind], Sent] = {}
        self.poison = Poison()
        self._flying_events = 0
        self._hold = hold or Backoff()
        self._tries: dict[int, int] = {}  # by id, the latest last
        self._error = ""
        self._doubts: dict[str, str] = {}
        self._has_taken = self._holds_denied = False  # an event on this connection; because it was denied

    def of_camera(self, camera: str, kind: CameraKind = "result") -> Sent:
        """The counts of one camera's results or pictures, which go on."""
        return self._counts.get((camera, kind)) or self._counts.setdefault((camera, kind), Sent())

    def of_all(self, kind: CameraKind = "result") -> Sent:
        """The counts of all cameras' results, or pictures, together."""
        total = Sent()
        for (_, of_kind), counts in list(self._counts.items()):
            if of_kind == kind:
                total.add(counts)
        return total

    def take_errors(self) -> tuple[dict[str, str], str]:
        """Doubts by name, an empty one for what is over, and what went wrong, all since the last call; for people."""
        errors = self._doubts, self._error
        self._doubts, self._error = {}, ""
        return errors

    def is_sent(self, camera: str) -> bool:
        """Whether no result or picture of a camera waits."""
        return not self._queues.has_of(camera)

    @property
    def is_over(self) -> bool:
        """Whether nothing would be lost or late if there was no other connection."""
        return not len(self._queues) and (self._events.is_durable or not self._events.waiting)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits that could be sent."""
        return not len(self._queues) and (not self._events.waiting or self._events.is_held)

    def has_next(self, link: Link) -> bool:
        """Whether something can be put on its way now, where the window has room."""
        return bool(len(self._queues)) or (self._events.is_ready and self._may_send_event(link))

    def send_next(self, link: Link) -> bool:
        """Put one message on its way; False where there is none."""
        event = self._events.take() if self._may_send_event(link) else None
        if event is not None:
            self._send_event(link, event)
            return True
        message = self._queues.take(in_turn=self.poison.is_suspected)
        if message is None:
            return False
        if link.fits(message.kind, message):
            self._flight.publish(link, message.kind, message)
        else:
            self.of_camera(message.camera, message.kind).too_large += 1
            self._doubts["too_large"] = f"a message ({message.kind}) of {len(message.payload)} bytes {TOO_LARGE}"
        return True

    def settle(self, link: Link) -> None:
        """Look what was answered."""
        if link.heard():
            self._events.hear()
        for kind, message, answer in self._flight.landed(link):
            if kind == "event":
                self._settle_event(cast("Held", message), answer)
                continue
            self._refusals.settle(message.topic, answer)
            if message.camera:
                counts = self.of_camera(message.camera, message.kind)
                is_answer = link.acknowledges(message.kind)
                counts.count(is_answer=is_answer, complaint=answer.complaint)
                if is_answer:
                    self.poison.took()

    def take_back(self, *, is_orderly: bool, end: End) -> None:
        """The connection is over: what did not arrive is the next again; see `EventOutbox.end_connection`.

        Args:
            is_orderly: the broker took the goodbye.
            end: how it came.
        """
        culprit = self._look_for_culprit(end)
        for kind in _QUEUED:
            self._queues.give_back(message for message in self._flight.take_back(kind) if message is not culprit)
        self._events.end_connection(is_orderly=is_orderly)
        self._flight.clear()
        self._flying_events = 0
        self._has_taken = self._holds_denied = False

    def _look_for_culprit(self, end: End) -> Message | None:
        """The message to blame for the end, which is given up; None where none is."""
        flying, found = self._flight.messages(), None
        if end == "ended" and (found := self.poison.ended(flying)):
            self._give_up(*found, "the broker does not take a message ({}), which is given up: ", _POISON)
        elif end == "timed out" and (found := self.poison.timed_out(flying)):
            self._give_up(*found, "a message ({}) is given up: ", _SLOW)
        return found[1] if found else None

    def _give_up(self, kind: Kind, message: Message, what: str, template: str) -> None:
        why = template.format(len(message.payload))
        if kind == "event":
            self._events.refuse(cast("Held", message), why)
            return
        self.of_camera(message.camera, message.kind).count(is_answer=True, complaint=why)
        self._doubts["too_large"] = what.format(kind) + why

    def _may_send_event(self, link: Link) -> bool:
        return self._flying_events < max(1, link.window - _FOR_RESULTS)

    def _send_event(self, link: Link, event: Held) -> None:
        if not link.fits("event", event):
            self._events.refuse(event, f"its {len(event.payload)} bytes are above the broker's maximum packet size")
            self._doubts["too_large"] = f"a message (event) of {len(event.payload)} bytes {TOO_LARGE}"
            return
        self._flying_events += 1
        self._flight.publish(link, "event", event)

    def _settle_event(self, event: Held, answer: Answer) -> None:
        self._flying_events -= 1
        if not answer.complaint:
            self._has_taken = True
            if self._holds_denied:
                self._holds_denied, self._doubts["events_held"] = False, ""
            self._hold.reset()
            self.poison.took()
            self._tries.pop(event.id, None)
            self._events.deliver(event)
            return
        self._error = f"the broker did not take an event on {event.topic}: {answer.complaint}"
        if self._is_final(event, answer.code):
            self._events.refuse(event, answer.complaint)
        else:  # what else of this window is refused comes back by itself: one step of the back-off is for all of it
            self._events.give_back(event, 0.0 if self._events.is_held else self._hold.next_s())
            if answer.code == _DENIED_CODE and not self._holds_denied:
                self._holds_denied, self._doubts["events_held"] = True, _HELD.format(event.topic, answer.complaint)

    def _is_final(self, event: Held, code: int) -> bool:
        is_denied = code == _DENIED_CODE and self._has_taken
        return code in _FINAL_CODES or is_denied or self._has_been_tried_out(event, code)

    def _has_been_tried_out(self, event: Held, code: int) -> bool:
        """Count one more try; whether it was the last."""
        if code == _QUOTA_CODE:
            return False
        tries = self._tries.pop(event.id, 0) + 1
        if tries >= _MOST_TRIES:
            return True
        self._tries[event.id] = tries
        if len(self._tries) > _MOST_TRIED:
            del self._tries[next(iter(self._tries))]
        return False
