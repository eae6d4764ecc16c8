"""Readiness: what a stream has ready before its first frame: its model, and its source opened beside it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from edge_sdk.ahead import Ahead
from edge_sdk.camera import Kind, OpenedSource, check_location
from edge_sdk.daemon.loading import Loading
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.shared import Shared
from edge_sdk.daemon.source_ahead import source_ahead
from edge_sdk.daemon.steering import Steering
from edge_sdk.errors import SessionError
from edge_sdk.stop import Stop

_LONGEST_LOAD_S = 240.0  # others wait for their turn; a service manager gives all of them five minutes

Begin = Callable[[PipelineSettings, Say, Stop, Shared], Loading | None]
"""Verifies and tries the bundle, and begins to load its model; None when told to stop first."""


class Ready(NamedTuple):
    """A loaded bundle, what steers its model, and what opens its source, where that has begun."""

    loading: Loading
    steering: Steering
    opening: Ahead[OpenedSource] | None


class Readiness:
    """Of one stream; all calls come from its thread.

    Args:
        settings: of the stream.
        begin: what verifies its bundle, and begins to load the model.
        shared: what the streams of this process have in common.
        say: takes status lines.
        stop: of the stream.
        waits: a camera that is not there yet is waited for.

    Attributes:
        digest: of the bundle, once it is verified.
        model_ns: when its model was loaded, monotonic nanoseconds; 0: not yet.
    """

    def __init__(
        self, settings: PipelineSettings, begin: Begin, shared: Shared, say: Say, stop: Stop, *, waits: bool
    ) -> None:
        self.digest: str | None = None
        self.model_ns = 0
        self._settings, self._begin, self._shared, self._say = settings, begin, shared, say
        self._stop, self._waits = stop, waits

    def reach(self, stack: contextlib.ExitStack, prepare: Callable[[], None], *, inherits: bool) -> Ready | None:
        """Load the model while no other stream does, and begin to open the source beside it.

        Args:
            stack: takes back what is begun.
            prepare: is called while the model loads.
            inherits: the source is not opened: it comes from the pipeline whose place this takes.

        Returns:
            None when told to stop first.

        Raises:
            SessionError: the model did not load in time.
        """
        ready: list[Ready] = []
        self._shared.start(lambda: ready.extend(self._make_ready(stack, prepare, inherits)), self._stop.is_asked)
        return ready.pop() if ready else None

    def open_source(self, stack: contextlib.ExitStack, opening: Ahead[OpenedSource] | None) -> OpenedSource | None:
        """Its source; None when told to stop first. Who gets it closes it.

        Args:
            stack: takes back what is begun.
            opening: what opens it, where that has begun.
        """
        if self._stop.is_asked():
            return None
        opening = opening or stack.enter_context(self._opening())
        return opening.take() if opening.is_ready(self._stop.is_asked) else None

    def _make_ready(self, stack: contextlib.ExitStack, prepare: Callable[[], None], inherits: bool) -> list[Ready]:
        """What is wrong with the model is said before what is wrong with the source."""
        loading = self._begin(self._settings, self._say, self._stop, self._shared)
        if loading is None:
            return []
        self.digest = loading.bundle.digest
        stack.enter_context(loading)
        model = loading.steering
        # What can never be opened is said while another stream still has the camera's place.
        kind = check_location(self._settings.source)
        # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
        is_late = inherits or (kind is Kind.VIDEO and not self._settings.every_frame)
        opening = None if is_late else stack.enter_context(self._opening())
        prepare()
        until_s = time.monotonic() + _LONGEST_LOAD_S
        if not model.is_ready(lambda: self._stop.is_asked() or time.monotonic() >= until_s):
            if not self._stop.is_asked():
                raise SessionError(f"the model did not load within {_LONGEST_LOAD_S:.0f} s")
            return []
        steering = model.take()
        self.model_ns = time.monotonic_ns()
        # Beside other streams nobody waits for a source within this turn: it may take as long as it likes.
        if opening is not None and not self._waits and not opening.is_ready(self._stop.is_asked):
            return []
        steering.settle(paced=self._settings.paced)
        return [Ready(loading, steering, opening)]

    def _opening(self) -> Ahead[OpenedSource]:
        return source_ahead(self._settings, waits=self._waits)
