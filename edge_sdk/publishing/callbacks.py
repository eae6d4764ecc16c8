"""Callbacks: what a publisher's owner gave it to be called with what happens.

Owns that one which raises costs nothing but itself: publishing goes on, and it is said once and shown in the state
until the callback works again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from edge_sdk.publishing.board import Board
from edge_sdk.publishing.incoming import Incoming, Receiver
from edge_sdk.publishing.stats import State

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
        board: Board,
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
