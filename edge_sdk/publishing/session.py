"""Delivery: what the publisher's thread does, from the first connection to the goodbye.

Owns the connections, and the order of the first and the last messages of each; one thread runs all of it.

.

Supply: what goes over a connection beside the device's own words: events first, then results, then pictures.

Owns which message is next, and what becomes of it once the broker has answered. Results keep a place in the window
while a backlog of events goes out, so that a device that was away for a week is seen at once.

Flight: the messages that are on their way over one connection, and what came back of them.

Owns the window's content and the clock of the broker's answers; what becomes of a message is `Delivery`'s matter.

Poison: finds the message at which a broker ends connections, so that it does not hold up all others for ever.

Before MQTT 5 a broker cannot say that it does not take a message (too large, not allowed), and some do not say it with
MQTT 5 either: they hang up. What was on its way then is sent again, and they hang up again. A message for which a link
is too slow does the same: it takes longer than the broker may be silent, each time.

Sent: what came of messages that were taken from the outbox, counted.

Refusals: messages that the broker answers with a complaint: which topic, and what its ACL must allow.

Owns that each is said once, stands in the state for as long as it lasts, and that what is retained is offered again.
Of events the outbox tells itself.

Doubts: what is not wrong yet with a connection: a certificate that ends soon, a broker that knows no MQTT 5.

Owns when that is looked at: at every connection, and once a day while it holds.

Callbacks: what a publisher's owner gave it to be called with what happens.

Owns that one which raises costs nothing but itself: publishing goes on, and it is said once and shown in the state
until the callback works again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, ParamSpec, TypeAlias, cast

from edge_sdk.core.errors import os_error_text
from edge_sdk.core.threads import Backoff
from edge_sdk.messages.schema import CameraKind, Message
from edge_sdk.messages.topics import Topics
from edge_sdk.outbox.event import QueuedEvent
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.connection import (
    NOT_AUTHORIZED,
    UNSENT_BYTES,
    Answer,
    Connection,
    Incoming,
    Kind,
    Receiver,
    Wakeup,
)
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher

State: TypeAlias = Literal["connecting", "online", "refused", "closed"]


class InFlight:
    """Of one connection after the other.

    Args:
        stall_s: seconds without an answer, with messages on their way, after which a connection is given up.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._messages: dict[int, tuple[Kind, Message]] = {}  # oldest first
        self._progress_at = 0.0

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, number: int) -> bool:
        return number in self._messages

    def publish(self, link: Connection, kind: Kind, message: Message) -> int:
        """Put one on its way; the number tells it from the others of this connection."""
        if not self._messages:
            self._progress_at = time.monotonic()
        number = link.publish(kind, message)
        self._messages[number] = (kind, message)
        return number

    def landed(self, link: Connection) -> Iterator[tuple[Kind, Message, Answer]]:
        """Those that left or were answered since the last call; they are on their way no more."""
        for answer in link.finished():
            self._progress_at = time.monotonic()
            found = self._messages.pop(answer.number, None)
            if found is not None:
                yield (*found, answer)

    def check_stall(self) -> None:
        """Look whether answers still come.

        Raises:
            TimeoutError: none came for too long.
        """
        if self._messages and time.monotonic() - self._progress_at > self._stall_s:
            raise TimeoutError(f"the broker answered nothing for {self._stall_s:.0f} s")

    def messages(self) -> list[tuple[Kind, Message]]:
        """Those on their way, oldest first."""
        return list(self._messages.values())

    def take_back(self, kind: Kind) -> list[Message]:
        """Those of one kind that did not arrive, oldest first; the connection is over."""
        return [message for of_kind, message in self._messages.values() if of_kind == kind]

    def clear(self) -> None:
        """Forget them all."""
        self._messages.clear()


_SUSPICIOUS = 2  # connections in a row that the broker ended with something of a camera on its way
# Of them with one and the same message alone on its way, after everything else was answered. Twice as many for the next
# one while nothing is taken in between: a broker that crashes at whatever comes must not cost one after the other.
_SURE = 3


class PoisonDetection:
    """Of one broker, over its connections; for the publisher's thread."""

    def __init__(self) -> None:
        self._ends = 0
        self._needed = _SURE
        self._touchy, self._slow = _Suspect(), _Suspect()

    @property
    def is_suspected(self) -> bool:
        """Whether messages go one by one, each when the one before was answered."""
        return self._ends >= _SUSPICIOUS

    @property
    def hint(self) -> str:
        """For people; empty while nothing is suspected."""
        line = "; or is there a message that it does not take? They go one by one now, to find it"
        return line if self.is_suspected else ""

    def relax(self) -> None:
        """A connection held: there is none, or it is not on its way."""
        self._ends = 0
        self._touchy.clear()

    def took(self) -> None:
        """The broker took something of a camera."""
        self._needed = _SURE

    def ended(self, flying: Sequence[tuple[Kind, Message]]) -> tuple[Kind, Message] | None:
        """The broker ended a connection.

        Args:
            flying: what was on its way, oldest first.

        Returns:
            The message that is to blame; None where that is not sure.
        """
        if not any(message.camera for _, message in flying):
            return None
        was_alone = self.is_suspected and len(flying) == 1
        self._ends += 1
        if not was_alone:
            return None
        if self._touchy.times(*flying[0]) < self._needed:
            return None
        self._needed *= 2
        self.relax()
        return flying[0]

    def timed_out(self, flying: Sequence[tuple[Kind, Message]]) -> tuple[Kind, Message] | None:
        """Nothing came from the broker for too long; that a connection held before says nothing of this.

        Args:
            flying: what was on its way.

        Returns:
            The message for which the link is too slow; None where that is not sure.
        """
        # Nobody waits for less: the kernel takes it at once.
        large = [(kind, message) for kind, message in flying if message.camera and len(message.payload) > UNSENT_BYTES]
        if not large:
            return None
        largest = max(large, key=lambda one: len(one[1].payload))
        if self._slow.times(*largest) < _SURE:
            return None
        self._slow.clear()
        return largest


class _Suspect:
    """One message, and how often in a row."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._who: tuple[Kind, str, int | None] | None = None
        self._times = 0

    def times(self, kind: Kind, message: Message) -> int:
        """Once more."""
        who = (kind, message.topic, message.seq)
        self._times = self._times + 1 if who == self._who else 1
        self._who = who
        return self._times


class SentCounters:
    """Counts of one camera, or of all.

    Attributes:
        sent: that left.
        acknowledged: of them, that the broker took.
        rejected: of them, that it complained about.
        too_large: that were not sent.
    """

    __slots__ = ("acknowledged", "rejected", "sent", "too_large")

    def __init__(self) -> None:
        self.sent = self.acknowledged = self.rejected = self.too_large = 0

    def count(self, *, is_answer: bool, complaint: str) -> None:
        """One left.

        Args:
            is_answer: the broker said so.
            complaint: that came with it; empty when it took the message.
        """
        self.sent += 1
        if complaint:
            self.rejected += 1
        elif is_answer:
            self.acknowledged += 1

    def add(self, other: SentCounters) -> None:
        """Count another's messages as well."""
        self.sent += other.sent
        self.acknowledged += other.acknowledged
        self.rejected += other.rejected
        self.too_large += other.too_large


_NAME = "messages_refused"


class Rejections:
    """Of one device; for the publisher's thread.

    Args:
        topics: the device's own.
        board: what the device says of itself.
        notices: what is retained; it is sent again later where it was refused.
    """

    def __init__(self, topics: Topics, board: DeviceState, notices: RetainedPublisher) -> None:
        self._own, self._board, self._notices = topics.own, board, notices
        self._response = topics.response
        self._refused: dict[str, str] = {}  # lines by topic
        self._said: set[str] = set()
        self._line = ""

    def begin(self) -> None:
        """There is a new connection, perhaps with other rights."""
        self._refused.clear()
        self._said.clear()
        self._board.warn_of_device(_NAME, "")

    def take_line(self) -> str:
        """What is to be said now, for people; mostly empty. Of all topics that miss one right it is said once."""
        line, self._line = self._line, ""
        return line

    def settle(self, topic: str, answer: Answer) -> None:
        """A message was answered, or left."""
        if topic.startswith(self._response + "/"):  # who asks chooses how it goes on
            topic = self._response
        if answer.complaint:
            self._refuse(topic, answer)
        elif self._refused and self._refused.pop(topic, ""):
            self._board.warn_of_device(_NAME, next(iter(self._refused.values()), ""))

    def _refuse(self, topic: str, answer: Answer) -> None:
        self._notices.repeat_later(topic)
        if topic in self._refused:
            return
        why = answer.complaint
        if answer.code == NOT_AUTHORIZED and topic.startswith(self._own):
            why += f"; its ACL must let this device write below {self._own}"
        elif answer.code == NOT_AUTHORIZED:
            why += "; its ACL must let this device write there"
        self._refused[topic] = line = f"the broker did not take a message on {topic}: {why}"
        self._board.warn_of_device(_NAME, next(iter(self._refused.values())))
        reason = why if topic.startswith(self._own) else line
        if reason not in self._said:
            self._said.add(reason)
            self._line = line


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


class Sender:
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
        self, queues: Queues, events: EventOutbox, flight: InFlight, refusals: Rejections, hold: Backoff | None = None
    ) -> None:
        self._queues, self._events, self._flight, self._refusals = queues, events, flight, refusals
        self._counts: dict[tuple[str, CameraKind], SentCounters] = {}
        self.poison = PoisonDetection()
        self._flying_events = 0
        self._hold = hold or Backoff()
        self._tries: dict[int, int] = {}  # by id, the latest last
        self._error = ""
        self._doubts: dict[str, str] = {}
        self._has_taken = self._holds_denied = False  # an event on this connection; because it was denied

    def of_camera(self, camera: str, kind: CameraKind = "result") -> SentCounters:
        """The counts of one camera's results or pictures, which go on."""
        return self._counts.get((camera, kind)) or self._counts.setdefault((camera, kind), SentCounters())

    def of_all(self, kind: CameraKind = "result") -> SentCounters:
        """The counts of all cameras' results, or pictures, together."""
        total = SentCounters()
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

    def has_next(self, link: Connection) -> bool:
        """Whether something can be put on its way now, where the window has room."""
        return bool(len(self._queues)) or (self._events.is_ready and self._may_send_event(link))

    def send_next(self, link: Connection) -> bool:
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

    def settle(self, link: Connection) -> None:
        """Look what was answered."""
        if link.heard():
            self._events.hear()
        for kind, message, answer in self._flight.landed(link):
            if kind == "event":
                self._settle_event(cast("QueuedEvent", message), answer)
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
            self._events.refuse(cast("QueuedEvent", message), why)
            return
        self.of_camera(message.camera, message.kind).count(is_answer=True, complaint=why)
        self._doubts["too_large"] = what.format(kind) + why

    def _may_send_event(self, link: Connection) -> bool:
        return self._flying_events < max(1, link.window - _FOR_RESULTS)

    def _send_event(self, link: Connection, event: QueuedEvent) -> None:
        if not link.fits("event", event):
            self._events.refuse(event, f"its {len(event.payload)} bytes are above the broker's maximum packet size")
            self._doubts["too_large"] = f"a message (event) of {len(event.payload)} bytes {TOO_LARGE}"
            return
        self._flying_events += 1
        self._flight.publish(link, "event", event)

    def _settle_event(self, event: QueuedEvent, answer: Answer) -> None:
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

    def _is_final(self, event: QueuedEvent, code: int) -> bool:
        is_denied = code == _DENIED_CODE and self._has_taken
        return code in _FINAL_CODES or is_denied or self._has_been_tried_out(event, code)

    def _has_been_tried_out(self, event: QueuedEvent, code: int) -> bool:
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


_DAY_S = 86400.0


class PublishWarnings:
    """Of one device; said in its retained state, and once as a line.

    Args:
        board: what the device says of itself.
        on_doubt: takes one line for people; what it raises is passed over.
        clock_s: monotonic seconds.
    """

    def __init__(
        self, board: DeviceState, on_doubt: Callable[[str], None] | None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._board, self._on_doubt, self._clock_s = board, on_doubt, clock_s
        self._next = 0.0
        self._said: set[str] = set()

    def look(self, link: Connection) -> None:
        """Look at a connection now."""
        self._next = self._clock_s() + _DAY_S
        found = {**dict.fromkeys(self._said, ""), **link.doubts()}
        self._said.clear()
        for name, line in found.items():
            self._tell(name, line)

    def say(self, name: str, line: str) -> None:
        """Something found out meanwhile: of a name the first until the next look; an empty line takes it back."""
        if not line:
            self._said.discard(name)
        elif name in self._said:
            return
        else:
            self._said.add(name)
        self._tell(name, line)

    def look_daily(self, link: Connection) -> None:
        """Look at one where the last look is a day ago."""
        if self._clock_s() >= self._next:
            self.look(link)

    def _tell(self, name: str, line: str) -> None:
        if self._board.warn_of_device(name, line) and line and self._on_doubt is not None:
            with contextlib.suppress(Exception):  # whoever listens must not be able to end publishing
                self._on_doubt(line)


_P = ParamSpec("_P")


class Callbacks:
    """Of one publisher; a `Receiver` itself.

    Args:
        board: what the device says of itself.
        on_state: takes a new state, and a detail for people.
        on_doubt: takes a line for people.
        receiver: takes what comes from the broker.
    """

    def __init__(
        self,
        board: DeviceState,
        on_state: Callable[[State, str], None] | None = None,
        on_doubt: Callable[[str], None] | None = None,
        receiver: Receiver | None = None,
    ) -> None:
        self._board, self._on_state, self._on_doubt, self._receiver = board, on_state, on_doubt, receiver
        self._failing: set[str] = set()
        self._said: set[str] = set()
        self._error = ""

    def take_error(self) -> str:
        """Which one raised since the last call, for people; empty when none did."""
        error, self._error = self._error, ""
        return error

    def state(self, state: State, detail: str) -> None:
        """The state of the connection is another one."""
        if self._on_state is not None:
            self._call("on_state", self._on_state, state, detail)

    def doubt(self, line: str) -> None:
        """Something is not wrong yet."""
        if self._on_doubt is not None:
            self._call("on_doubt", self._on_doubt, line)

    def receive(self, incoming: Incoming) -> None:
        """One message came; see `Receiver.receive`."""
        if self._receiver is not None:
            self._call("the receiver of messages", self._receiver.receive, incoming)

    def refused(self, line: str) -> None:
        """Or none may; see `Receiver.refused`."""
        if self._receiver is not None:
            self._call("the receiver of refusals", self._receiver.refused, line)

    def failed(self, name: str, cause: Exception, consequence: str) -> None:
        """Say that something of the owner's raised.

        Args:
            name: of it.
            cause: what it raised.
            consequence: what that costs.
        """
        line = self._error = f"{name} raised {type(cause).__name__}: {cause}; {consequence}, mend it"
        self._failing.add(name)
        self._board.warn_of_device(f"callback/{name}", line)
        if name not in self._said:
            self._said.add(name)
            self.doubt(line)

    def worked(self, name: str) -> None:
        """It did not raise this time."""
        if name in self._failing:
            self._failing.remove(name)
            self._board.warn_of_device(f"callback/{name}", "")

    def _call(self, name: str, callback: Callable[_P, None], *args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            callback(*args, **kwargs)
        except Exception as cause:  # noqa: BLE001 - whoever listens must not be able to end publishing
            self.failed(name, cause, "publishing goes on without it")
        else:
            self.worked(name)


TURN_S = 1.0  # longest wait of one turn: the keep-alive is looked at so often
_ANSWER_S = 10.0  # until a broker answers to CONNECT
_HELD_S = 10.0  # a connection that lasted so long was a good one; after a shorter one the back-off goes on growing
_RIVALRY = 3  # connections in a row that the broker took, and that soon were lost while it stayed there
_RIVAL = (
    "; soon after the broker took it, and again and again: does another program have the same site and device? "
    "give each its own name (--device, or [device] in a file)"
)
_FLUSH_SHARE = 0.75  # of the time that closing has: results until here ...
_FAREWELL_SHARE = 0.95  # ... the offline message until here, and the rest for the thread to end


class PublishSession:
    """Takes messages from their queues to a broker until it is told to finish.

    Args:
        queues: where results and pictures wait.
        events: where events wait.
        board: what the device says of itself.
        topics: where its messages go.
        make_link: makes the next connection.
        backoff: how long to wait before it.
        callbacks: are told when the state changes, and where something is not wrong yet.
        stall_s: seconds without an answer, with messages on their way, after which a connection is given up.
        turn_s: longest wait of one turn; what comes from the broker is seen so soon.
    """

    def __init__(
        self,
        queues: Queues,
        events: EventOutbox,
        board: DeviceState,
        topics: Topics,
        make_link: Callable[[], Connection],
        backoff: Backoff,
        *,
        callbacks: Callbacks,
        stall_s: float,
        turn_s: float = TURN_S,
    ) -> None:
        self._queues = queues
        self._board = board
        self._notices = RetainedPublisher(board, topics)
        self.post, self._longest_turn_s = self._notices.post, turn_s
        self._status_topic = topics.status
        self._make_link = make_link
        self._backoff = backoff
        self._callbacks = callbacks
        self._doubts = PublishWarnings(board, callbacks.doubt)
        self._wakeup = Wakeup()
        self._flight = InFlight(stall_s)
        self._refusals = Rejections(topics, board, self._notices)
        self._supply = Sender(queues, events, self._flight, self._refusals)
        self._deadline: float | None = None
        self._farewell_at = 0.0
        self._farewell: int | None = None
        self._last_attempt = False
        self._brief = 0
        self._is_asleep = self._is_polling = False
        self._detail = ""
        self.state: State = "connecting"
        self.last_error = ""  # the latest, for people
        self.connects = 0
        events.attach(self.notify)

    def notify(self) -> None:
        """Say that a message was put; nearly free, and a system call only while answers are awaited."""
        if self._is_asleep:
            self._wakeup.ring()
        elif self._is_polling:
            self._wakeup.wake()

    def notice(self) -> None:
        """Say that there is news on the board; never blocks."""
        self._wakeup.wake()

    def telemetry(self, payload: bytes) -> None:
        """Have this published in place of an older one that was not yet; never blocks."""
        self._notices.put_telemetry(payload)
        self._wakeup.wake()

    def of_camera(self, camera: str) -> SentCounters:
        """The counts of one camera's results, which go on."""
        return self._supply.of_camera(camera)

    def of_all(self, kind: CameraKind = "result") -> SentCounters:
        """The counts of all cameras' results, or pictures, together."""
        return self._supply.of_all(kind)

    def finish(self, timeout_s: float) -> None:
        """Make `run` return within `timeout_s` seconds, having sent what it could; the first call counts."""
        if self._deadline is None:
            now = time.monotonic()
            self._notices.end()  # first: the goodbye waits for what that makes due
            self._queues.end()
            self._farewell_at = now + timeout_s * _FLUSH_SHARE
            self._deadline = now + timeout_s * _FAREWELL_SHARE
        self._wakeup.wake()

    def run(self) -> None:
        """Connect, serve, wait, and again."""
        while not self._may_stop():
            self._last_attempt = self._deadline is not None
            self._connect_once()
            self._pause()
        self._wakeup.close()
        self._report("closed", "")

    def _may_stop(self) -> bool:
        if self._deadline is None:
            return False
        is_hopeless = self._last_attempt or self.state == "refused" or time.monotonic() >= self._deadline
        return is_hopeless or self._supply.is_over

    def _connect_once(self) -> None:
        link: Connection | None = None
        is_done = False
        end: End = ""
        try:
            link = self._make_link()
            link.open()
            is_done = self._serve(link)
        except OSError as cause:
            self._brief, end = 0, "timed out" if isinstance(cause, TimeoutError) else ""
            self._report("connecting", os_error_text(cause))
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end publishing for months
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            end = "ended" if link.phase == "lost" else ""
            if not is_done:
                detail = link.detail
                if end and self._brief >= _RIVALRY:
                    detail += _RIVAL + self._supply.poison.hint
                self._report("refused" if link.phase == "refused" else "connecting", detail)
        finally:
            self._is_polling = False
            if link is not None:
                link.close(politely=is_done)
            # Where the goodbye was answered, what was answered before it is sure.
            is_answered = self._farewell is not None and self._farewell not in self._flight
            self._supply.take_back(is_orderly=is_done and is_answered, end=end)
            self._farewell = None

    def _pause(self) -> None:
        """Wait before the next connection, unless it is time to finish."""
        until = time.monotonic() + self._backoff.next_s(slow=self.state == "refused")
        while self._deadline is None and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _serve(self, link: Connection) -> bool:
        """Use one connection to its end; True when all is done and it is time to say goodbye."""
        up_at: float | None = None
        opened_at = time.monotonic()
        while link.phase in ("opening", "up"):
            if up_at is not None:
                self._say(link)  # before results: a full outbox must not keep the device from saying how it does
            elif link.phase == "up":
                up_at = self._greet(link)
            elif time.monotonic() - opened_at > _ANSWER_S:
                raise TimeoutError(f"it says nothing of MQTT for {_ANSWER_S:.0f} s: is this a broker's port?")
            if up_at is not None and time.monotonic() - up_at > _HELD_S:
                self._backoff.reset()
                self._supply.poison.relax()
                self._brief = 0
            self._fill(link)
            self._settle(link)
            self._board.release(self._supply.is_sent)
            self._doubts.look_daily(link)
            if self._deadline is not None and self._may_leave(link, self._deadline):
                return True
            self._wait(link)
            self._settle(link)
        return False

    def _greet(self, link: Connection) -> float:
        self.connects += 1
        self._brief += 1
        self._board.release(self._supply.is_sent)
        self._refusals.begin()
        self._notices.begin()
        self._say_next(link)  # and no more: a broker that sends us away at once is heard out first
        self._report("online", "")
        self._doubts.look(link)
        return time.monotonic()

    def _say(self, link: Connection) -> None:
        """Put on its way what the device has to say of itself."""
        while self._has_room(link) and self._say_next(link):
            pass

    def _say_next(self, link: Connection) -> bool:
        notice = self._notices.take()
        if notice is None:
            return False
        kind, message = notice
        if link.fits(kind, message):
            self._flight.publish(link, kind, message)
        else:
            self._doubts.say("too_large", f"a message ({kind}) of {len(message.payload)} bytes {TOO_LARGE}")
        return True

    def _may_leave(self, link: Connection, deadline: float) -> bool:
        now = time.monotonic()
        if link.phase != "up":
            return now >= deadline or self._supply.is_over
        if self._farewell is None:  # also at the deadline: who leaves without a word takes the last will along
            is_done = self._supply.is_empty and not self._flight and self._notices.wait_s() > 0
            if not is_done and now < self._farewell_at:
                return False
            farewell = Message(self._status_topic, self._board.offline("shutdown"))
            self._farewell = self._flight.publish(link, "status", farewell)
        return now >= deadline or self._farewell not in self._flight

    def _has_room(self, link: Connection) -> bool:
        window = 1 if self._supply.poison.is_suspected else link.window
        return link.phase == "up" and len(self._flight) < window and self._farewell is None

    def _fill(self, link: Connection) -> None:
        """Put what is of a camera on its way, at most one window of it."""
        while self._has_room(link) and self._supply.send_next(link):
            pass
        self._look_at_errors()

    def _settle(self, link: Connection) -> None:
        self._supply.settle(link)
        if refusal := self._refusals.take_line():
            self._report(self.state, refusal)
        self._look_at_errors()

    def _look_at_errors(self) -> None:
        doubts, error = self._supply.take_errors()
        for name, line in doubts.items():
            self._doubts.say(name, line)
        self.last_error = error or doubts.get("too_large") or self.last_error

    def _wait(self, link: Connection) -> None:
        self._flight.check_stall()
        if self._flight or link.phase != "up":
            self._is_polling = self._has_room(link)
            link.turn(0.0 if self._is_polling and self._supply.has_next(link) else self._turn_s(link), self._wakeup)
            self._is_polling = False
            return
        # Nothing is expected from the broker: waiting for an event, and not for the socket, makes `put` cheaper.
        self._is_asleep = True
        # Looked at after `_is_asleep` is set: what is put in between rings, or is seen here.
        if not self._supply.has_next(link):
            self._wakeup.wait(self._turn_s(link))
        self._is_asleep = False
        link.turn(0.0, self._wakeup)

    def _turn_s(self, link: Connection) -> float:
        longest_s = self._longest_turn_s
        wait_s = longest_s
        if self._has_room(link):
            wait_s = min(longest_s, self._notices.wait_s(), self._queues.wait_s())
        if self._deadline is None:
            return wait_s
        now = time.monotonic()
        until = self._deadline if self._farewell is not None or now >= self._farewell_at else self._farewell_at
        return min(wait_s, max(0.0, until - now))

    def _report(self, state: State, detail: str) -> None:
        self.last_error = detail or self.last_error
        if (state, detail) == (self.state, self._detail):
            return
        self.state, self._detail = state, detail
        self._callbacks.state(state, detail)
        self.last_error = self._callbacks.take_error() or self.last_error
