"""Delivery: what the publisher's thread does, from the first connection to the goodbye.

Owns the connections, and the order of the first and the last messages of each; one thread runs all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.callbacks import Callbacks
from edge_sdk.publishing.doubts import Doubts
from edge_sdk.publishing.durable import EventOutbox
from edge_sdk.publishing.flight import Flight
from edge_sdk.publishing.link import Link
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.outbox import CameraKind, Message
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.refusals import Refusals
from edge_sdk.publishing.sent import Sent
from edge_sdk.publishing.shortage import in_words
from edge_sdk.publishing.stats import State
from edge_sdk.publishing.supply import TOO_LARGE, End, Supply
from edge_sdk.publishing.topics import Topics
from edge_sdk.publishing.wakeup import Wakeup

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


class Delivery:
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
        board: Board,
        topics: Topics,
        make_link: Callable[[], Link],
        backoff: Backoff,
        *,
        callbacks: Callbacks,
        stall_s: float,
        turn_s: float = TURN_S,
    ) -> None:
        self._queues = queues
        self._board = board
        self._notices = Notices(board, topics)
        self.post, self._longest_turn_s = self._notices.post, turn_s
        self._status_topic = topics.status
        self._make_link = make_link
        self._backoff = backoff
        self._callbacks = callbacks
        self._doubts = Doubts(board, callbacks.doubt)
        self._wakeup = Wakeup()
        self._flight = Flight(stall_s)
        self._refusals = Refusals(topics, board, self._notices)
        self._supply = Supply(queues, events, self._flight, self._refusals)
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

    def of_camera(self, camera: str) -> Sent:
        """The counts of one camera's results, which go on."""
        return self._supply.of_camera(camera)

    def of_all(self, kind: CameraKind = "result") -> Sent:
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
        link: Link | None = None
        is_done = False
        end: End = ""
        try:
            link = self._make_link()
            link.open()
            is_done = self._serve(link)
        except OSError as cause:
            self._brief, end = 0, "timed out" if isinstance(cause, TimeoutError) else ""
            self._report("connecting", in_words(cause))
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

    def _serve(self, link: Link) -> bool:
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

    def _greet(self, link: Link) -> float:
        self.connects += 1
        self._brief += 1
        self._board.release(self._supply.is_sent)
        self._refusals.begin()
        self._notices.begin()
        self._say_next(link)  # and no more: a broker that sends us away at once is heard out first
        self._report("online", "")
        self._doubts.look(link)
        return time.monotonic()

    def _say(self, link: Link) -> None:
        """Put on its way what the device has to say of itself."""
        while self._has_room(link) and self._say_next(link):
            pass

    def _say_next(self, link: Link) -> bool:
        notice = self._notices.take()
        if notice is None:
            return False
        kind, message = notice
        if link.fits(kind, message):
            self._flight.publish(link, kind, message)
        else:
            self._doubts.say("too_large", f"a message ({kind}) of {len(message.payload)} bytes {TOO_LARGE}")
        return True

    def _may_leave(self, link: Link, deadline: float) -> bool:
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

    def _has_room(self, link: Link) -> bool:
        window = 1 if self._supply.poison.is_suspected else link.window
        return link.phase == "up" and len(self._flight) < window and self._farewell is None

    def _fill(self, link: Link) -> None:
        """Put what is of a camera on its way, at most one window of it."""
        while self._has_room(link) and self._supply.send_next(link):
            pass
        self._look_at_errors()

    def _settle(self, link: Link) -> None:
        self._supply.settle(link)
        if refusal := self._refusals.take_line():
            self._report(self.state, refusal)
        self._look_at_errors()

    def _look_at_errors(self) -> None:
        doubts, error = self._supply.take_errors()
        for name, line in doubts.items():
            self._doubts.say(name, line)
        self.last_error = error or doubts.get("too_large") or self.last_error

    def _wait(self, link: Link) -> None:
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

    def _turn_s(self, link: Link) -> float:
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
