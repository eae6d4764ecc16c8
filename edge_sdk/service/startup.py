"""Loading: a run's bundle, verified and tried, and its model, which loads while the rest of the program does.

Owns the order of what is found out about a bundle before anything of it runs. Imports no OpenCV: that is loaded, and
the source opened, beside the model.
"""

from __future__ import annotations

import platform
from types import TracebackType

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.rollback import refuse_older, remember_version
from edge_sdk.core.logs import Say
from edge_sdk.core.threads import BackgroundTask, Stop
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.trial import prove_here
from edge_sdk.messages.topics import check_name
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared

_UNCHECKED = (
    "warning: no trusted key is given, so that no bundle's signature is checked (--trust KEY.pub; keys in [trust])"
)


class Loading:
    """What a run starts with; a context, in which the model loads.

    Args:
        settings: of the run.
        bundle: verified and tried; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        say: takes one line for people.
        stop: ends the loading.
        shared: what the streams of this process have in common.

    Attributes:
        bundle: as given.
        budget_ms: capture to outbox.
        steering: with the model that runs first, once it is loaded.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        session: SessionSettings,
        say: Say,
        stop: Stop,
        shared: Shared | None = None,
    ) -> None:
        self.bundle = bundle
        self.budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms
        self.steering = BackgroundTask(lambda: self._steer(settings, session, say, stop, shared), "edge-model")

    def _steer(
        self, settings: PipelineSettings, session: SessionSettings, say: Say, stop: Stop, shared: Shared | None
    ) -> ModelSelector:
        try:
            return ModelSelector(settings, self.bundle, session, self.budget_ms, say, stop.is_asked, shared)
        finally:
            self.bundle.forget_kept()  # another variant may be the first to run

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.steering.__exit__(kind, error, trace)


def begin_loading(
    settings: PipelineSettings, verified: BackgroundTask[Bundle], say: Say, stop: Stop, shared: Shared | None = None
) -> Loading | None:
    """Check that a run can begin, try its bundle where it is new here, and begin to load its model.

    Args:
        settings: of the run.
        verified: its bundle, on the way to being verified.
        say: takes one line for people.
        stop: ends it.
        shared: what the streams of this process have in common.

    Returns:
        None when it was told to stop first.

    Raises:
        EdgeError: a name that cannot be a topic, or what is wrong with the bundle. What is wrong with the model comes
            with `Loading.steering`.
    """
    check_name("camera", settings.camera)  # what cannot be a topic is said now, not at a frame
    if not verified.is_ready(stop.is_asked):
        return None
    bundle = verified.take()
    say_once = say if shared is None else shared.say_once
    if not settings.trusted_keys:
        say_once(_UNCHECKED)
    if allowed := refuse_older(bundle, allow_older=settings.allow_older):
        say_once(f"warning: {allowed}")
    bundle.check_device(platform.machine(), onnxruntime_version())
    if settings.variant is not None:
        bundle = bundle.with_primary(settings.variant)
    session = _session_settings(settings, bundle)
    is_beside = shared is not None and shared.progress.is_any  # the trial gives way to frames
    seconds = settings.trial_s
    if not prove_here(bundle, settings=session, seconds=seconds, say=say, is_stopped=stop.is_asked, beside=is_beside):
        return None
    remember_version(bundle, say_once)
    return Loading(settings, bundle, session, say, stop, shared)


def _session_settings(given: PipelineSettings, bundle: Bundle) -> SessionSettings:
    """As the bundle promises; the limit of a run follows the budget, unless it was given."""
    promise = bundle.manifest
    if given.latency_ms is not None:
        promise = msgspec.structs.replace(promise, latency_budget_ms=given.latency_ms)
    settings = SessionSettings.of(promise)
    if given.run_limit_s is None:
        return settings
    return msgspec.structs.replace(settings, limit_s=given.run_limit_s)
