"""Bring one stream to where its first frame can run: verify and try its bundle, load its model, open its source.

    begin_loading: bundle verified -> tried in a process of its own -> `Loading`, the model loads in a thread
    PipelineStartup.reach: Loading -> source opened beside it -> model measured against the budget -> `Ready`

One stream of a process starts at a time. What is wrong with the model is said before what is wrong with the source.
Importing this module loads neither OpenCV nor paho: both are loaded while the model is.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.rollback import refuse_older, remember_version
from edge_sdk.core.errors import SessionError
from edge_sdk.core.threads import BackgroundTask, Stop
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.trial import prove_here
from edge_sdk.messages.topics import check_name
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared
from edge_sdk.sources.opening import VIDEO

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource

_LONGEST_LOAD_S = 240.0  # others wait for their turn; a service manager gives all of them five minutes
_UNCHECKED = "no trusted key is given, so that no bundle's signature is checked (--trust KEY.pub; keys in [trust])"


class Loading:
    """A stream's bundle, and its model while it loads; a context that waits for that thread.

    Args:
        settings: of the stream.
        bundle: verified and tried; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        stop: ends the loading.
        shared: what the streams of this process share.

    Attributes:
        bundle: as given.
        budget_ms: capture to outbox.
        selector: with the model that runs first, once it is loaded.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        session: SessionSettings,
        stop: Stop,
        shared: Shared | None = None,
    ) -> None:
        self.bundle = bundle
        self.budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms

        def load() -> ModelSelector:
            return ModelSelector(settings, bundle, session, self.budget_ms, stop.is_asked, shared)

        self.selector = BackgroundTask(load, "edge-model")

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.selector.__exit__(kind, error, trace)


Begin = Callable[[PipelineSettings, Stop, Shared], Loading | None]
"""Verifies and tries a stream's bundle, and begins to load its model; None when told to stop first."""


def begin_loading(
    settings: PipelineSettings, verified: BackgroundTask[Bundle], stop: Stop, shared: Shared | None = None
) -> Loading | None:
    """Check that a run can begin, try its bundle where it is new here, and begin to load its model.

    Args:
        settings: of the stream.
        verified: its bundle, on the way to being verified.
        stop: ends it.
        shared: what the streams of this process share.

    Returns:
        None when it was told to stop first.

    Raises:
        EdgeError: a name that cannot be a topic, or what is wrong with the bundle. What is wrong with the model comes
            with `Loading.selector`.
    """
    check_name("camera", settings.camera)  # what cannot be a topic is said now, not at a frame
    if not verified.is_ready(stop.is_asked):
        return None
    bundle = verified.take()
    shared = shared or Shared()
    if not settings.trusted_keys:
        shared.log_once(logging.WARNING, _UNCHECKED)
    if allowed := refuse_older(bundle, allow_older=settings.allow_older):
        shared.log_once(logging.WARNING, allowed)
    bundle.check_device(platform.machine(), onnxruntime_version())
    if settings.variant is not None:
        bundle = bundle.with_primary(settings.variant)
    session = _session_settings(settings, bundle)
    is_beside = shared.progress.is_any  # the trial gives way to frames
    if not prove_here(bundle, settings=session, seconds=settings.trial_s, is_stopped=stop.is_asked, beside=is_beside):
        return None
    if problem := remember_version(bundle):
        shared.log_once(logging.WARNING, problem)
    return Loading(settings, bundle, session, stop, shared)


def _session_settings(given: PipelineSettings, bundle: Bundle) -> SessionSettings:
    """Make them as the bundle promises; the limit of a run follows the budget, unless it was given."""
    promise = bundle.manifest
    if given.latency_ms is not None:
        promise = msgspec.structs.replace(promise, latency_budget_ms=given.latency_ms)
    settings = SessionSettings.of(promise)
    if given.run_limit_s is None:
        return settings
    return msgspec.structs.replace(settings, limit_s=given.run_limit_s)


def begin_opening(settings: PipelineSettings, *, waits: bool) -> BackgroundTask[OpenedSource]:
    """Begin to open a stream's source in a thread of its own; who takes it closes it.

    Args:
        settings: of the stream.
        waits: a camera that is not there yet is waited for.
    """
    password = settings.source_password.reveal() if settings.source_password else None

    def open_it() -> OpenedSource:
        from edge_sdk.sources.opening import open_source

        return open_source(
            settings.source,
            camera=settings.camera,
            password=password,
            realtime=not settings.every_frame,
            options=settings.source_options,
            waits=waits,
        )

    return BackgroundTask(open_it, "edge-source", undo=lambda source: source.close())


class Ready(NamedTuple):
    """A loaded bundle, what chooses its model, and what opens its source, where that has begun."""

    loading: Loading
    selector: ModelSelector
    opening: BackgroundTask[OpenedSource] | None


class PipelineStartup:
    """Starts one stream; all calls come from its thread.

    Args:
        settings: of the stream.
        begin: verifies its bundle, and begins to load the model.
        shared: what the streams of this process share.
        stop: of the stream.
        waits: a camera that is not there yet is waited for.

    Attributes:
        digest: of the bundle, once it is verified.
        model_ns: when its model was loaded, monotonic nanoseconds; 0: not yet.
    """

    def __init__(self, settings: PipelineSettings, begin: Begin, shared: Shared, stop: Stop, *, waits: bool) -> None:
        self.digest: str | None = None
        self.model_ns = 0
        self._settings, self._begin, self._shared = settings, begin, shared
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

    def open_source(
        self, stack: contextlib.ExitStack, opening: BackgroundTask[OpenedSource] | None
    ) -> OpenedSource | None:
        """Return the opened source, which the caller closes; None when told to stop first.

        Args:
            stack: takes back what is begun.
            opening: what opens it, where that has begun.
        """
        if self._stop.is_asked():
            return None
        opening = opening or stack.enter_context(begin_opening(self._settings, waits=self._waits))
        return opening.take() if opening.is_ready(self._stop.is_asked) else None

    def _make_ready(self, stack: contextlib.ExitStack, prepare: Callable[[], None], inherits: bool) -> list[Ready]:
        loading = self._begin(self._settings, self._stop, self._shared)
        if loading is None:
            return []
        from edge_sdk.sources.opening import check_location  # OpenCV, while the model loads

        self.digest = loading.bundle.digest
        stack.enter_context(loading)
        # What can never be opened is said while another stream still has the camera's place.
        kind = check_location(self._settings.source)
        # A file that plays in its own time plays from when it is opened: not before there is a model that looks.
        is_late = inherits or (kind is VIDEO and not self._settings.every_frame)
        opening = None if is_late else stack.enter_context(begin_opening(self._settings, waits=self._waits))
        prepare()
        until_s = time.monotonic() + _LONGEST_LOAD_S
        if not loading.selector.is_ready(lambda: self._stop.is_asked() or time.monotonic() >= until_s):
            if not self._stop.is_asked():
                raise SessionError(f"the model did not load within {_LONGEST_LOAD_S:.0f} s")
            return []
        selector = loading.selector.take()
        self.model_ns = time.monotonic_ns()
        # Beside other streams nobody waits for a source within this turn: it may take as long as it likes.
        if opening is not None and not self._waits and not opening.is_ready(self._stop.is_asked):
            return []
        selector.settle(paced=self._settings.paced)
        return [Ready(loading, selector, opening)]
