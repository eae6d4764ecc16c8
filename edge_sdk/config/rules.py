"""Rules of a configuration file that types do not express: keys that contradict each other, bad topics and bad URLs.

Each rule yields one line for each problem: the key, the value, and what is expected. Rules do not look at files, so
named files need not exist. The only fact about the machine that they use is its number of cores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import msgspec

from edge_sdk.config.schema import PASSWORD_KEYS, TLS_KEYS, Config, MqttConfig, PipelineConfig, password_keys
from edge_sdk.core.errors import EdgeError
from edge_sdk.core.machine import configured
from edge_sdk.core.toml import entry_label, nearest, problems, shown
from edge_sdk.messages.topics import check_name
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.sources.location import (
    AS_IT_COMES,
    device_timeout_s,
    is_encrypted,
    names_user,
    without_slashes,
)
from edge_sdk.sources.opening import DEVICE, PICAMERA, kind_of, named_kind

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"(?!\.{1,2}$)[^/\x00]{1,255}")


def broken_rules(config: Config) -> Iterator[str]:
    """Yield a line for each rule that a configuration breaks."""
    yield from _names(config)
    of_defaults = [] if config.defaults is None else [*_passwords(config.defaults)]
    yield from (f"defaults.{line}" for line in of_defaults)
    if config.mqtt is not None:
        yield from broken_broker_rules(config.mqtt)
    else:
        for table in ("commands", "home_assistant"):
            if getattr(config, table) is not None:
                yield f"{table}: there is no broker, expected [mqtt] with the url of one"
    if config.home_assistant is not None:
        prefix = config.home_assistant.prefix
        yield from _said(partial(check_name, "topic prefix", prefix), "home_assistant.prefix: ")
    for index, pipeline in enumerate(config.pipelines):
        entry = entry_label(f"pipelines[{index}]", pipeline.camera)
        yield from (f"{entry}: {line}" for line in _pipeline(pipeline) if line not in of_defaults)
    yield from _events(config)


def broken_broker_rules(mqtt: MqttConfig) -> Iterator[str]:
    """Yield a line for each rule that the table `[mqtt]` breaks."""
    yield from (f"mqtt.{line}" for of in ("", "key_") for line in _passwords(mqtt, of))
    for level in mqtt.prefix.split("/"):
        yield from _said(partial(check_name, "topic prefix", level), "mqtt.prefix: ")
    is_given = any(getattr(mqtt, key) is not None for key in PASSWORD_KEYS)
    password = Secret("-") if is_given else None
    yield from _said(lambda: MqttSettings.parse(mqtt.url, password=password), "mqtt.url: ")
    has_tls = mqtt.url.lower().startswith(("mqtts:", "wss:"))
    for key in ("ca_file", "cert_file", "key_file"):
        if getattr(mqtt, key) is not None and not has_tls:
            yield f"mqtt.{key}: it is for mqtts:// and wss:// only; write mqtts:// in mqtt.url to encrypt"
    for key in ("key_file", *password_keys("key_")):
        is_alone = getattr(mqtt, key) is not None and mqtt.cert_file is None
        if is_alone and (has_tls or key != "key_file"):
            yield f"mqtt.{key}: there is no certificate that it belongs to, expected cert_file beside it"


def broken_by_flag(table: type[msgspec.Struct], key: str, value: object) -> str:
    """Return what is wrong with the value of a key that a command-line flag gives; "" where nothing is."""
    found = [problem.text for problem in problems({key: value}, table) if problem.path[:1] == (key,)]
    if not found and key == "cpu_share" and isinstance(value, float):
        found = [*_share(value)]
    return "; ".join(found)


def _names(config: Config) -> Iterator[str]:
    if config.device.name is not None:
        yield from _said(partial(check_name, "device", config.device.name), "device.name: ")
    yield from _said(lambda: check_name("site", config.device.site), "device.site: ")
    first: dict[str, int] = {}
    for index, pipeline in enumerate(config.pipelines):
        before = first.setdefault(pipeline.camera, index)
        if before != index:
            both = f"pipelines[{before}] and pipelines[{index}] are both named {shown(pipeline.camera)}"
            yield f"{both}, expected a name of its own for each: their results would come on one topic"


def _pipeline(pipeline: PipelineConfig) -> Iterator[str]:
    yield from _said(lambda: check_name("camera", pipeline.camera), "name: ")
    yield from _passwords(pipeline)
    if "://" in pipeline.source:
        yield from _said(lambda: kind_of(pipeline.source), "source: ")
    yield from (f"source: {line}" for line in filter(None, [without_slashes(pipeline.source)]))
    given = [key for key in PASSWORD_KEYS if getattr(pipeline, key) is not None]
    if given and not names_user(pipeline.source):
        yield f"{given[0]}: source names no user, expected a URL such as rtsp://USER@HOST/…"
    yield from _rate(pipeline)
    for key in TLS_KEYS:
        if getattr(pipeline, key) != getattr(AS_IT_COMES, key) and not is_encrypted(pipeline.source):
            yield f"{key}: it is for rtsps:// and https:// only, and source is not encrypted"
    if pipeline.bundle is None:
        yield "bundle is missing, expected a NAME.edge folder that `edge-sdk build` wrote, here or in [defaults]"
    if pipeline.cpu_share is not None:
        yield from _share(pipeline.cpu_share)
        if not pipeline.tune:
            yield "cpu_share is a limit that tuning keeps, and tune = false leaves that out; expected one of them"


def _share(cpu_share: float) -> Iterator[str]:
    cores = configured()
    if cores is not None and cpu_share > cores:
        most = "1 core" if cores == 1 else f"{cores} cores"
        yield f"cpu_share is {cpu_share:g}, expected {most} or less, which this machine has; 0.5 is half a core"


def _passwords(table: MqttConfig | PipelineConfig, of: str = "") -> Iterator[str]:
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


def _said(check: Callable[[], object], prefix: str) -> Iterator[str]:
    """Yield the message of the error that a check raises, after `prefix` and without the name of a flag."""
    try:
        check()
    except EdgeError as cause:
        yield prefix + str(cause).removeprefix("--mqtt: ")


def _rate(pipeline: PipelineConfig) -> Iterator[str]:
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


def _events(config: Config) -> Iterator[str]:
    """Yield a line for each contradiction between the tables about events and publishing."""
    names = [pipeline.camera for pipeline in config.pipelines]
    for index, event in enumerate(config.events):
        for camera in event.cameras or ():
            if camera not in names:
                near = nearest(camera, names)
                hint = f"did you mean {shown(near)}?" if near else f"there are {', '.join(map(shown, names))}"
                yield f"events[{index}].cameras: {shown(camera)} is no pipeline's name; {hint}"
    yield from _twice(config, names)
    if config.publish is None:
        return
    if config.mqtt is None:
        yield "publish is of what goes to a broker, and none is named; expected [mqtt] beside it"
    if config.publish.snapshots is not None and config.publish.snapshots.on == "event" and not config.events:
        yield 'publish.snapshots.on: "event", and there are no [[events]]; expected some, or on = "interval"'


def _twice(config: Config, names: list[str]) -> Iterator[str]:
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
