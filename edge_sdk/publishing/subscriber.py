"""Subscriber: receives what a fleet publishes, through a broker's absence and restarts; `edge-sdk watch` reads from it.

It owns a thread, which connects with `client.MqttConnection`, again and again, and puts each message into a
`ReceiveQueue`. The queue is bounded: a reader that is slow, or pauses, costs messages and never the connection.
Messages at QoS 1 are not acknowledged while the queue is half full, so that the broker waits; the socket is read
nevertheless, because a broker takes a client that reads no answer for dead.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from edge_sdk.core.errors import os_error_text
from edge_sdk.core.threads import Backoff, Wakeup
from edge_sdk.messages.schema import Incoming
from edge_sdk.publishing.client import MqttConnection, ProtocolFallback
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import broker_tls

_MOST = 4000
_MOST_BYTES = 64_000_000
_TURN_S = 0.5
_LONGEST_PAUSE_S = 5.0  # longest pause between connections, because a person is watching
_END_S = 1.0


class ReceiveQueue:
    """Messages that wait for their reader, bounded by their number and their bytes; one thread puts, one takes.

    A single message may have more bytes. `lost` counts messages that found no room, and will not come again.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self.lost = 0
        self._most, self._most_bytes = most, most_bytes
        self._messages: deque[Incoming] = deque()
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def is_half_full(self) -> bool:
        """Whether the broker should wait."""
        return 2 * len(self._messages) >= self._most or 2 * self._bytes >= self._most_bytes

    def put(self, incoming: Incoming) -> None:
        """Append one message, or count it as lost."""
        with self._changed:
            size = len(incoming.payload)
            is_full = len(self._messages) >= self._most or self._bytes + size > self._most_bytes
            if self._messages and is_full:
                self.lost += 1
                return
            self._messages.append(incoming)
            self._bytes += size
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Incoming]:
        """Take all messages, oldest first; wait up to `timeout_s` seconds for the first."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)
            taken = list(self._messages)
            self._messages.clear()
            self._bytes = 0
            return taken


class Subscriber:
    """Subscribes from a thread of its own, which starts at once; a `Receiver` of its connections.

    The thread calls `on_state` with each new state and a detail for people. A file of the settings that cannot be used
    raises `UsageError`.
    """

    def __init__(
        self,
        settings: MqttSettings,
        topics: Sequence[str],
        on_state: Callable[[ConnectionState, str], None] | None = None,
    ) -> None:
        broker_tls(settings)
        self.state: ConnectionState = "connecting"
        self.detail = ""
        self.has_been_online = False
        self._settings, self._topics, self._on_state = settings, tuple(topics), on_state
        self._fallback = ProtocolFallback(settings.protocol)
        self._backoff = Backoff(longest_s=_LONGEST_PAUSE_S)
        self._queue = ReceiveQueue()
        self._wakeup = Wakeup()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="edge-listen", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> list[Incoming]:
        """Take what came since the last call; wait up to `timeout_s` seconds for the first message."""
        is_waited_for = self._queue.is_half_full
        taken = self._queue.take(timeout_s)
        if is_waited_for:
            self._wakeup.wake()  # there is room now; where it filled up meanwhile, the next turn sees that
        return taken

    @property
    def lost(self) -> int:
        """How many messages came while there was no room for them, and will not come again."""
        return self._queue.lost

    def close(self) -> None:
        """Leave the broker; may be called twice."""
        self._is_ending = True
        self._wakeup.wake()
        self._thread.join(_END_S)

    def receive(self, incoming: Incoming) -> None:
        """Queue one message; called by the connection."""
        self._queue.put(incoming)

    def refused(self, line: str) -> None:
        """Report `online` if the broker granted all topics; otherwise the connection ends, which is reported."""
        if not line:
            self.has_been_online = True
            self._backoff.reset()
            self._report("online", self._fallback.warning)

    def _run(self) -> None:
        while not self._is_ending:
            self._connect_once()
            self._pause(time.monotonic() + self._backoff.next_s())
        self._wakeup.close()
        self._report("closed", "")

    def _pause(self, until: float) -> None:
        while not self._is_ending and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _connect_once(self) -> None:
        connection: MqttConnection | None = None
        try:
            connection = MqttConnection(self._settings, None, self._fallback)
            connection.listen(self._topics, self)
            connection.open()
            while connection.phase in ("opening", "up") and not self._is_ending:
                connection.turn(_TURN_S, self._wakeup)
                if not self._queue.is_half_full:
                    connection.acknowledge()
            if self._is_ending:
                return
        except OSError as cause:
            self._report("connecting", os_error_text(cause))
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end the subscription
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            self._report("refused" if connection.phase == "refused" else "connecting", connection.detail)
        finally:
            if connection is not None:
                connection.close(politely=True)

    def _report(self, state: ConnectionState, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        self.state, self.detail = state, detail
        if self._on_state is not None:
            self._on_state(state, detail)
