"""Delivery: what the publisher's thread does, from the first connection to the goodbye.

Owns the window of messages on their way, the order of the first and the last of them, and the counting; one thread runs
all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.link import Kind, Link
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.outbox import MemoryOutbox, Message
from edge_sdk.publishing.sent import Sent
from edge_sdk.publishing.stats import State
from edge_sdk.publishing.topics import Topics
from edge_sdk.publishing.wakeup import Wakeup

_TURN_S = 1.0  # longest wait of one turn: the keep-alive is looked at so often
_HELD_S = 10.0  # a connection that lasted so long was a good one; after a shorter one the back-off goes on growing
_RIVALRY = 3  # connections in a row that the broker took, and that soon were lost while it stayed there
_RIVAL = (
    "; soon after the broker took it, and again and again: does another program have the same site and device? "
    "give each its own --device"
)
_TOO_LARGE = "is above the broker's maximum packet size"
_FLUSH_SHARE = 0.75  # of the time that closing has: results until here ...
_FAREWELL_SHARE = 0.95  # ... the offline message until here, and the rest for the thread to end


class Delivery:
    """Takes messages from an outbox to a broker until it is told to finish.

    Args:
        outbox: where results wait.
        board: what the device says of itself.
        topics: where its messages go.
        make_link: makes the next connection.
        backoff: how long to wait before it.
        on_state: called with the state and a detail when one of them changes.
        stall_s: seconds without an answer, with messages on their way, after which a connection is given up.
    """

    def __init__(
        self,
        outbox: MemoryOutbox,
        board: Board,
        topics: Topics,
        make_link: Callable[[], Link],
        backoff: Backoff,
        *,
        on_state: Callable[[State, str], None] | None,
        stall_s: float,
    ) -> None:
        self._outbox = outbox
        self._board = board
        self._notices = Notices(board, topics)
        self._status_topic = topics.status
        self._make_link = make_link
        self._backoff = backoff
        self._on_state = on_state
        self._stall_s = stall_s
        self._wakeup = Wakeup()
        self._in_flight: dict[int, Message | None] = {}  # None is no result
        self._deadline: float | None = None
        self._farewell_at = 0.0
        self._farewell: int | None = None
        self._last_attempt = False
        self._brief = 0
        self._progress_at = 0.0
        self._is_asleep = self._is_polling = False
        self._cameras: dict[str, Sent] = {}
        self._detail = ""
        self.state: State = "connecting"
        self.last_error = ""
        self.connects = 0

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
        """The counts of one camera, which go on."""
        return self._cameras.get(camera) or self._cameras.setdefault(camera, Sent())

    def of_all(self) -> Sent:
        """The counts of all cameras together."""
        total = Sent()
        for counts in list(self._cameras.values()):
            total.add(counts)
        return total

    def finish(self, timeout_s: float) -> None:
        """Make `run` return within `timeout_s` seconds, having sent what it could; the first call counts."""
        if self._deadline is None:
            now = time.monotonic()
            self._notices.end()  # first: the goodbye waits for what that makes due
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
        return is_hopeless or not len(self._outbox)

    def _connect_once(self) -> None:
        import ssl  # what speaks MQTT has loaded it by then; whoever only wants this module need not wait for it

        link: Link | None = None
        is_done = False
        try:
            link = self._make_link()
            link.open()
            is_done = self._serve(link)
        except ssl.SSLCertVerificationError as cause:
            self._report("refused", f"the broker's certificate is not trusted: {cause.strerror or cause}")
        except OSError as cause:
            self._brief = 0
            self._report("connecting", str(cause.strerror or cause) or type(cause).__name__)
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end publishing for months
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            if not is_done:
                is_rivalry = link.phase == "lost" and self._brief >= _RIVALRY
                detail = link.detail + (_RIVAL if is_rivalry else "")
                self._report("refused" if link.phase == "refused" else "connecting", detail)
        finally:
            self._is_polling = False
            if link is not None:
                link.close(politely=is_done)
            self._take_back()

    def _take_back(self) -> None:
        self._outbox.give_back([m for m in self._in_flight.values() if m is not None])
        self._in_flight.clear()
        self._farewell = None

    def _pause(self) -> None:
        """Wait before the next connection, unless it is time to finish."""
        until = time.monotonic() + self._backoff.next_s(slow=self.state == "refused")
        while self._deadline is None and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _serve(self, link: Link) -> bool:
        """Use one connection to its end; True when all is done and it is time to say goodbye."""
        up_at: float | None = None
        while link.phase in ("opening", "up"):
            if up_at is not None:
                self._say(link)  # before results: a full outbox must not keep the device from saying how it does
            elif link.phase == "up":
                up_at = self._greet(link)
            if up_at is not None and time.monotonic() - up_at > _HELD_S:
                self._backoff.reset()
                self._brief = 0
            self._fill(link)
            self._settle(link)
            self._board.release(self._is_sent)
            if self._deadline is not None and self._may_leave(link, self._deadline):
                return True
            self._wait(link)
            self._settle(link)
        return False

    def _greet(self, link: Link) -> float:
        self.connects += 1
        self._brief += 1
        self._board.release(self._is_sent)
        self._notices.begin()
        self._say_next(link)  # and no more: a broker that sends us away at once is heard out first
        self._report("online", "")
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
            self._publish(link, kind, message)
        else:
            self.last_error = f"a {kind} of {len(message.payload)} bytes {_TOO_LARGE}"
        return True

    def _is_sent(self, camera: str) -> bool:
        return not self._outbox.of_camera(camera).queued

    def _publish(self, link: Link, kind: Kind, message: Message) -> int:
        self._mark_progress_if_first()
        number = link.publish(kind, message)
        self._in_flight[number] = message if kind == "result" else None
        return number

    def _mark_progress_if_first(self) -> None:
        if not self._in_flight:
            self._progress_at = time.monotonic()

    def _may_leave(self, link: Link, deadline: float) -> bool:
        now = time.monotonic()
        if now >= deadline:
            return True
        if link.phase != "up":
            return not len(self._outbox)
        if self._farewell is None:
            is_done = not (len(self._outbox) or self._in_flight or self._notices.wait_s() <= 0)
            if not is_done and now < self._farewell_at:
                return False
            farewell = Message(self._status_topic, self._board.offline("shutdown"))
            self._farewell = self._publish(link, "status", farewell)
        return self._farewell not in self._in_flight

    def _has_room(self, link: Link) -> bool:
        return link.phase == "up" and len(self._in_flight) < link.window and self._farewell is None

    def _fill(self, link: Link) -> None:
        """Put results on their way, at most one window of them."""
        while self._has_room(link) and (message := self._outbox.take()) is not None:
            if link.fits("result", message):
                self._publish(link, "result", message)
                continue
            self.of_camera(message.camera).too_large += 1
            self.last_error = f"a result of {len(message.payload)} bytes {_TOO_LARGE}"

    def _settle(self, link: Link) -> None:
        for number, complaint in link.finished():
            self._progress_at = time.monotonic()
            message = self._in_flight.pop(number, None)
            if complaint:
                self._report(self.state, f"the broker did not take a message: {complaint}")
            if message is not None:
                self.of_camera(message.camera).count(is_answer=link.is_acknowledging, complaint=complaint)

    def _wait(self, link: Link) -> None:
        if self._in_flight and time.monotonic() - self._progress_at > self._stall_s:
            raise TimeoutError(f"the broker answered nothing for {self._stall_s:.0f} s")
        if self._in_flight or link.phase != "up":
            self._is_polling = self._has_room(link)
            link.turn(0.0 if self._is_polling and len(self._outbox) else self._turn_s(link), self._wakeup)
            self._is_polling = False
            return
        # Nothing is expected from the broker: waiting for an event, and not for the socket, makes `put` cheaper.
        self._is_asleep = True
        if not len(self._outbox):  # looked at after `_is_asleep` is set: what is put in between rings, or is seen here
            self._wakeup.wait(self._turn_s(link))
        self._is_asleep = False
        link.turn(0.0, self._wakeup)

    def _turn_s(self, link: Link) -> float:
        wait_s = min(_TURN_S, self._notices.wait_s()) if self._has_room(link) else _TURN_S
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
        if self._on_state is not None:
            try:
                self._on_state(state, detail)
            except Exception as cause:  # noqa: BLE001 - whoever listens must not be able to end publishing
                self.last_error = f"on_state failed: {type(cause).__name__}: {cause}"
