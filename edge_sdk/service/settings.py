"""Settings of the service: `RunSettings` for the process, `PipelineSettings` for each of its pipelines.

`run_settings_of` makes them from a configuration file, and reads its secrets each time. Settings are the keys of the
file's tables, with what the table of a pipeline does not hold: secrets, trusted keys, its camera's event rules and
snapshots, and what only flags set.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.config.load import given, mqtt_settings_of, outbox_settings_of, read_secret
from edge_sdk.config.schema import Config, MqttConfig, PipelineConfig
from edge_sdk.core.errors import CameraError, ConfigError, EdgeError, UsageError
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.core.toml import entry_label
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.messages.commands import Permission
from edge_sdk.messages.schema import default_device
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.publishing.tls import ExpiredError, check_credentials
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import IMAGES, VIDEO, kind_of

_log = logging.getLogger(__name__)
_KEY_PASSWORD = "the private key's password"  # noqa: S105 - what it is called


class PipelineSettings(PipelineConfig, frozen=True, kw_only=True):
    """Settings of one pipeline: the keys of its table, and the further settings below."""

    camera: str = "camera"
    bundle: Path
    source_password: Secret | None = None
    trusted_keys: tuple[Path, ...] = ()  # when there are any, an unsigned bundle is refused
    allow_older: bool = False  # run a signed bundle although a newer version of it ran here
    frames: int | None = None  # stop after this many results
    annotate: Path | None = None  # an MP4, or a JPEG or PNG of the last frame, to write with the results drawn
    is_unproved: bool = False  # made of a bare model just now, so that a missing signature is no news
    events: tuple[EventRule, ...] = ()
    snapshots: SnapshotSettings | None = None

    @property
    def source_options(self) -> SourceOptions:
        """The options with which the source is opened."""
        return SourceOptions(**given(self, SourceOptions))

    @property
    def paced(self) -> bool:
        """Whether frames come at the source's own pace; if not, each frame is read when the pipeline asks for it."""
        try:
            kind = kind_of(self.source)
        except CameraError:
            return True
        return not (kind is IMAGES or (kind is VIDEO and self.every_frame))

    @property
    def bundles(self) -> tuple[Path, ...]:
        """The bundle, and that of the second model where there is one."""
        return (self.bundle,) if self.then is None else (self.bundle, self.then.bundle)

    def begin_verifying(self) -> BackgroundTask[list[Bundle]]:
        """Start a thread that opens and verifies the `bundles`."""
        return BackgroundTask(lambda: [Bundle.open(path, self.trusted_keys) for path in self.bundles], "edge-verify")

    def same_source(self, other: PipelineSettings) -> bool:
        """Tell whether a pipeline with the settings `other` can go on reading this pipeline's open source."""
        names = ("source", "source_password", "source_options", "camera", "every_frame")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one process: its cameras, its broker and its outputs."""

    device: str
    mqtt: MqttSettings | None = None  # None: print results as lines of JSON to standard output
    outbox: OutboxSettings = OutboxSettings()
    commands: tuple[Permission, ...] = ()
    home_assistant: HomeAssistantSettings | None = None
    pipelines: tuple[PipelineSettings, ...]  # one or more, each with a name of its own
    in_words: bool = False  # whether standard output gets lines for people instead of JSON
    duration_s: float | None = None  # stop after this many seconds
    waits: bool = False  # wait for a camera that is not available at the start; if not, it is an error


def run_settings_of(
    config: Config, *, duration_s: float | None = None, problems: list[EdgeError] | None = None
) -> RunSettings:
    """Return the settings of a service from its configuration; the service waits for its cameras.

    The list `problems` gets errors of passwords, which are then left out, and of certificates; else they are raised.
    """

    def secret(table: MqttConfig | PipelineConfig, where: str, what: str, of: str = "") -> Secret | None:
        try:
            return read_secret(table, where, what, of)
        except ConfigError as cause:
            if problems is None:
                raise
            problems.append(cause)
            return None

    def pipeline(index: int, table: PipelineConfig) -> PipelineSettings:
        entry = entry_label(f"pipelines[{index}]", table.camera)
        if not table.tls_verify:
            _log.warning(f"{entry}: tls_verify is false: whoever is between gets the password and can show any picture")
        rules = (rule for rule in config.events if rule.cameras is None or table.camera in rule.cameras)
        snapshots = None if config.publish is None else config.publish.snapshots
        return PipelineSettings(
            **given(table),
            source_password=secret(table, entry, "the source's password"),
            trusted_keys=config.trust.keys,
            allow_older=config.trust.allow_older,
            events=tuple(EventRule(**given(rule, EventRule)) for rule in rules),
            snapshots=None if snapshots is None else SnapshotSettings(**given(snapshots, SnapshotSettings)),
        )

    broker = None
    if config.mqtt is not None:
        words = secret(config.mqtt, "mqtt", "the MQTT password"), secret(config.mqtt, "mqtt", _KEY_PASSWORD, "key_")
        broker = mqtt_settings_of(config.device, config.mqtt, config.publish, *words)
        _look_at_credentials(broker, problems)
    return RunSettings(
        device=config.device.name or default_device(),
        mqtt=broker,
        outbox=outbox_settings_of(config.outbox),
        commands=() if config.commands is None else config.commands.allow,
        home_assistant=config.home_assistant,
        pipelines=tuple(pipeline(index, table) for index, table in enumerate(config.pipelines)),
        duration_s=duration_s,
        waits=True,
    )


def _look_at_credentials(broker: MqttSettings, problems: list[EdgeError] | None) -> None:
    """Warn of an expired certificate; the service goes on, and uses a new certificate without a restart."""
    try:
        for line in check_credentials(broker):
            _log.warning(line)
    except UsageError as cause:
        if problems is not None:
            problems.append(ConfigError(str(cause)))
        elif isinstance(cause, ExpiredError):
            _log.warning(str(cause))
        else:
            raise ConfigError(str(cause)) from None
