"""Read a configuration file; report all its errors at once, one line each, and never a secret.

`read_config` parses the file, removes passwords that should not be there, gives each pipeline what [defaults] says and
converts the result to `Config`; `rules` finds keys that contradict each other. `read_secret` reads a password from
where the file says that it is, each time it is called. `broker_config_of` reads the tables about a broker that a
Python program passes; `mqtt_settings_of` and `outbox_settings_of` make the publisher's settings from such tables.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edge_sdk.config.rules import broken_broker_rules, broken_rules
from edge_sdk.config.schema import (
    PASSWORD_KEYS,
    TLS_KEYS,
    VERSION,
    BrokerConfig,
    Config,
    DeviceConfig,
    MqttConfig,
    PipelineConfig,
    PublishConfig,
    password_keys,
)
from edge_sdk.core.errors import ConfigError, UsageError
from edge_sdk.core.toml import convert, entry_label, first_lines, problems, read_document
from edge_sdk.messages.schema import SNAPSHOTS, Channel, default_device
from edge_sdk.outbox.event import OutboxConfig, OutboxSettings
from edge_sdk.publishing.settings import BrokerSettings, MqttSettings, Secret, read_password
from edge_sdk.sources.location import holds_password, is_encrypted, names_user
from edge_sdk.sources.opening import named_kind

_log = logging.getLogger(__name__)

DEFAULT_PATH = Path("/etc/edge-sdk/config.toml")
"""The configuration file of `edge-sdk run` where no other is given."""

_Settings = TypeVar("_Settings", bound=msgspec.Struct)

_OTHERS = 0o077  # permissions of all users but the file's owner
_FOLDER = "CREDENTIALS_DIRECTORY"
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

    Each pipeline has what [defaults] says for it. Paths relative to the file's folder are made relative to the working
    folder. Passwords are not read.

    Raises:
        ConfigError: the file is missing, not TOML or wrong; one line a problem, each with the file and the key.
    """
    with contextlib.suppress(OSError, ValueError):  # the code that reads the file reports other errors
        if not path.exists():
            elsewhere = "" if path == DEFAULT_PATH else f" (its usual place is {DEFAULT_PATH})"
            raise ConfigError(f"{path}: no such file; write one, see docs/config.md{elsewhere}")
    document = read_document(path, ConfigError, see="docs/config.md")
    _check_version(path, document.get("version"))
    found: list[str] = []
    public = _without_secrets(document, "", found)
    try:
        config = convert(_with_defaults(public), Config, path.parent)
    except msgspec.ValidationError:
        wrong = first_lines(chain(found, _problems(public)))
    else:
        wrong = first_lines(chain(found, broken_rules(config)))
    if wrong:
        raise ConfigError(*(f"{path}: {line}" for line in wrong))
    pipelines = (msgspec.structs.replace(s, source=_source(s.source, path.parent)) for s in config.pipelines)
    return msgspec.structs.replace(config, pipelines=tuple(pipelines))


def broker_config_of(tables: Mapping[str, object]) -> BrokerConfig:
    """Read the tables about a broker that a Python program passes, by name; paths are relative to the working folder.

    Raises:
        ConfigError: the tables are wrong; all problems in one line, each with the table and the key.
    """
    found: list[str] = []
    public = _without_secrets(_as_toml(tables), "", found)
    wrong = first_lines(chain(found, (problem.text for problem in problems(public, BrokerConfig))))
    if not wrong:
        config = convert(public, BrokerConfig)
        wrong = first_lines(broken_broker_rules(config.mqtt))
    if wrong:
        raise ConfigError("; ".join(wrong))
    return config


def _as_toml(value: object) -> object:
    """Return the tables as TOML would give them; in other mappings msgspec ignores keys that it does not know."""
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


def _problems(document: dict[str, object]) -> Iterator[str]:
    """Yield the values that are wrong by themselves, or else those that are wrong beside the values of [defaults]."""
    is_sound = True
    for problem in problems(document, Config):
        is_sound = False
        yield problem.text
    if is_sound:
        yield from (problem.text for problem in problems(_with_defaults(document), Config))


def _with_defaults(document: dict[str, object]) -> dict[str, object]:
    """Return the document with the values of [defaults] in each pipeline that does not set them.

    A password of [defaults] is only for a source whose URL names a user, and the verification of certificates only for
    encrypted sources; a pipeline that sets one key of either group gets none of that group.
    """
    defaults, pipelines = document.get("defaults"), document.get("pipelines")
    if not isinstance(defaults, dict) or not isinstance(pipelines, list):
        return document
    return {
        **document,
        "pipelines": [{**_defaults_for(s, defaults), **s} if isinstance(s, dict) else s for s in pipelines],
    }


def _defaults_for(pipeline: dict[str, object], defaults: dict[str, object]) -> dict[str, object]:
    source, alone = pipeline.get("source"), set[str]()
    for keys, is_for in ((PASSWORD_KEYS, names_user), (TLS_KEYS, is_encrypted)):
        if not (isinstance(source, str) and is_for(source)) or not pipeline.keys().isdisjoint(keys):
            alone.update(keys)
    return {key: value for key, value in defaults.items() if key not in alone}


def _without_secrets(value: Any, where: str, found: list[str]) -> Any:
    """Copy a document without the passwords in it, so that no message repeats them."""
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


def _source(source: str, folder: Path) -> str:
    return str(folder / source) if named_kind(source) is None else source


def mqtt_settings_of(
    device: DeviceConfig,
    mqtt: MqttConfig,
    publish: PublishConfig | None,
    password: Secret | None,
    key_password: Secret | None,
) -> MqttSettings:
    """Return the settings of the broker, and of how a device publishes there; raises UsageError."""
    tables = publish or PublishConfig()
    return MqttSettings.parse(
        mqtt.url,
        **{
            **given(mqtt, BrokerSettings),
            **given(tables.results),
            "site": device.site,
            "device": device.name,
            "password": password,
            "key_password": key_password,
            "events": Channel(**given(tables.events, Channel)),
            "snapshots": SNAPSHOTS if tables.snapshots is None else Channel(**given(tables.snapshots, Channel)),
        },
    )


def outbox_settings_of(outbox: OutboxConfig) -> OutboxSettings:
    """Return the settings of the outbox."""
    return OutboxSettings(**given(outbox))


def device_name(device: DeviceConfig) -> str:
    """Return this device's name; by default the host's."""
    return default_device() if device.name is None else device.name


def given(table: msgspec.Struct, schema: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """Return the fields that a table has a value for, of those that another Struct has too."""
    fields = (schema or type(table)).__struct_fields__
    values = ((key, getattr(table, key, None)) for key in fields)
    return {key: value for key, value in values if value is not None}


def read_secret(table: MqttConfig | PipelineConfig, where: str, what: str, of: str = "") -> Secret | None:
    """Read the password that a table refers to; None where it refers to none. Raises ConfigError."""
    readers: tuple[Callable[[Any, str, str], Secret], ...] = (_from_file, _from_variable, _from_credential)
    for key, read in zip(password_keys(of), readers, strict=True):
        place = getattr(table, key)
        if place is not None:
            try:
                return read(place, f"{where}.{key}", what)
            except UsageError as cause:
                raise ConfigError(str(cause)) from None
    return None


def _from_file(path: Path, where: str, what: str) -> Secret:
    try:
        secret = read_password(path, what)
    except UsageError as cause:
        raise ConfigError(f"{where}: {cause}") from None
    with contextlib.suppress(OSError):  # it was there, and was read
        mode = path.stat().st_mode & 0o777
        if mode & _OTHERS:
            _log.warning(f"{path}: other users can read {what} (mode {mode:04o}); chmod 600 {path}")
    return secret


def _from_variable(name: str, where: str, what: str) -> Secret:
    # The message does not repeat the name, which may be the password itself, written there by mistake.
    text = os.environ.get(name, "")
    if not text:
        raise ConfigError(f"{where}: the environment has no such variable, expected one that holds {what}")
    try:
        text.encode()
    except UnicodeEncodeError:  # not chained, because the cause holds the password
        raise ConfigError(f"{where}: {what} is not UTF-8") from None
    return Secret(text, where)


def _from_credential(name: str, where: str, what: str) -> Secret:
    folder = os.environ.get(_FOLDER)
    if not folder:
        raise ConfigError(
            f"{where}: ${_FOLDER} is not set, expected a start by systemd with LoadCredential= in the unit"
        )
    path = Path(folder) / name
    if not path.is_file():
        raise ConfigError(f"{where}: ${_FOLDER} has no such file, expected a LoadCredential= of that name in the unit")
    return read_password(path, what)
