"""From a configuration file to what a daemon runs.

Owns which key becomes which setting, and when secrets are read: each time this is called, which is the start and each
reload.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UnsetType

from edge_sdk.config import (
    Config,
    Defaults,
    MqttConfig,
    PipelineConfig,
    device_name,
    given,
    mqtt_settings_of,
    outbox_settings_of,
    read_secret,
)
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.errors import ConfigError, UsageError
from edge_sdk.event_rule import EventRule
from edge_sdk.home_assistant import HomeAssistantSettings
from edge_sdk.publishing import ExpiredError, MqttSettings, Secret, check_credentials
from edge_sdk.snapshot_settings import SnapshotSettings
from edge_sdk.source_options import SourceOptions
from edge_sdk.toml_file import entry_label

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
