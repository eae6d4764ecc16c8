"""From a configuration file to what a daemon runs.

Owns which key becomes which setting, and when secrets are read: each time this is called, which is the start and each
reload.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.config import Config, Defaults, MqttConfig, PipelineConfig, read_secret
from edge_sdk.daemon.say import Say
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.errors import ConfigError
from edge_sdk.publishing import MqttSettings, Secret, default_device
from edge_sdk.source_options import SourceOptions
from edge_sdk.toml_file import entry_label


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
        excuse: takes what is wrong with a password, which is left out then; without it that is raised.

    Raises:
        ConfigError: a password cannot be read.
    """

    def secret(table: MqttConfig | Defaults, where: str, what: str) -> Secret | None:
        try:
            return read_secret(table, where, what, warn)
        except ConfigError as cause:
            if excuse is None:
                raise
            excuse(cause)
            return None

    device = default_device() if isinstance(config.device.name, UnsetType) else config.device.name
    broker = None
    if not isinstance(config.mqtt, UnsetType):
        broker = _broker(config, config.mqtt, device, secret(config.mqtt, "mqtt", "the MQTT password"))
    keys = tuple(map(Path, config.trust.keys))
    streams = tuple(
        _stream(stream, keys, secret(stream, entry_label(f"pipelines[{i}]", stream.name), "the source's password"))
        for i, stream in enumerate(config.pipelines)
    )
    return RunSettings(device=device, mqtt=broker, pipelines=streams, duration_s=duration_s, waits=True)


def _broker(config: Config, mqtt: MqttConfig, device: str, password: Secret | None) -> MqttSettings:
    return MqttSettings.parse(
        mqtt.url,
        password=password,
        ca_file=None if isinstance(mqtt.ca_file, UnsetType) else Path(mqtt.ca_file),
        prefix=mqtt.prefix,
        site=config.device.site,
        device=device,
        camera=config.pipelines[0].name,
        qos=mqtt.qos,
        protocol=mqtt.protocol,
    )


def _stream(stream: PipelineConfig, keys: tuple[Path, ...], password: Secret | None) -> PipelineSettings:
    given = {key: getattr(stream, key) for key in stream.__struct_fields__ if getattr(stream, key) is not UNSET}
    given["bundle"] = Path(given["bundle"])
    return PipelineSettings(
        camera=given.pop("name"),
        source_password=password,
        source_options=SourceOptions(**_those_of(SourceOptions, given)),
        trusted_keys=keys,
        **_those_of(PipelineSettings, given),
    )


def _those_of(schema: type[msgspec.Struct], given: dict[str, Any]) -> dict[str, Any]:
    """What has the same name in both; what is not given is as `schema` has it."""
    return {key: value for key, value in given.items() if key in schema.__struct_fields__}
