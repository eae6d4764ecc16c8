"""What a daemon runs: RunSettings, and of each of its streams PipelineSettings.

From a configuration file to what a daemon runs.

Owns which key becomes which setting, and when secrets are read: each time this is called, which is the start and each
reload.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UnsetType

from edge_sdk.config.load import device_name, given, mqtt_settings_of, outbox_settings_of
from edge_sdk.config.schema import Config, Defaults, MqttConfig, PipelineConfig, read_secret
from edge_sdk.core.errors import CameraError, ConfigError, UsageError
from edge_sdk.core.logs import Say
from edge_sdk.core.toml import entry_label
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.inference.trial import TRIAL_S
from edge_sdk.messages.commands import CommandClass
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.publishing.tls import ExpiredError, check_credentials
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import IMAGES, VIDEO, kind_of


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One stream: a source, a bundle, and how it runs.

    Attributes:
        camera: the stream's name in topics and messages.
        source: see `edge_sdk.open_source`.
        source_password: for a stream's user.
        source_options: what the source is asked for.
        bundle: a NAME.edge folder.
        trusted_keys: public key files; when there are any, an unsigned bundle is refused.
        allow_older: run a signed bundle although a newer version of it ran here.
        frames: stop after so many results.
        annotate: write an MP4 with the results drawn.
        latency_ms: overrides the bundle's budget.
        run_limit_s: seconds after which a run that does not end is ended; by default ten budgets, 5 at least.
        every_frame: a video file is not played in real time: each of its frames runs, in turn.
        variant: which of the bundle's models runs, by name or file, and no other; by default its first, or what tuning
            finds, and others where that cannot keep the budget.
        cpu_share: the most CPU time over time that tuning may choose, 1 is one core; None without a limit.
        tune: whether what runs best here is found out, and remembered.
        trial_s: how long a bundle that is new on this device may take to load and replay golden, in seconds; 0
            loads it untried.
        best_effort: run although the budget cannot be kept here.
        events: when a class has appeared or disappeared, which is told.
        snapshots: when pictures are published; None: never.
    """

    camera: str = "camera"
    source: str
    source_password: Secret | None = None
    source_options: SourceOptions = SourceOptions()
    bundle: Path
    trusted_keys: tuple[Path, ...] = ()
    allow_older: bool = False
    frames: int | None = None
    annotate: Path | None = None
    latency_ms: float | None = None
    run_limit_s: float | None = None
    every_frame: bool = False
    variant: str | None = None
    cpu_share: float | None = None
    tune: bool = True
    trial_s: float = TRIAL_S
    best_effort: bool = False
    events: tuple[EventRule, ...] = ()
    snapshots: SnapshotSettings | None = None

    @property
    def paced(self) -> bool:
        """Whether frames come at their own pace, or a file is not there yet; False: in turn, when asked for."""
        try:
            kind = kind_of(self.source)
        except CameraError:
            return True
        return not (kind is IMAGES or (kind is VIDEO and self.every_frame))

    def same_source(self, other: PipelineSettings) -> bool:
        """Whether an opened source of this one can be read by the other as it is."""
        return _source_of(self) == _source_of(other)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one process runs.

    Attributes:
        device: this device's name.
        mqtt: the broker; None prints results as lines of JSON to standard output.
        outbox: where events wait for the broker.
        commands: classes of commands that are carried out.
        home_assistant: what Home Assistant is told; None: nothing.
        pipelines: its streams, each with a name of its own; at least one.
        duration_s: stop after so many seconds.
        waits: a camera that is not there yet is waited for, as a service must; otherwise it is an error at the start.
    """

    device: str
    mqtt: MqttSettings | None = None
    outbox: OutboxSettings = OutboxSettings()
    commands: tuple[CommandClass, ...] = ()
    home_assistant: HomeAssistantSettings | None = None
    pipelines: tuple[PipelineSettings, ...]
    duration_s: float | None = None
    waits: bool = False


def _source_of(settings: PipelineSettings) -> tuple[object, ...]:
    return settings.source, settings.source_password, settings.source_options, settings.camera, settings.every_frame


_KEY_PASSWORD = "the private key's password"  # noqa: S105 - what it is called


def run_settings_of(
    config: Config,
    warn: Say = lambda _line: None,
    *,
    duration_s: float | None = None,
    excuse: Callable[[ConfigError], None] | None = None,
) -> RunSettings:
    """What a service runs: it waits for its cameras.

    Args:
        config: as `read_config` gives it.
        warn: takes one line for people: a password that others can read.
        duration_s: stop after so many seconds.
        excuse: takes what is wrong with a password, which is left out then, or a certificate; else that is raised.

    Raises:
        ConfigError: a password, or this device's certificate, cannot be used.
    """

    def secret(table: MqttConfig | Defaults, where: str, what: str, of: str = "") -> Secret | None:
        try:
            return read_secret(table, where, what, warn, of)
        except ConfigError as cause:
            if excuse is None:
                raise
            excuse(cause)
            return None

    broker = None
    if not isinstance(config.mqtt, UnsetType):
        words = secret(config.mqtt, "mqtt", "the MQTT password"), secret(config.mqtt, "mqtt", _KEY_PASSWORD, "key_")
        broker = mqtt_settings_of(config.device, config.mqtt, config.publish, *words)
        _look_at_credentials(broker, warn, excuse)
    keys = tuple(map(Path, config.trust.keys))
    for index, stream in enumerate(config.pipelines):
        if stream.tls_verify is False:
            entry = entry_label(f"pipelines[{index}]", stream.name)
            warn(
                f"warning: {entry}: tls_verify is false: whoever is between gets the password and can show any picture"
            )
    streams = tuple(
        msgspec.structs.replace(
            _stream(stream, keys, secret(stream, entry_label(f"pipelines[{i}]", stream.name), "the source's password")),
            allow_older=config.trust.allow_older,
            events=_events(config, stream.name),
            snapshots=_snapshots(config),
        )
        for i, stream in enumerate(config.pipelines)
    )
    return RunSettings(
        device=device_name(config.device),
        mqtt=broker,
        outbox=outbox_settings_of(config.outbox),
        commands=() if isinstance(config.commands, UnsetType) else config.commands.allow,
        home_assistant=_home_assistant(config),
        pipelines=streams,
        duration_s=duration_s,
        waits=True,
    )


def _home_assistant(config: Config) -> HomeAssistantSettings | None:
    said = config.home_assistant
    if isinstance(said, UnsetType):
        return None
    return HomeAssistantSettings(is_enabled=said.enabled, prefix=said.prefix, labels=said.labels)


def _look_at_credentials(broker: MqttSettings, warn: Say, excuse: Callable[[ConfigError], None] | None) -> None:
    """A service goes on with a certificate that has expired: a new one in its place is taken without a restart."""
    try:
        for line in check_credentials(broker):
            warn(f"warning: {line}")
    except UsageError as cause:
        if excuse is not None:
            excuse(ConfigError(str(cause)))
        elif isinstance(cause, ExpiredError):
            warn(f"warning: {cause}")
        else:
            raise ConfigError(str(cause)) from None


def _events(config: Config, camera: str) -> tuple[EventRule, ...]:
    """The rules that hold for one camera."""
    here = (event for event in config.events if isinstance(event.cameras, UnsetType) or camera in event.cameras)
    return tuple(EventRule(**_those_of(EventRule, given(event))) for event in here)


def _snapshots(config: Config) -> SnapshotSettings | None:
    if isinstance(config.publish, UnsetType) or isinstance(config.publish.snapshots, UnsetType):
        return None
    return SnapshotSettings(**_those_of(SnapshotSettings, given(config.publish.snapshots)))


def _stream(stream: PipelineConfig, keys: tuple[Path, ...], password: Secret | None) -> PipelineSettings:
    said = given(stream)
    said["bundle"] = Path(said["bundle"])
    return PipelineSettings(
        camera=said.pop("name"),
        source_password=password,
        source_options=SourceOptions(**_those_of(SourceOptions, said)),
        trusted_keys=keys,
        **_those_of(PipelineSettings, said),
    )


def _those_of(schema: type[msgspec.Struct], said: dict[str, Any]) -> dict[str, Any]:
    """What has the same name in both; what is not said is as `schema` has it."""
    return {key: value for key, value in said.items() if key in schema.__struct_fields__}
