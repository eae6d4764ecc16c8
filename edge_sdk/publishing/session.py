"""PublishSession: the publisher's thread, from the first connection to the message that the device goes offline.

The session makes one connection after the other and serves each to its end. One turn sends the device's own messages
(status, state, telemetry, answers), then those of cameras as far as the window has room: events first, then results and
pictures, which keep two places in the window, so that results arrive at once from a device with a week's events to
send. Then it settles the broker's answers, and waits for the network or for something to send.

`Sender` knows what goes next, what is in flight and what was acknowledged; what did not arrive goes back to its queue
when the connection ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from edge_sdk.core.errors import os_error_text
from edge_sdk.core.threads import Backoff, Wakeup
from edge_sdk.messages.schema import Message, MessageKind
from edge_sdk.outbox.event import QueuedEvent
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.retained import DeviceState
from edge_sdk.publishing.settings import NOT_AUTHORIZED, QUOTA_EXCEEDED, UNSENT_BYTES, PublishOutcome

if TYPE_CHECKING:
    from edge_sdk.publishing.client import MqttConnection  # loads paho

ConnectionState: TypeAlias = Literal["connecting", "online", "refused", "closed"]
End: TypeAlias = Literal["", "ended", "timed out"]
"""How a connection ended: by ourselves or by a failure (""); by the broker; by a timeout without any packet."""

_SUSPICIOUS = 2  # consecutive connections that the broker ended with a camera's message in flight
# Connections that ended with the same message alone in flight, after which that message is given up. The number doubles
# for the next message as long as the broker accepts none: one that crashes at any message must not cost them all.
_SURE = 3


class PoisonMessageDetector:
    """Finds the message at which a broker ends connections, so that it does not hold up all others for ever.

    Before MQTT 5 a broker cannot reject a message (too large, not allowed), and some do not with MQTT 5 either: they
    close the connection. The messages in flight are then sent again, and the broker closes again. A message that is too
    large for a slow link has the same effect, because sending it always takes longer than the keep-alive allows.
    """

    def __init__(self) -> None:
        self._ends = 0
        self._needed = _SURE
        self._suspect: tuple[End, str, int | None] = "", "", None
        self._times = 0  # consecutive ends with this suspect

    @property
    def is_suspected(self) -> bool:
        """Whether messages are sent one by one, each after the answer to the one before."""
        return self._ends >= _SUSPICIOUS

    def relax(self) -> None:
        """Drop the suspicion, because a connection lasted; over a slow link it always does."""
        self._ends = 0
        if self._suspect[0] == "ended":
            self._times = 0

    def took(self) -> None:
        """Record that the broker accepted a camera's message."""
        self._needed = _SURE

    def ended(self, in_flight: Sequence[Message], end: End = "ended") -> Message | None:
        """Record the end of a connection; return the message to blame, or None where that is not sure."""
        # For a timeout smaller messages are not to blame, because the kernel takes them at once.
        least = UNSENT_BYTES if end == "timed out" else -1
        found = [message for message in in_flight if message.camera and len(message.payload) > least]
        if not end or not found:
            return None
        is_sure = end == "timed out" or (self.is_suspected and len(in_flight) == 1)
        self._ends += end == "ended"
        if not is_sure:
            return None
        largest = max(found, key=lambda message: len(message.payload))
        suspect = end, largest.topic, largest.seq
        self._suspect, self._times = suspect, self._times + 1 if suspect == self._suspect else 1
        if self._times < (_SURE if end == "timed out" else self._needed):
            return None
        self._times = 0
        if end == "ended":
            self._needed *= 2
            self._ends = 0
        return largest


class SentCounters(msgspec.Struct):
    """The numbers of messages sent, accepted and rejected by the broker, and too large to be sent."""

    sent: int = 0
    acknowledged: int = 0
    rejected: int = 0
    too_large: int = 0


_DAY_S = 86400.0
_REJECTED = "messages_refused"
_TOO_LARGE = "is above the broker's maximum packet size and is not sent; raise that there (max_packet_size)"


class PublishWarnings:
    """Warnings about a connection: in the device's state for as long as they last, and logged once.

    Each connection is checked when it is up, and once a day while it lasts, for example for a certificate that expires
    soon or a broker without MQTT 5. Rejected retained messages are offered again. The outbox warns of rejected events.
    """

    def __init__(self, device_state: DeviceState, on_warning: Callable[[str], None]) -> None:
        self._device_state, self._retained = device_state, device_state.retained
        self._own, self._response = self._retained.topics.own, self._retained.topics.of("response")
        self._on_warning = on_warning
        self._look_at = 0.0
        self._said: set[str] = set()  # names of warnings
        self._rejected: dict[str, str] = {}  # lines by topic
        self._reasons: set[str] = set()  # reasons that were logged on this connection
        self.last_error = ""

    def begin(self, connection: MqttConnection) -> None:
        """Reset the warnings for a new connection, which may have other rights."""
        self._rejected.clear()
        self._reasons.clear()
        self._device_state.warn_of_device(_REJECTED, "")
        self._look(connection)

    def look_daily(self, connection: MqttConnection) -> None:
        """Check a connection if the last check was a day ago."""
        if time.monotonic() >= self._look_at:
            self._look(connection)

    def say(self, name: str, line: str) -> None:
        """Set a warning; of one name only the first counts until the next check; an empty line clears it."""
        if line and name in self._said:
            return
        (self._said.add if line else self._said.discard)(name)
        self._tell(name, line)

    def left_out(self, line: str) -> None:
        """Warn that a message is not sent, or is given up."""
        self.last_error = line
        self.say("too_large", line)

    def settle(self, topic: str, answer: PublishOutcome) -> str:
        """Record an answer; return a line for people, one for all topics that lack the same right."""
        if topic.startswith(self._response + "/"):  # the requester chooses the rest of the topic
            topic = self._response
        if not answer.complaint:
            if self._rejected.pop(topic, ""):
                self._device_state.warn_of_device(_REJECTED, next(iter(self._rejected.values()), ""))
            return ""
        self._retained.repeat(topic, is_refused=True)
        if topic in self._rejected:
            return ""
        reason, is_own = answer.complaint, topic.startswith(self._own)
        if answer.code == NOT_AUTHORIZED:
            reason += f"; its ACL must let this device write {f'below {self._own}' if is_own else 'there'}"
        self._rejected[topic] = line = f"the broker did not take a message on {topic}: {reason}"
        self._device_state.warn_of_device(_REJECTED, next(iter(self._rejected.values())))
        reason = reason if is_own else line
        if reason in self._reasons:
            return ""
        self._reasons.add(reason)
        return line

    def _look(self, connection: MqttConnection) -> None:
        self._look_at = time.monotonic() + _DAY_S
        found = {**dict.fromkeys(self._said, ""), **connection.warnings()}
        self._said.clear()
        for name, line in found.items():
            self._tell(name, line)

    def _tell(self, name: str, line: str) -> None:
        if self._device_state.warn_of_device(name, line) and line:
            self._on_warning(line)


_ENDS_CONNECTION = (
    "the broker ended the connection each time it got one of {} bytes; raise its limit of a message (max_packet_size, "
    "message_size_limit), or have its ACL let this device write it"
)
_SLOW = (
    "one of {} bytes took longer on this link than the broker may be silent, each time; send less at once "
    "([publish.snapshots] width, quality)"
)
_HELD = (
    "the broker does not take events of {}: {}; they wait and are tried again; let this device write there in the "
    "broker's ACL"
)
_FOR_RESULTS = 2  # places of the window that are kept for results
_FINAL_CODES = frozenset({0x90, 0x99})  # final for a message: topic name, payload format invalid
_MAX_TRIES = 8  # tries of one event that the broker rejects with another reason code


class Sender:
    """Chooses the next message for a connection, tracks messages in flight and settles their answers.

    A connection with messages in flight and no answer for `stall_s` seconds is given up. After a rejected event no
    event is sent for `hold`.
    """

    def __init__(self, queues: Queues, warnings: PublishWarnings, stall_s: float, hold: Backoff | None = None) -> None:
        self._queues, self._events, self._warnings = queues, queues.events, warnings
        self._stall_s, self._hold = stall_s, hold or Backoff()
        self.detector = PoisonMessageDetector()
        self._counts: dict[tuple[str, MessageKind], SentCounters] = {}
        self._in_flight: dict[int, Message] = {}  # by the connection's numbers, oldest first
        self._events_in_flight = 0
        self._progress_at = 0.0
        self._tries: Counter[int] = Counter()  # of events that the broker rejected, by id
        self._taken: set[str] = set()  # topics of which this connection took an event, and has denied none since
        self._holds_denied = False

    def counts(self, kind: MessageKind, camera: str | None = None) -> SentCounters:
        """Return the counts of results or pictures, of one camera or of all; they go on over connections."""
        if camera is not None:
            return self._counts.get((camera, kind)) or self._counts.setdefault((camera, kind), SentCounters())
        found = [msgspec.structs.astuple(counts) for (_, of), counts in list(self._counts.items()) if of == kind]
        return SentCounters(*map(sum, zip(*found, strict=True)))

    @property
    def is_over(self) -> bool:
        """Whether no message would be lost or late without another connection."""
        return not len(self._queues) and (self._events.is_durable or not self._events.waiting)

    def is_empty(self, connection: MqttConnection) -> bool:
        """Return whether nothing is in flight, and nothing waits that could be sent."""
        is_stuck = self._events.is_held or not connection.acknowledges("event")
        return not self._in_flight and not len(self._queues) and (not self._events.waiting or is_stuck)

    def has_room(self, connection: MqttConnection) -> bool:
        """Return whether one more message may be in flight."""
        window = 1 if self.detector.is_suspected else connection.window
        return connection.phase == "up" and len(self._in_flight) < window

    def has_next(self, connection: MqttConnection) -> bool:
        """Return whether a camera's message can be sent now and the window has room."""
        return bool(len(self._queues)) or (self._events.is_ready and self._may_send_event(connection))

    def is_in_flight(self, number: int | None) -> bool:
        """Return whether the message that `send` gave this number is not answered yet."""
        return number in self._in_flight

    def send(self, connection: MqttConnection, message: Message) -> int | None:
        """Send one message; return its number on this connection, or None where it is too large for the broker."""
        if not connection.fits(message):
            if isinstance(message, QueuedEvent):
                why = f"its {len(message.payload)} bytes are above the broker's maximum packet size"
                self._events.reject(message, why)
            elif message.camera:
                self.counts(message.kind, message.camera).too_large += 1
            self._warnings.left_out(f"a message ({message.kind}) of {len(message.payload)} bytes {_TOO_LARGE}")
            return None
        if not self._in_flight:
            self._progress_at = time.monotonic()
        number = connection.publish(message)
        self._in_flight[number] = message
        self._events_in_flight += message.kind == "event"
        return number

    def send_next(self, connection: MqttConnection) -> bool:
        """Send the next message of a camera; return False where there is none."""
        message: Message | None = self._events.take() if self._may_send_event(connection) else None
        message = message or self._queues.take(in_turn=self.detector.is_suspected)
        if message is None:
            return False
        self.send(connection, message)
        return True

    def settle(self, connection: MqttConnection) -> list[str]:
        """Settle messages that left or were answered; return lines about rejections to log.

        Raises:
            TimeoutError: messages are in flight, and nothing was answered for too long.
        """
        if connection.heard():
            self._events.confirm()
        lines = []
        for answer in connection.finished():
            self._progress_at = time.monotonic()
            if (message := self._in_flight.pop(answer.number, None)) is None:
                continue
            if isinstance(message, QueuedEvent):
                self._settle_event(message, answer)
                continue
            lines.append(self._warnings.settle(message.topic, answer))
            if message.camera:
                counts, is_answer = self.counts(message.kind, message.camera), connection.acknowledges(message.kind)
                counts.sent += 1
                counts.rejected += bool(answer.complaint)
                counts.acknowledged += is_answer and not answer.complaint
                if is_answer:
                    self.detector.took()
        if self._in_flight and time.monotonic() - self._progress_at > self._stall_s:
            raise TimeoutError(f"the broker answered nothing for {self._stall_s:.0f} s")
        return [line for line in lines if line]

    def end_connection(self, *, is_orderly: bool, end: End) -> None:
        """Put undelivered messages back, so that they are sent first again; see `EventOutbox.end_connection`."""
        in_flight = list(self._in_flight.values())
        if culprit := self.detector.ended(in_flight, end):
            why = (_ENDS_CONNECTION if end == "ended" else _SLOW).format(len(culprit.payload))
            if isinstance(culprit, QueuedEvent):
                self._events.reject(culprit, why)
            else:
                counts = self.counts(culprit.kind, culprit.camera)
                counts.sent, counts.rejected = counts.sent + 1, counts.rejected + 1
                self._warnings.left_out(f"a message ({culprit.kind}) is given up: {why}")
        self._queues.give_back(message for message in in_flight if message is not culprit)
        self._events.end_connection(is_orderly=is_orderly)
        self._in_flight.clear()
        self._events_in_flight = 0
        self._taken.clear()
        self._holds_denied = False

    def _may_send_event(self, connection: MqttConnection) -> bool:
        # Without acknowledgements (QoS 0) an event would count as delivered once it is sent: it waits.
        has_place = self._events_in_flight < max(1, connection.window - _FOR_RESULTS)
        return has_place and connection.acknowledges("event")

    def _settle_event(self, event: QueuedEvent, answer: PublishOutcome) -> None:
        self._events_in_flight -= 1
        if not answer.complaint:
            self._taken.add(event.topic)
            if self._holds_denied:
                self._holds_denied = False
                self._warnings.say("events_held", "")
            self._hold.reset()
            self.detector.took()
            self._tries.pop(event.id, None)
            self._events.deliver(event)
            return
        self._warnings.last_error = f"the broker did not take an event on {event.topic}: {answer.complaint}"
        # "Not authorized" is final for a topic if the broker accepts events of other topics. Otherwise it may be a
        # mistake in the ACL, for which no event is given up, however often it is tried. If a topic has lost its
        # permission, all may have. A quota depends on the broker's load, not on the message.
        is_denied, was_taken = answer.code == NOT_AUTHORIZED, event.topic in self._taken
        is_final = answer.code in _FINAL_CODES or (is_denied and bool(self._taken) and not was_taken)
        if was_taken if is_denied else answer.code != QUOTA_EXCEEDED:
            self._tries[event.id] += 1
        if is_denied and was_taken:
            self._taken.clear()
        if is_final or self._tries[event.id] >= _MAX_TRIES:
            self._tries.pop(event.id, None)
            self._events.reject(event, answer.complaint)
            return
        # Other rejected events of this window come back, too; the back-off grows by one step for all of them.
        self._events.give_back(event, 0.0 if self._events.is_held else self._hold.next_s())
        if is_denied and not self._holds_denied:
            self._holds_denied = True
            self._warnings.say("events_held", _HELD.format(event.topic, answer.complaint))


_TURN_S = 1.0  # longest wait of one turn, and so the time between two checks of the keep-alive
_ANSWER_S = 10.0  # longest wait for the broker's answer to CONNECT
_HELD_S = 10.0  # after a connection of at least this duration the back-off begins again
_RIVALRY = 3  # consecutive connections that were accepted and soon lost, while the broker stayed up
_RIVAL = (
    "; soon after the broker took it, and again and again: does another program have the same site and device? "
    "give each its own name (--device, or [device] in a file)"
)
_OR_POISON = "; or is there a message that it does not take? Messages are sent one by one now, to find it"
_FLUSH_SHARE = 0.75  # share of the closing time in which results are sent ...
_OFFLINE_SHARE = 0.95  # ... share until which the offline message is sent; the rest is for the thread to end


class PublishSession:
    """Sends queued messages to a broker until `finish` is called; see `MqttPublisher` for the arguments."""

    def __init__(
        self,
        queues: Queues,
        device_state: DeviceState,
        make_connection: Callable[[], MqttConnection],
        backoff: Backoff,
        *,
        on_state: Callable[[ConnectionState, str], None],
        on_warning: Callable[[str], None],
        stall_s: float,
    ) -> None:
        self.queues, self._device_state, self._on_state = queues, device_state, on_state
        self._make_connection, self._backoff = make_connection, backoff
        self.retained = device_state.retained
        self._warnings = PublishWarnings(device_state, on_warning)
        self._sender = Sender(queues, self._warnings, stall_s)
        self._wakeup = Wakeup()
        self._deadline: float | None = None
        self._offline_at = 0.0
        self._offline: int | None = None  # the number of the offline message, once it is sent
        self._is_last_attempt = False
        self._brief = 0  # connections in a row that were lost soon after the broker took them
        self._detail = ""
        self.state: ConnectionState = "connecting"
        self.connects = 0  # connections that the broker accepted
        queues.events.attach(self.notify)
        self.retained.attach(self.notify)

    @property
    def last_error(self) -> str:
        """The last error, for people; empty while there was none."""
        return self._warnings.last_error

    def notify(self) -> None:
        """Wake the session, because there is something to send; never block."""
        self._wakeup.wake()

    def sent(self, kind: MessageKind, camera: str | None = None) -> SentCounters:
        """Return the counts of sent results or pictures, of one camera or of all."""
        return self._sender.counts(kind, camera)

    def finish(self, timeout_s: float) -> None:
        """Make `run` send what it can and return within `timeout_s` seconds; only the first call counts."""
        if self._deadline is None:
            now = time.monotonic()
            self.retained.end()  # first, because the offline message waits for what this makes due
            self.queues.end()
            self._offline_at = now + timeout_s * _FLUSH_SHARE
            self._deadline = now + timeout_s * _OFFLINE_SHARE
        self._wakeup.wake()

    def run(self) -> None:
        """Connect, serve the connection, wait, and repeat."""
        while not self._may_stop():
            self._is_last_attempt = self._deadline is not None
            self._connect_once()
            self._pause()
        self._wakeup.close()
        self._report("closed", "")

    def _may_stop(self) -> bool:
        if self._deadline is None:
            return False
        is_hopeless = self._is_last_attempt or self.state == "refused" or time.monotonic() >= self._deadline
        return is_hopeless or self._sender.is_over

    def _connect_once(self) -> None:
        connection: MqttConnection | None = None
        is_done = False
        end: End = ""
        try:
            connection = self._make_connection()
            connection.open()
            is_done = self._serve(connection)
        except OSError as cause:
            self._brief, end = 0, "timed out" if isinstance(cause, TimeoutError) else ""
            self._report("connecting", os_error_text(cause))
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end publishing for months
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            end = "ended" if connection.phase == "lost" else ""
            if not is_done:
                detail = connection.detail
                if end and self._brief >= _RIVALRY:
                    detail += _RIVAL + (_OR_POISON if self._sender.detector.is_suspected else "")
                self._report("refused" if connection.phase == "refused" else "connecting", detail)
        finally:
            if connection is not None:
                connection.close(politely=is_done)
            # If the broker answered the offline message, earlier acknowledgements are final.
            is_answered = self._offline is not None and not self._sender.is_in_flight(self._offline)
            self._sender.end_connection(is_orderly=is_done and is_answered, end=end)
            self._offline = None

    def _pause(self) -> None:
        """Wait before the next connection, unless it is time to finish."""
        until = time.monotonic() + self._backoff.next_s(slow=self.state == "refused")
        while self._deadline is None and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _serve(self, connection: MqttConnection) -> bool:
        """Use one connection to its end; return True when all is sent, so that the connection can end politely."""
        up_at: float | None = None
        opened_at = time.monotonic()
        while connection.phase in ("opening", "up"):
            if up_at is not None:  # before results: a full outbox must not keep the device from saying how it does
                while self._has_room(connection) and self._send_own(connection):
                    pass
            elif connection.phase == "up":
                up_at = self._greet(connection)
            elif time.monotonic() - opened_at > _ANSWER_S:
                raise TimeoutError(f"it says nothing of MQTT for {_ANSWER_S:.0f} s: is this a broker's port?")
            if up_at is not None and time.monotonic() - up_at > _HELD_S:
                self._backoff.reset()
                self._sender.detector.relax()
                self._brief = 0
            while self._has_room(connection) and self._sender.send_next(connection):
                pass
            self._settle(connection)
            self._warnings.look_daily(connection)
            if self._deadline is not None and self._may_leave(connection, self._deadline):
                return True
            has_next = self._has_room(connection) and self._sender.has_next(connection)
            connection.turn(0.0 if has_next else self._turn_s(connection), self._wakeup)
            self._settle(connection)
        return False

    def _greet(self, connection: MqttConnection) -> float:
        self.connects += 1
        self._brief += 1
        self.retained.begin()
        self._send_own(connection)  # only one: a broker may end the connection at once, and its reason is read first
        self._report("online", "")
        self._warnings.begin(connection)
        return time.monotonic()

    def _send_own(self, connection: MqttConnection) -> bool:
        """Send the next message of the device itself; return False where there is none."""
        found = self.retained.take()
        if found is not None:
            self._sender.send(connection, found)
        return found is not None

    def _may_leave(self, connection: MqttConnection, deadline: float) -> bool:
        now = time.monotonic()
        if connection.phase != "up":
            return now >= deadline or self._sender.is_over
        # Also at the deadline: a polite end drops the last will, so only this message says `offline`.
        if self._offline is None:
            is_done = self._sender.is_empty(connection) and self.retained.wait_s() > 0
            if not is_done and now < self._offline_at:
                return False
            offline = Message(self.retained.topics.of("status"), self._device_state.offline("shutdown"), kind="status")
            self._offline = self._sender.send(connection, offline)
        return now >= deadline or not self._sender.is_in_flight(self._offline)

    def _has_room(self, connection: MqttConnection) -> bool:
        return self._offline is None and self._sender.has_room(connection)

    def _settle(self, connection: MqttConnection) -> None:
        for line in self._sender.settle(connection):
            self._report(self.state, line)

    def _turn_s(self, connection: MqttConnection) -> float:
        wait_s = _TURN_S
        if self._has_room(connection):
            wait_s = min(wait_s, self.retained.wait_s(), self.queues.wait_s())
        if self._deadline is None:
            return wait_s
        now = time.monotonic()
        until = self._deadline if self._offline is not None or now >= self._offline_at else self._offline_at
        return min(wait_s, max(0.0, until - now))

    def _report(self, state: ConnectionState, detail: str) -> None:
        self._warnings.last_error = detail or self._warnings.last_error
        if (state, detail) == (self.state, self._detail):
            return
        self.state, self._detail = state, detail
        self._on_state(state, detail)
