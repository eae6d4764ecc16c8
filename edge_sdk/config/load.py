"""Read a configuration file; report all its errors at once, one line each, and never a secret.

`read_config` parses the file, removes passwords that should not be there, gives each pipeline what [defaults] says,
finds wrong values and keys that contradict each other, and if there are none converts the document to `Config`.
`read_secret` reads a password from where the file says that it is, each time it is called. `broker_config_of` reads the
tables about a broker that a Python program passes; `mqtt_settings_of` and `outbox_settings_of` make the publisher's
settings from such tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from edge_sdk.config.schema import (
    CONFIG_VERSION,
    PASSWORD_KEYS,
    TLS_KEYS,
    BrokerConfig,
    Config,
    Defaults,
    DeviceConfig,
    MqttConfig,
    PipelineConfig,
    PublishConfig,
    password_keys,
)
from edge_sdk.core.errors import ConfigError, EdgeError, UsageError
from edge_sdk.core.logs import counted
from edge_sdk.core.toml import (
    convert,
    entry_label,
    entry_labels,
    first_lines,
    lenient_tables,
    nearest,
    problems,
    read_document,
    shown,
    value_problems,
)
from edge_sdk.messages.schema import SNAPSHOTS, Channel, check_name
from edge_sdk.outbox.event import OutboxConfig, OutboxSettings
from edge_sdk.publishing.settings import BrokerSettings, MqttSettings, Secret, read_password
from edge_sdk.sources.location import (
    AS_IT_COMES,
    device_timeout_s,
    holds_password,
    is_encrypted,
    names_user,
    without_slashes,
)
from edge_sdk.sources.opening import DEVICE, PICAMERA, kind_of, named_kind

DEFAULT_PATH = Path("/etc/edge-sdk/config.toml")
"""The configuration file of `edge-sdk run` where no other is given."""

_Settings = TypeVar("_Settings", bound=msgspec.Struct)

_CORES = os.sysconf("SC_NPROCESSORS_CONF")  # that this machine can have, also while some are off
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"(?!\.{1,2}$)[^/\x00]{1,255}")
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
    document = read_document(path, ConfigError)
    version = document.get("version")
    if version != CONFIG_VERSION:
        given_version = version if isinstance(version, int) else "missing"
        expected = f"expected version = {CONFIG_VERSION} at the top, above the first [table]"
        raise ConfigError(f"{path}: version is {given_version}, {expected}; a newer one needs a newer edge-sdk")
    found: list[str] = []
    public = _with_defaults(_without_secrets(document, "", found))
    if wrong := first_lines(chain(found, _wrong(public, Config, _broken_rules))):
        raise ConfigError(*(f"{path}: {line}" for line in wrong))
    config = convert(public, Config, path.parent)
    pipelines = (msgspec.structs.replace(s, source=_source(s.source, path.parent)) for s in config.pipelines)
    return msgspec.structs.replace(config, pipelines=tuple(pipelines))


def broker_config_of(tables: Mapping[str, object]) -> BrokerConfig:
    """Read the tables about a broker that a Python program passes, by name; paths are relative to the working folder.

    Raises:
        ConfigError: the tables are wrong; all problems in one line, each with the table and the key.
    """
    found: list[str] = []
    public = _without_secrets(_as_toml(tables), "", found)
    if wrong := first_lines(chain(found, _wrong(public, BrokerConfig, lambda config: _broker(config.mqtt)))):
        raise ConfigError("; ".join(wrong))
    return convert(public, BrokerConfig)


def _as_toml(value: object) -> object:
    """Return the tables as TOML would give them; in other mappings msgspec ignores keys that it does not know."""
    if isinstance(value, Mapping):
        return {key: _as_toml(inner) for key, inner in value.items()}
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _with_defaults(document: dict[str, object]) -> dict[str, object]:
    """Return the document with the values of [defaults], but wrong ones, in each pipeline that does not set them.

    A password of [defaults] is only for a source whose URL names a user, and the verification of certificates only for
    encrypted sources; a pipeline that sets one key of either group gets none of that group.
    """
    defaults, pipelines = document.get("defaults"), document.get("pipelines")
    if not isinstance(defaults, dict) or not isinstance(pipelines, list):
        return document
    wrong = {place.partition(".")[0] for place in lenient_tables(defaults, Defaults)[1]}
    keys = set(Defaults.__struct_encode_fields__) - wrong
    right = {key: value for key, value in defaults.items() if key in keys}
    return {
        **document,
        "pipelines": [{**_defaults_for(s, right), **s} if isinstance(s, dict) else s for s in pipelines],
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
        places = entry_labels(where, value)
        return [_without_secrets(inner, place, found) for inner, place in zip(value, places, strict=True)]
    if isinstance(value, dict):
        if "password" in value:
            found.append(f"{where}.password: {_WRITTEN}".lstrip("."))
        inside = {key: inner for key, inner in value.items() if key != "password"}
        return {key: _without_secrets(inner, f"{where}.{key}".lstrip("."), found) for key, inner in inside.items()}
    if isinstance(value, str) and holds_password(value):
        found.append(f"{where}: {_IN_URL}")
        return f"{value.partition('://')[0]}://user@host"
    return value


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


def given(table: msgspec.Struct, schema: type[msgspec.Struct] | None = None) -> dict[str, Any]:
    """Return the fields that a table has a value for, of those that another Struct has too."""
    fields = (schema or type(table)).__struct_fields__
    values = ((key, getattr(table, key, None)) for key in fields)
    return {key: value for key, value in values if value is not None}


def read_secret(table: MqttConfig | PipelineConfig, where: str, what: str, of: str = "") -> Secret | None:
    """Read the password that a table refers to; None where it refers to none. Raises ConfigError."""
    readers: tuple[Callable[[Any, str, str], Secret], ...] = (_from_file, read_variable, _from_credential)
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
        return read_password(path, what)
    except UsageError as cause:
        raise ConfigError(f"{where}: {cause}") from None


def read_variable(name: str, where: str, what: str) -> Secret:
    """Read a password from an environment variable; raise ConfigError.

    The message does not repeat the name, which may be the password itself, written there by mistake.
    """
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
    return read_password(path, what, others=0)  # systemd decides who may read it


# Rules that types do not express: keys that contradict each other, bad topics and bad URLs. Each yields one line for
# each problem. They do not look at files, so named files need not exist.

_Tables: TypeAlias = Any
"""Tables as `lenient_tables` returns them: a required key may be None."""


def broken_by_flag(table: type[msgspec.Struct], key: str, value: object) -> str:
    """Return what is wrong with the value of a key that a command-line flag gives; "" where nothing is."""
    found = [*value_problems(value, table, key)]
    if not found and key == "cpu_share" and isinstance(value, float):
        found = [*_share(value)]
    return "; ".join(found)


def _wrong(
    document: object, schema: type[msgspec.Struct], broken_rules: Callable[[_Tables], Iterator[str]]
) -> Iterator[str]:
    """Yield a line for each problem of a document, and for each rule that it breaks with keys that are right."""
    yield from problems(document, schema)
    tables, wrong = lenient_tables(document, schema)
    yield from (line for line in broken_rules(tables) if not line.startswith(tuple(wrong)))


def _broken_rules(config: _Tables) -> Iterator[str]:
    """Yield a line for each rule that a configuration breaks."""
    yield from _names(config)
    of_defaults = [] if config.defaults is None else [*_passwords(config.defaults)]
    yield from (f"defaults.{line}" for line in of_defaults)
    if config.mqtt is not None:
        yield from _broker(config.mqtt)
    else:
        for table in ("commands", "home_assistant"):
            if getattr(config, table) is not None:
                yield f"{table}: there is no broker, expected [mqtt] with the url of one"
    if config.home_assistant is not None:
        yield from _said("home_assistant.prefix: ", check_name, "topic prefix", config.home_assistant.prefix)
    for index, pipeline in enumerate(config.pipelines):
        entry = entry_label(f"pipelines[{index}]", pipeline.camera)
        place = f"{entry}: " if entry.endswith(")") else f"{entry}."
        yield from (f"{place}{line}" for line in _pipeline(pipeline) if line not in of_defaults)
    yield from _events(config)


def _broker(mqtt: _Tables) -> Iterator[str]:
    """Yield a line for each rule that the table `[mqtt]` breaks."""
    yield from (f"mqtt.{line}" for of in ("", "key_") for line in _passwords(mqtt, of))
    for level in mqtt.prefix.split("/"):
        yield from _said("mqtt.prefix: ", check_name, "topic prefix", level)
    is_given = any(getattr(mqtt, key) is not None for key in PASSWORD_KEYS)
    password = Secret("-") if is_given else None
    if mqtt.url is not None:
        yield from _said("mqtt.url: ", partial(MqttSettings.parse, password=password), mqtt.url)
    has_tls = mqtt.url is None or mqtt.url.lower().startswith(("mqtts:", "wss:"))
    for key in ("ca_file", "cert_file", "key_file"):
        if getattr(mqtt, key) is not None and not has_tls:
            yield f"mqtt.{key}: it is for mqtts:// and wss:// only; write mqtts:// in mqtt.url to encrypt"
    for key in ("key_file", *password_keys("key_")):
        is_alone = getattr(mqtt, key) is not None and mqtt.cert_file is None
        if is_alone and (has_tls or key != "key_file"):
            yield f"mqtt.{key}: there is no certificate that it belongs to, expected cert_file beside it"


def _names(config: _Tables) -> Iterator[str]:
    if config.device.name is not None:
        yield from _said("device.name: ", check_name, "device", config.device.name)
    yield from _said("device.site: ", check_name, "site", config.device.site)
    first: dict[str, int] = {}
    for index, pipeline in enumerate(config.pipelines):
        before = first.setdefault(pipeline.camera, index)
        if before != index and pipeline.camera is not None:
            both = f"pipelines[{before}] and pipelines[{index}] are both named {shown(pipeline.camera)}"
            yield f"{both}, expected a name of its own for each: their results would come on one topic"


def _pipeline(pipeline: _Tables) -> Iterator[str]:
    if pipeline.camera is not None:
        yield from _said("name: ", check_name, "camera", pipeline.camera)
    yield from _passwords(pipeline)
    if pipeline.source is not None:
        yield from _beside_source(pipeline)
    if pipeline.bundle is None:
        yield "bundle is missing, expected a NAME.edge folder that `edge-sdk build` wrote, here or in [defaults]"
    if pipeline.cpu_share is not None:
        yield from _share(pipeline.cpu_share)
        if not pipeline.tune:
            yield "cpu_share is a limit that tuning keeps, and tune = false leaves that out; expected one of them"


def _beside_source(pipeline: _Tables) -> Iterator[str]:
    """Yield a line for each problem of a source, and for each key that does not fit it."""
    if "://" in pipeline.source:
        yield from _said("source: ", kind_of, pipeline.source)
    if line := without_slashes(pipeline.source):
        yield f"source: {line}"
    given = [key for key in PASSWORD_KEYS if getattr(pipeline, key) is not None]
    if given and not names_user(pipeline.source):
        yield f"{given[0]}: source names no user, expected a URL such as rtsp://USER@HOST/…"
    yield from _rate(pipeline)
    for key in TLS_KEYS:
        if getattr(pipeline, key) != getattr(AS_IT_COMES, key) and not is_encrypted(pipeline.source):
            yield f"{key}: it is for rtsps:// and https:// only, and source is not encrypted"


def _share(cpu_share: float) -> Iterator[str]:
    if cpu_share > _CORES:
        most = f"{counted(_CORES, 'core')} or less, which this machine has"
        yield f"cpu_share is {cpu_share:g}, expected {most}; 0.5 is half a core"


def _passwords(table: _Tables, of: str = "") -> Iterator[str]:
    """Yield the problems of one password of a table; `of` is the argument of `password_keys`."""
    places = {key: getattr(table, key) for key in password_keys(of)}
    given = [key for key, place in places.items() if place is not None]
    if len(given) > 1:
        yield f"{given[0]} and {given[1]} are both there, expected one of them"
    # The message does not repeat the value, which may be the password itself.
    _, variable, credential = places
    if places[variable] is not None and not _VARIABLE.fullmatch(places[variable]):
        yield f"{variable}: expected the name of a variable: letters, digits and _; not the password"
    if places[credential] is not None and not _CREDENTIAL.fullmatch(places[credential]):
        yield f"{credential}: expected the name of a systemd credential, without a folder"


def _said(prefix: str, check: Callable[..., object], *values: str) -> Iterator[str]:
    """Yield the message of the error that a check of values raises, after `prefix` and without the name of a flag."""
    try:
        check(*values)
    except EdgeError as cause:
        yield prefix + str(cause).removeprefix("--mqtt: ")


def _rate(pipeline: _Tables) -> Iterator[str]:
    """Yield a line where the camera would be lost between two frames."""
    fps, kind = pipeline.fps, named_kind(pipeline.source)
    if fps is None or kind not in (DEVICE, PICAMERA):
        return
    # OpenCV has one timeout for all V4L2 cameras, whatever read_timeout_s is.
    timeout_s = device_timeout_s() if kind is DEVICE else pipeline.read_timeout_s
    if 1 / fps > timeout_s:
        yield (
            f"fps is {fps:g}, one frame in {1 / fps:.3g} s, and the camera is lost after {timeout_s:g} s without one; "
            f"expected {1 / timeout_s:.3g} or more"
        ) + ("" if kind is DEVICE else f", or a read_timeout_s above {1 / fps:.3g}")


def _events(config: _Tables) -> Iterator[str]:
    """Yield a line for each contradiction between the tables about events and publishing."""
    names = [pipeline.camera for pipeline in config.pipelines if pipeline.camera is not None]
    all_named = len(names) == len(config.pipelines)
    for index, event in enumerate(config.events):
        for camera in event.cameras or ():
            if all_named and camera not in names:
                near = nearest(camera, names)
                hint = f"did you mean {shown(near)}?" if near else f"there are {', '.join(map(shown, names))}"
                yield f"events[{index}].cameras: {shown(camera)} is no pipeline's name; {hint}"
    yield from _twice(config, names)
    if config.publish is None:
        return
    if config.mqtt is None:
        yield "publish is of what goes to a broker, and none is named; expected [mqtt] beside it"
    snapshots = config.publish.snapshots
    if snapshots is not None and snapshots.on != "interval" and not config.events:
        yield f'publish.snapshots.on: "{snapshots.on}", and there are no [[events]]; expected some, or on = "interval"'


def _twice(config: _Tables, names: list[str]) -> Iterator[str]:
    first: dict[tuple[str, str], int] = {}
    for index, event in enumerate(config.events):
        for label, camera in product(event.labels, event.cameras or names):
            before = first.setdefault((camera, label), index)
            if before != index:
                yield (
                    f"events[{before}] and events[{index}] are both about {shown(label)} on {shown(camera)}, "
                    "expected one of them: each event would be told twice"
                )
                return
