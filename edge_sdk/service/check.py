"""Check a run before it starts: report what it would do, and everything on this machine that would prevent it.

`check_run` looks at keys, authorities, bundles, files and devices and returns `Checked`, which `edge-sdk run --check`
prints and a reload checks. It contacts neither cameras nor brokers and loads no model. Its result holds no secrets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from edge_sdk.bundle.bundle import Bundle, check_place
from edge_sdk.bundle.signing import load_public_key
from edge_sdk.config.schema import ThenConfig
from edge_sdk.core.errors import (
    CameraError,
    EdgeError,
    LabelError,
    OutputError,
    UsageError,
    missing_permission,
    worst_first,
)
from edge_sdk.core.files import state_folder
from edge_sdk.inference.cascade import going_on
from edge_sdk.inference.runtime import shortfalls_here
from edge_sdk.inference.trial import check_here, refuse_older
from edge_sdk.messages.schema import check_name
from edge_sdk.publishing.discovery import Discovery
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.publishing.tls import check_authorities, valid_until
from edge_sdk.service.output import unknown_home_labels
from edge_sdk.service.pipeline import unknown_labels
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.location import IMAGE_SUFFIXES, SourceOptions, add_password
from edge_sdk.sources.opening import DEVICE, STREAM, SourceKind, check_location, kind_of, redact
from edge_sdk.tuning.candidates import Candidate, Limits, figures
from edge_sdk.tuning.tuning import Record, Records, Request, TunedMachine

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class ConfigProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem of a run; where it does not keep it from running, the run warns and goes on without that part."""

    exit_code: int
    text: str
    keeps_from_running: bool = True

    @classmethod
    def of(cls, error: EdgeError) -> ConfigProblem:
        """Make a problem from an error, with the error's message."""
        return cls(error.exit_code, str(error), not isinstance(error, LabelError))


class CheckedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A verified bundle: the content of its manifest, and its variants with the preferred one first."""

    name: str
    version: int
    target: str
    task: str
    signature: Literal["verified", "not checked"]
    variants: tuple[str, ...]
    labels: int
    latency_budget_ms: float


class CheckedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a checked run."""

    name: str
    source: str
    kind: str | None  # None where the source is not valid
    options: SourceOptions
    path: Path
    bundle: CheckedBundle | None  # at `path`; None where it cannot be used
    then: ThenConfig | None  # the second model, where there is one
    then_bundle: CheckedBundle | None  # and its bundle, where it can be used
    budget_ms: float | None
    cpu_share: float | None
    runs: str | None  # the model and settings that run first; None without a bundle
    reason: str | None  # why these
    result_topic: str | None  # as the next two, None without a broker, or if nothing is sent there
    event_topic: str | None
    snapshot_topic: str | None
    events: tuple[str, ...]  # labels of which events tell
    problems: tuple[ConfigProblem, ...]


class CheckedBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The broker of a checked run, as in `MqttSettings`; `cert_until` is when this device's certificate expires."""

    address: str
    tls: bool
    websockets: bool
    username: str | None
    has_password: bool
    ca_file: Path | None
    cert_file: Path | None
    cert_until: datetime | None
    qos: int
    protocol: str
    status_topic: str


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `edge-sdk run --check`."""

    device: str | None = None  # None where the configuration cannot be read
    broker: CheckedBroker | None = None  # None where results go to standard output
    outbox: str | None = None  # the file in which events wait, if any
    commands: tuple[str, ...] = ()
    home_assistant: str | None = None  # topic of the discovery message for Home Assistant, if any
    trusted_keys: tuple[Path, ...] = ()
    pipelines: tuple[CheckedPipeline, ...] = ()
    problems: tuple[ConfigProblem, ...] = ()  # those that belong to no pipeline
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the worst problem; 0 without any."""
        return min((problem.exit_code for problem in self.all_problems()), key=worst_first, default=0)

    def all_problems(self) -> list[ConfigProblem]:
        """Return the problems of the run and of its pipelines."""
        return [*self.problems, *(problem for pipeline in self.pipelines for problem in pipeline.problems)]


_T = TypeVar("_T")


def check_run(settings: RunSettings, problems: Iterable[EdgeError] = (), warnings: Iterable[str] = ()) -> Checked:
    """Check everything on this machine that a run needs."""
    found, warned, first, broker = [*problems], [*warnings], settings.pipelines[0], settings.mqtt
    if not first.trusted_keys:
        warned.append("no trusted key is given, so that no signature is checked")
    keys = [_noted(found, partial(load_public_key, file)) for file in first.trusted_keys]
    if broker is not None:
        warned += filter(None, [_noted(found, partial(check_authorities, broker))])
        if broker.password is not None and not broker.tls:
            warned.append("the MQTT password crosses the network as it is; mqtts:// encrypts it")
    warned += _shared_cameras(settings.pipelines)
    outbox = _noted(found, partial(_outbox, settings))
    # Each bundle is verified once, however many pipelines run it.
    paths = dict.fromkeys(path for pipeline in settings.pipelines for path in pipeline.bundles)
    bundles = {path: _opened(path, keys, warned, allow_older=first.allow_older) for path in paths}
    firsts = {pipeline.bundle: bundles[pipeline.bundle] for pipeline in settings.pipelines}
    opened = [bundle for bundle in firsts.values() if isinstance(bundle, Bundle)]
    if len(opened) == len(firsts):  # a bundle that could not be opened may have any label
        labels = {label for bundle in opened for label in bundle.labels()}
        found += map(LabelError, unknown_home_labels(settings.home_assistant, labels))
    return Checked(
        device=settings.device,
        broker=None if broker is None else _broker(broker),
        outbox=outbox,
        commands=settings.commands,
        home_assistant=_home_assistant(settings),
        trusted_keys=first.trusted_keys,
        pipelines=tuple(_pipeline(pipeline, broker, bundles) for pipeline in settings.pipelines),
        problems=tuple(map(ConfigProblem.of, found)),
        warnings=tuple(warned),
    )


def _outbox(settings: RunSettings) -> str | None:
    mqtt = settings.mqtt
    if mqtt is None or not any(pipeline.events for pipeline in settings.pipelines):
        return None
    if want := settings.outbox.place_error():
        raise UsageError(f"outbox.folder: {want}")
    try:
        return str(settings.outbox.path_of(mqtt.site, mqtt.device))
    except OutputError:  # events wait in memory; the run logs that
        return None


def _home_assistant(settings: RunSettings) -> str | None:
    if settings.mqtt is None or settings.home_assistant is None:
        return None
    discovery = Discovery(settings.home_assistant, settings.mqtt.topics, settings.commands, "")
    return discovery.topic if settings.home_assistant.is_enabled else f"{discovery.topic}, taken back"


def _opened(
    path: Path, keys: Sequence[Ed25519PublicKey | None], warned: list[str], *, allow_older: bool
) -> Bundle | EdgeError | None:
    """Open a bundle; return None where a trusted key cannot be read, which is reported elsewhere."""
    known = [key for key in keys if key is not None]
    try:
        if len(known) < len(keys):
            check_place(path)
            return None
        bundle = Bundle.open(path, known)
        warned += filter(None, [refuse_older(bundle, allow_older=allow_older)])
        bundle.labels()
        check_here(bundle)
        warned += (f"{path}: {line}" for line in shortfalls_here(bundle.manifest.providers))
    except EdgeError as cause:
        return cause
    except OSError as cause:  # for example a name that no file system accepts
        return UsageError(f"{path}: cannot be read: {cause.strerror}")
    return bundle


def _pipeline(
    settings: PipelineSettings, broker: MqttSettings | None, bundles: Mapping[Path, Bundle | EdgeError | None]
) -> CheckedPipeline:
    found: list[EdgeError] = []
    opened, then = bundles[settings.bundle], bundles[settings.then.bundle] if settings.then is not None else None
    _noted(found, partial(check_name, "camera", settings.camera))
    topics = None if broker is None or found else broker.topics  # a name that is not valid in a topic has no topics
    kind = _noted(found, partial(_check_source, settings))
    bundle = opened if isinstance(opened, Bundle) else None
    if isinstance(opened, EdgeError):
        found.append(opened)
    if bundle is not None and settings.variant is not None:
        bundle = _noted(found, partial(bundle.with_primary, settings.variant))
    if isinstance(then, EdgeError):
        found.append(type(then)(f"then.bundle: {then}"))
    if bundle is not None:
        _noted(found, partial(settings.class_ids, bundle))
        found += map(LabelError, unknown_labels(settings, bundle))
        if settings.then is not None:
            _noted(found, partial(going_on, bundle, settings.then))
    runs, reason = (None, None) if bundle is None else _first_run(settings, bundle)
    return CheckedPipeline(
        name=settings.camera,
        source=redact(settings.source),
        kind=None if kind is None else kind.name,
        options=settings.source_options,
        path=settings.bundle,
        bundle=None if bundle is None else _bundle(bundle),
        then=settings.then,
        then_bundle=_bundle(then) if isinstance(then, Bundle) else None,
        budget_ms=settings.latency_ms or (bundle.manifest.latency_budget_ms if bundle else None),
        cpu_share=settings.cpu_share,
        runs=runs,
        reason=reason,
        result_topic=None if topics is None else topics.of("result", settings.camera),
        event_topic=topics.of("event", settings.camera) if topics is not None and settings.events else None,
        snapshot_topic=topics.of("snapshot", settings.camera) if topics is not None and settings.snapshots else None,
        events=tuple(label for rule in settings.events for label in rule.labels),
        problems=tuple(map(ConfigProblem.of, found)),
    )


def _check_source(settings: PipelineSettings) -> SourceKind:
    """Return the kind of a source, and check that its local file, folder or device exists and can be read."""
    location = settings.source
    kind = kind_of(location)
    if kind is STREAM:
        add_password(location, settings.source_password.reveal() if settings.source_password else None)
        if settings.source_options.tls_ca_file is not None:
            from edge_sdk.sources.relay import check_camera_authorities  # imports ssl, which few sources need

            check_camera_authorities(settings.source_options.tls_ca_file)
        return kind
    if kind.opener and kind is not DEVICE:
        check_location(location)
        return kind
    path = _path_of(location)
    if not os.access(path, os.F_OK):  # also False for a name that no file system accepts
        raise CameraError(f"{path}: no such device; is the camera connected? See `v4l2-ctl --list-devices`")
    if kind is DEVICE and not os.access(path, os.R_OK | os.W_OK):
        raise CameraError(f"{path}: permission denied; add this user to the group `video`")
    denied = missing_permission(path)
    if denied:
        raise CameraError(f"{path}: {denied}")
    if path.is_dir() and not any(file.suffix.lower() in IMAGE_SUFFIXES for file in path.iterdir()):
        raise CameraError(f"{path}: no image in this folder, expected {', '.join(IMAGE_SUFFIXES)}")
    return kind


def _path_of(location: str) -> Path:
    is_index = location.isascii() and location.isdigit()
    return Path(f"/dev/video{location.lstrip('0') or '0'}" if is_index else location)


def _shared_cameras(pipelines: Iterable[PipelineSettings]) -> Iterator[str]:
    """Yield a warning for each V4L2 camera that two pipelines read; only a loopback device can serve both."""
    first: dict[Path, str] = {}
    for pipeline in pipelines:
        path = _path_of(pipeline.source)
        if path.parts[:2] == ("/", "dev") and first.setdefault(path, pipeline.camera) != pipeline.camera:
            yield f"{first[path]} and {pipeline.camera} both read {path}, and most cameras serve one reader"


def _first_run(settings: PipelineSettings, bundle: Bundle) -> tuple[str, str]:
    """Return in words which model runs first, with which settings, and why."""
    manifest, promised = bundle.manifest, str(Candidate.promised(bundle.manifest))
    if not settings.tune:
        return promised, "as the bundle promises, without tuning"
    if not settings.paced:
        return promised, "as the bundle promises: what has no pace is not tuned"
    request = Request(
        digest=bundle.digest,
        camera=settings.camera,
        variant=None if settings.variant is None else manifest.variants[0].name,
        limits=Limits(settings.latency_ms or manifest.latency_budget_ms, settings.cpu_share),
    )
    with contextlib.suppress(EdgeError):  # there is no state folder
        record = Records(state_folder() / "tuning").recall(request, TunedMachine.here())
        if isinstance(record, Record):
            chosen = record.tuned.chosen
            return str(chosen.candidate), f"as tuned here on {record.at[:10]}: {figures(chosen)}"
    if settings.variant is not None:
        return promised, "the only one that may run"
    return promised, "as the bundle promises; the first start tunes"


def _bundle(bundle: Bundle) -> CheckedBundle:
    manifest = bundle.manifest
    return CheckedBundle(
        **{name: getattr(manifest, name) for name in ("name", "version", "target", "task", "latency_budget_ms")},
        signature="verified" if bundle.signed else "not checked",
        variants=tuple(variant.name for variant in manifest.variants),
        labels=len(bundle.labels()),
    )


_AS_SET = ("address", "tls", "username", "ca_file", "cert_file", "qos", "protocol")


def _broker(broker: MqttSettings) -> CheckedBroker:
    return CheckedBroker(
        **{name: getattr(broker, name) for name in _AS_SET},
        websockets=broker.websocket_path is not None,
        has_password=broker.password is not None,
        cert_until=valid_until(broker),
        status_topic=broker.topics.of("status"),
    )


def _noted(found: list[EdgeError], check: Callable[[], _T]) -> _T | None:
    """Return the result of a check; append its error to `found`, so that the next check can run."""
    try:
        return check()
    except EdgeError as cause:
        found.append(cause)
        return None
