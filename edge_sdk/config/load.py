"""Reading a configuration file: all that is wrong with it at once, a line each, and never a secret.

Broker: from the tables about a broker to what publishes there, for the daemon and for programs of the user's.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.config.rules import broken_broker_rules, broken_rules
from edge_sdk.config.schema import (
    VERSION,
    BrokerConfig,
    Config,
    DeviceConfig,
    MqttConfig,
    OutboxConfig,
    PublishConfig,
    SnapshotsConfig,
    merged,
)
from edge_sdk.core.errors import ConfigError
from edge_sdk.core.toml import entry_label, first_problems, problems, read_document, sound_part
from edge_sdk.messages.schema import SNAPSHOTS, Channel
from edge_sdk.messages.topics import default_device
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.sources.location import holds_password
from edge_sdk.sources.opening import named_kind

DEFAULT_PATH = Path("/etc/edge-sdk/config.toml")
"""Where `edge-sdk run` looks when it is told nothing."""

_PATHS = ("bundle", "ca_file", "cert_file", "folder", "key_file", "key_password_file", "password_file", "tls_ca_file")
"""Keys whose values are relative to the file's folder."""

_Table = TypeVar("_Table", bound=msgspec.Struct)

_WRITTEN = (
    "a password does not stand in this file; write it into one that only edge-sdk's user can read, and give "
    'password_file = "FILE" (or password_env, password_credential)'
)
_IN_URL = (
    "there is a password in the URL; leave it out (scheme://USER@HOST/…), and give password_file, password_env or "
    "password_credential beside it (an @ in the path is %40)"
)


def read_config(path: Path) -> Config:
    """Read a device's configuration.

    Args:
        path: the TOML file.

    Returns:
        Each stream with what [defaults] say for it; paths that were relative to the file's folder are so to the working
        folder. Passwords are not read.

    Raises:
        ConfigError: it is missing, not TOML or wrong; one line a problem, each with the file and the key.
    """
    with contextlib.suppress(OSError, ValueError):  # what else is wrong with it is said by who reads it
        if not path.exists():
            elsewhere = "" if path == DEFAULT_PATH else f" (its usual place is {DEFAULT_PATH})"
            raise ConfigError(f"{path}: no such file; write one, see docs/config.md{elsewhere}")
    document = read_document(path, ConfigError, see="docs/config.md")
    _check_version(path, document.get("version"))
    found: list[str] = []
    public = _without_secrets(document, "", found)
    config: Config | None
    try:
        config = msgspec.convert(public, Config)
    except msgspec.ValidationError:
        config = None
    wrong = first_problems(chain(found, _problems(public) if config is None else broken_rules(config)))
    if wrong or config is None:
        raise ConfigError(*(f"{path}: {line}" for line in wrong))
    return _placed(config, path.parent)


def broker_config_of(tables: Mapping[str, object]) -> BrokerConfig:
    """What a program of the user's says of its broker, in the tables of a configuration file.

    Args:
        tables: by name; paths, of whatever type, are relative to the working folder.

    Raises:
        ConfigError: they are wrong; all of it in one line, each with the table and the key.
    """
    found: list[str] = []
    public = _without_secrets(_as_toml(tables), "", found)
    wrong = first_problems(chain(found, problems(public, BrokerConfig)))
    if not wrong:
        config = msgspec.convert(public, BrokerConfig)
        wrong = first_problems(broken_broker_rules(config.mqtt))
    if wrong:
        raise ConfigError("; ".join(wrong))
    return config


def _as_toml(value: object) -> object:
    """As TOML would give it; of other mappings msgspec takes keys that it does not know."""
    if isinstance(value, Mapping):
        return {key: _as_toml(inner) for key, inner in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_version(path: Path, version: object) -> None:
    expected = f"expected version = {VERSION} at the top, above the first [table]"
    if version is None:
        raise ConfigError(f"{path}: version is missing, {expected}")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ConfigError(f"{path}: version is no number of a format that there is, {expected}")
    if version > VERSION:
        raise ConfigError(f"{path}: version is {version}, expected {VERSION}; update edge-sdk on this device")


def _problems(public: object) -> Iterator[str]:
    """Values that are wrong, then what the keys of right ones get wrong together: nothing about one that is wrong."""
    yield from problems(public, Config)
    config, left_out = sound_part(public, Config) if isinstance(public, dict) else (None, set[str]())
    if config is None:
        return
    word = re.compile(rf"\b({'|'.join(map(re.escape, left_out))})\b")
    yield from (line for line in broken_rules(config) if not word.search(line))


def _without_secrets(value: object, where: str, found: list[str]) -> object:
    """The document without the passwords in it, so that nothing repeats them.

    Args:
        value: the document, or a part of it.
        where: that part.
        found: gets a line for each password.
    """
    if isinstance(value, list):
        return [_without_secrets(inner, _entry(inner, f"{where}[{i}]"), found) for i, inner in enumerate(value)]
    if isinstance(value, dict):
        if "password" in value:
            found.append(f"{where}.password: {_WRITTEN}".lstrip("."))
        inside = {key: inner for key, inner in value.items() if key != "password"}
        return {key: _without_secrets(inner, f"{where}.{key}".lstrip("."), found) for key, inner in inside.items()}
    if isinstance(value, str) and holds_password(value):
        found.append(f"{where}: {_IN_URL}")
        return f"{value.partition('://')[0]}://user@host"
    return value


def _entry(inner: object, where: str) -> str:
    name = inner.get("name") if isinstance(inner, dict) else None
    return where if isinstance(name, str) and holds_password(name) else entry_label(where, name)


def _placed(config: Config, folder: Path) -> Config:
    """Streams merged with the defaults, paths relative to the file's folder."""
    streams = [_with_places(merged(stream, config.defaults), folder) for stream in config.pipelines]
    return msgspec.structs.replace(
        config,
        mqtt=config.mqtt if isinstance(config.mqtt, UnsetType) else _with_places(config.mqtt, folder),
        outbox=_with_places(config.outbox, folder),
        trust=msgspec.structs.replace(config.trust, keys=tuple(str(folder / key) for key in config.trust.keys)),
        defaults=_with_places(config.defaults, folder),
        pipelines=tuple(msgspec.structs.replace(s, source=_source(s.source, folder)) for s in streams),
    )


def _with_places(table: _Table, folder: Path) -> _Table:
    paths = ((key, getattr(table, key, None)) for key in _PATHS)
    return msgspec.structs.replace(table, **{key: str(folder / path) for key, path in paths if isinstance(path, str)})


def _source(source: str, folder: Path) -> str:
    return str(folder / source) if named_kind(source) is None else source


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
