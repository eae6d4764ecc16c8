"""Bring one pipeline to where its first frame can run: verify and try its bundle, load its model, open its source.

    begin_loading: bundle verified -> tried in a process of its own -> `Loading`, the model loads in a thread
    begin_opening: the source opens in a thread

`Pipeline` does both at the same time. Importing this module loads neither OpenCV nor paho, which load with the model.
"""

from __future__ import annotations

import logging
import platform
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.rollback import refuse_older, remember_version
from edge_sdk.core.threads import BackgroundTask, Stop
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.trial import prove_here
from edge_sdk.messages.schema import check_name
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.service.shared import Shared

if TYPE_CHECKING:
    from edge_sdk.sources.slot import OpenedSource

_UNCHECKED = "no trusted key is given, so that no bundle's signature is checked (--trust KEY.pub; keys in [trust])"


class Loading(NamedTuple):
    """A pipeline's verified and tried bundle, and the task that loads its first model, which the owner closes."""

    bundle: Bundle
    budget_ms: float
    selector: BackgroundTask[ModelSelector]


def begin_loading(
    settings: PipelineSettings, verified: BackgroundTask[Bundle], stop: Stop, shared: Shared
) -> Loading | None:
    """Check that a run can begin, try its bundle where it is new here, and begin to load its model.

    Returns None when `stop` was asked for first. Raises EdgeError where the bundle or the camera's name cannot be used;
    `Loading.selector` raises errors of the model.
    """
    check_name("camera", settings.camera)  # fail now and not at the first frame
    if not verified.is_ready(stop.is_asked):
        return None
    bundle = verified.take()
    if not settings.trusted_keys and not settings.is_unproved:
        shared.log_once(logging.WARNING, _UNCHECKED)
    if allowed := refuse_older(bundle, allow_older=settings.allow_older):
        shared.log_once(logging.WARNING, allowed)
    bundle.check_device(platform.machine(), onnxruntime_version())
    if settings.variant is not None:
        bundle = bundle.with_primary(settings.variant)
    session = _session_settings(settings, bundle)
    is_beside = shared.progress.is_any  # the trial yields to running pipelines
    if not prove_here(bundle, settings=session, seconds=settings.trial_s, is_stopped=stop.is_asked, beside=is_beside):
        return None
    if problem := remember_version(bundle):
        shared.log_once(logging.WARNING, problem)
    budget_ms = settings.latency_ms or bundle.manifest.latency_budget_ms

    def load() -> ModelSelector:
        return ModelSelector(settings, bundle, session, budget_ms, stop.is_asked, shared)

    return Loading(bundle, budget_ms, BackgroundTask(load, "edge-model"))


def _session_settings(given: PipelineSettings, bundle: Bundle) -> SessionSettings:
    """Return the bundle's session settings; the time limit of a run follows the budget unless it is set."""
    promise = bundle.manifest
    if given.latency_ms is not None:
        promise = msgspec.structs.replace(promise, latency_budget_ms=given.latency_ms)
    settings = SessionSettings.of(promise)
    if given.run_limit_s is None:
        return settings
    return msgspec.structs.replace(settings, limit_s=given.run_limit_s)


def begin_opening(settings: PipelineSettings, *, waits: bool) -> BackgroundTask[OpenedSource]:
    """Begin to open a pipeline's source in a thread of its own; the caller closes it."""
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
