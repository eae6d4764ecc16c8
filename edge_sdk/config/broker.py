"""Broker: from the tables about a broker to what publishes there, for the daemon and for programs of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.config.config import DeviceConfig, MqttConfig, OutboxConfig
from edge_sdk.config.publish import PublishConfig, SnapshotsConfig
from edge_sdk.publishing import SNAPSHOTS, Channel, MqttSettings, OutboxSettings, Secret, default_device

_DAY_S = 86_400.0


def mqtt_settings_of(
    device: DeviceConfig,
    mqtt: MqttConfig,
    publish: PublishConfig | UnsetType,
    password: Secret | None,
    key_password: Secret | None,
) -> MqttSettings:
    """Which broker, and how is published there.

    Raises:
        UsageError: a name or a number is impossible.
    """
    settings = MqttSettings.parse(
        mqtt.url,
        password=password,
        ca_file=_path(mqtt.ca_file),
        cert_file=_path(mqtt.cert_file),
        key_file=_path(mqtt.key_file),
        key_password=key_password,
        prefix=mqtt.prefix,
        site=device.site,
        device=device_name(device),
        qos=mqtt.qos,
        protocol=mqtt.protocol,
    )
    if isinstance(publish, UnsetType):
        return settings
    return msgspec.structs.replace(
        settings,
        **given(publish.results),
        events=Channel(**given(publish.events)),
        snapshots=SNAPSHOTS if isinstance(publish.snapshots, UnsetType) else _channel(publish.snapshots),
    )


def outbox_settings_of(outbox: OutboxConfig) -> OutboxSettings:
    """Where events wait."""
    return OutboxSettings(folder=_path(outbox.folder), max_mb=outbox.max_mb, max_age_s=outbox.max_age_days * _DAY_S)


def device_name(device: DeviceConfig) -> str:
    """By default the host's."""
    return default_device() if isinstance(device.name, UnsetType) else device.name


def given(table: msgspec.Struct) -> dict[str, Any]:
    """What a table says."""
    return {key: value for key, value in msgspec.structs.asdict(table).items() if value is not UNSET}


def _channel(snapshots: SnapshotsConfig) -> Channel:
    return Channel(qos=snapshots.qos, expiry_s=snapshots.expiry_s)


def _path(value: str | UnsetType) -> Path | None:
    return None if isinstance(value, UnsetType) else Path(value)
