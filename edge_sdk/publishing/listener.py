"""Listener: hears what a fleet publishes, through a broker's absence and restarts.

Owns a thread. What waits for a reader is bounded: one that is slow, or pauses, costs messages and never the connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edge_sdk.publishing.backlog import Backlog, Heard
from edge_sdk.publishing.backoff import Backoff
from edge_sdk.publishing.dialect import Dialect
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.stats import State
from edge_sdk.publishing.wakeup import Wakeup

if TYPE_CHECKING:
    from edge_sdk.publishing.listening import Listening

_TURN_S = 0.5
_LONGEST_S = 5.0  # somebody sits before it
_END_S = 1.0


class Listener:
    """Listens from a thread of its own, which starts at once.

    Args:
        settings: which broker, and with which credentials; it verifies both.
        topics: what to subscribe to.
        on_state: called from the thread with the new state and a detail for people.

    Attributes:
        state: `connecting`, `online`, `refused` or `closed`.
        detail: why, for people.
        has_been_online: whether there was a connection.

    Raises:
        UsageError: a file that the settings name cannot be used.
    """

    def __init__(
        self, settings: MqttSettings, topics: Sequence[str], on_state: Callable[[State, str], None] | None = None
    ) -> None:
        from edge_sdk.publishing.tls import broker_tls

        with contextlib.suppress(OSError):  # a shortage, which may be over when it connects
            broker_tls(settings)
        self.state: State = "connecting"
        self.detail = ""
        self.has_been_online = False
        self._settings, self._topics, self._on_state = settings, tuple(topics), on_state
        self._dialect = Dialect(settings.protocol)
        self._backoff = Backoff(longest_s=_LONGEST_S)
        self._backlog = Backlog()
        self._wakeup = Wakeup()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="edge-listen", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> list[Heard]:
        """What came since; waits so many seconds for the first."""
        is_waited_for = self._backlog.is_half_full
        heard = self._backlog.take(timeout_s)
        if is_waited_for:
            self._wakeup.wake()  # there is room now; where it filled up meanwhile, the next turn sees that
        return heard

    @property
    def lost(self) -> int:
        """Messages that came while there was no room for them, and that will not come again."""
        return self._backlog.lost

    def close(self) -> None:
        """Leave the broker; may be called twice."""
        self._is_ending = True
        self._wakeup.wake()
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._is_ending:
            self._listen_once()
            self._pause(time.monotonic() + self._backoff.next_s())
        self._wakeup.close()
        self._report("closed", "")

    def _pause(self, until: float) -> None:
        while not self._is_ending and (remaining := until - time.monotonic()) > 0:
            self._wakeup.wait(remaining)

    def _listen_once(self) -> None:
        from edge_sdk.publishing.listening import Listening

        link: Listening | None = None
        try:
            link = Listening(self._settings, self._topics, self._backlog, self._dialect)
            link.open()
            self._serve(link)
        except OSError as cause:
            self._report("connecting", str(cause.strerror or cause) or type(cause).__name__)
        except Exception as cause:  # noqa: BLE001 - a malformed packet must not end listening
            self._report("connecting", f"{type(cause).__name__}: {cause}")
        else:
            if not self._is_ending:
                self._report("refused" if link.phase == "refused" else "connecting", link.detail)
        finally:
            if link is not None:
                link.close()

    def _serve(self, link: Listening) -> None:
        while link.phase in ("opening", "up") and not self._is_ending:
            link.turn(_TURN_S, self._wakeup)
            if link.phase == "up" and self.state != "online":
                self.has_been_online = True
                self._backoff.reset()
                self._report("online", self._dialect.doubt)

    def _report(self, state: State, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        self.state, self.detail = state, detail
        if self._on_state is not None:
            self._on_state(state, detail)
