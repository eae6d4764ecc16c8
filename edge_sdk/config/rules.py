"""Rules: what keys of a right type get wrong together, or in the words of a topic or a URL.

Knows nothing of files: what is named need not be there. Of the machine it knows how many cores it has.

Rates that no source can have: rules about a stream's `fps`.

What tables about events and publishing get wrong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.config.schema import (
    PASSWORD_KEYS,
    TLS_KEYS,
    Config,
    Defaults,
    MqttConfig,
    PipelineConfig,
    merged,
    password_keys,
)
from edge_sdk.core.errors import CameraError, EdgeError
from edge_sdk.core.machine import configured
from edge_sdk.core.protocols import NAME_LIMIT, is_name
from edge_sdk.core.toml import entry_label, nearest, problems, shown
from edge_sdk.messages.topics import check_name
from edge_sdk.publishing.settings import MqttSettings, Secret
from edge_sdk.sources.location import (
    AS_IT_COMES,
    PATTERN_SLOWEST_FPS,
    SourceOptions,
    device_timeout_s,
    is_encrypted,
    names_user,
    pattern_of,
    without_slashes,
)
from edge_sdk.sources.opening import DEVICE, PATTERN, PICAMERA, kind_of, named_kind


def broken_rate_rules(stream: PipelineConfig) -> Iterator[str]:
    """One line a rule that is broken.

    Args:
        stream: with what [defaults] say for it.
    """
    fps, kind = stream.fps, named_kind(stream.source)
    if isinstance(fps, UnsetType):
        return
    if kind is PATTERN and fps < PATTERN_SLOWEST_FPS and _has_no_rate(stream.source):
        yield f"fps is {fps:g}, expected {PATTERN_SLOWEST_FPS:g} or more: a pattern is no slower"
    elif kind is DEVICE:
        # OpenCV has one time-out for all V4L2 cameras, whatever read_timeout_s says.
        yield from _too_slow(fps, device_timeout_s(), "a V4L2 camera")
    elif kind is PICAMERA:
        given = stream.read_timeout_s
        timeout_s = AS_IT_COMES.read_timeout_s if isinstance(given, UnsetType) else given
        advice = f", or a read_timeout_s above {1 / fps:.3g}"
        yield from (line + advice for line in _too_slow(fps, timeout_s, "by read_timeout_s the camera"))


def _too_slow(fps: float, timeout_s: float, what: str) -> Iterator[str]:
    if 1 / fps > timeout_s:
        yield (
            f"fps is {fps:g}, one frame in {1 / fps:.3g} s, and {what} is lost after {timeout_s:g} s without one; "
            f"expected {1 / timeout_s:.3g} or more"
        )


def _has_no_rate(pattern: str) -> bool:
    try:
        return pattern_of(pattern)[1] is None
    except CameraError:  # which is said where patterns are looked at
        return False


def broken_event_rules(config: Config) -> Iterator[str]:
    """One line a rule that is broken: the key, what is there, what is expected."""
    yield from _cameras(config)
    yield from _twice(config)
    if not isinstance(config.publish, UnsetType):
        if isinstance(config.mqtt, UnsetType):
            yield "publish is of what goes to a broker, and none is named; expected [mqtt] beside it"
        yield from _snapshots(config)


def _cameras(config: Config) -> Iterator[str]:
    names = [pipeline.name for pipeline in config.pipelines]
    for index, event in enumerate(config.events):
        for camera in event.cameras or ():
            if camera not in names:
                near = nearest(camera, names)
                hint = f"did you mean {shown(near)}?" if near else f"there are {', '.join(map(shown, names))}"
                yield f"events[{index}].cameras: {shown(camera)} is no pipeline's name; {hint}"


def _twice(config: Config) -> Iterator[str]:
    first: dict[tuple[str, str], int] = {}
    told: set[tuple[int, int, str]] = set()
    for index, event in enumerate(config.events):
        for label in event.labels:
            for pipeline in config.pipelines:
                if event.cameras and pipeline.name not in event.cameras:
                    continue
                before = first.setdefault((pipeline.name, label), index)
                if before == index or (before, index, label) in told:
                    continue
                told.add((before, index, label))
                yield (
                    f"events[{before}] and events[{index}] are both about {shown(label)} on {shown(pipeline.name)}, "
                    "expected one of them: each event would be told twice"
                )
        for label in event.labels:
            if not is_name(label):
                yield (
                    f"events[{index}].labels: {shown(label)} can be no event's, "
                    f"expected 1 to {NAME_LIMIT} printable characters"
                )
        if len(set(event.labels)) < len(event.labels):
            yield f"events[{index}].labels: one is there twice"


def _snapshots(config: Config) -> Iterator[str]:
    snapshots = config.publish.snapshots if not isinstance(config.publish, UnsetType) else UNSET
    if isinstance(snapshots, UnsetType):
        return
    if snapshots.on == "interval":
        if snapshots.interval_s is UNSET:
            yield 'publish.snapshots.interval_s is missing, expected seconds, for on = "interval"'
        if snapshots.max_per_s is not UNSET:
            yield 'publish.snapshots.max_per_s is for on = "event"; expected interval_s alone'
        return
    if snapshots.interval_s is not UNSET:
        yield 'publish.snapshots.interval_s is for on = "interval"; expected max_per_s, or nothing'
    if not config.events:
        yield 'publish.snapshots.on: "event", and there are no [[events]]; expected some, or on = "interval"'


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"(?!\.{1,2}$)[^/\x00]{1,255}")


def broken_rules(config: Config) -> Iterator[str]:
    """One line a rule that is broken: the key, what is there, what is expected."""
    yield from _names(config)
    yield from _passwords(config.defaults, "defaults.")
    if not isinstance(config.mqtt, UnsetType):
        yield from broken_broker_rules(config.mqtt)
    else:
        for table in ("commands", "home_assistant"):
            if getattr(config, table) is not UNSET:
                yield f"{table}: there is no broker, expected [mqtt] with the url of one"
    if not isinstance(config.home_assistant, UnsetType):
        prefix = config.home_assistant.prefix
        yield from _said(partial(check_name, "topic prefix", prefix), "home_assistant.prefix: ")
    for index, pipeline in enumerate(config.pipelines):
        entry = entry_label(f"pipelines[{index}]", pipeline.name)
        yield from (f"{entry}: {problem}" for problem in _pipeline(pipeline, config.defaults))
    yield from broken_event_rules(config)


def _names(config: Config) -> Iterator[str]:
    if not isinstance(config.device.name, UnsetType):
        yield from _said(lambda: check_name("device", str(config.device.name)), "device.name: ")
    yield from _said(lambda: check_name("site", config.device.site), "device.site: ")
    first: dict[str, int] = {}
    for index, pipeline in enumerate(config.pipelines):
        before = first.setdefault(pipeline.name, index)
        if before != index:
            both = f"pipelines[{before}] and pipelines[{index}] are both named {shown(pipeline.name)}"
            yield f"{both}, expected a name of its own for each: their results would come on one topic"


def broken_broker_rules(mqtt: MqttConfig) -> Iterator[str]:
    """Those of the table about the broker."""
    yield from _passwords(mqtt, "mqtt.")
    yield from _passwords(mqtt, "mqtt.", "key_")
    for level in mqtt.prefix.split("/"):
        yield from _said(partial(check_name, "topic prefix", level), "mqtt.prefix: ")
    is_given = any(getattr(mqtt, key) is not UNSET for key in PASSWORD_KEYS)
    password = Secret("-") if is_given else None
    yield from _said(lambda: MqttSettings.parse(mqtt.url, password=password), "mqtt.url: ")
    yield from _of_tls(mqtt)


def _of_tls(mqtt: MqttConfig) -> Iterator[str]:
    is_encrypted = mqtt.url.lower().startswith(("mqtts:", "wss:"))
    for key in ("ca_file", "cert_file", "key_file"):
        if getattr(mqtt, key) is not UNSET and not is_encrypted:
            yield f"mqtt.{key}: it is for mqtts:// and wss:// only; write mqtts:// in mqtt.url to encrypt"
    for key in ("key_file", *password_keys("key_")):
        is_alone = getattr(mqtt, key) is not UNSET and mqtt.cert_file is UNSET
        if is_alone and (is_encrypted or key != "key_file"):
            yield f"mqtt.{key}: there is no certificate that it belongs to, expected cert_file beside it"


def _pipeline(pipeline: PipelineConfig, defaults: Defaults) -> Iterator[str]:
    yield from _said(lambda: check_name("camera", pipeline.name), "name: ")
    yield from _passwords(pipeline, "")
    if "://" in pipeline.source:
        yield from _said(lambda: kind_of(pipeline.source), "source: ")
    yield from (f"source: {line}" for line in filter(None, [without_slashes(pipeline.source)]))
    given = [key for key in PASSWORD_KEYS if getattr(pipeline, key) is not UNSET]
    if given and not names_user(pipeline.source):
        yield f"{given[0]}: source names no user, expected a URL such as rtsp://USER@HOST/…"
    whole = merged(pipeline, defaults)
    yield from broken_rate_rules(whole)
    yield from _of_camera_tls(pipeline, whole)
    if whole.bundle is UNSET:
        yield "bundle is missing, expected a NAME.edge folder that `edge-sdk build` wrote, here or in [defaults]"
    yield from _share(whole)
    if whole.cpu_share is not UNSET and whole.tune is False:
        yield "cpu_share is a limit that tuning keeps, and tune = false leaves that out; expected one of them"


def _of_camera_tls(stream: PipelineConfig, whole: PipelineConfig) -> Iterator[str]:
    """Those of how a camera's certificate is verified.

    Args:
        stream: as it is written.
        whole: with what [defaults] say for it.
    """
    given = {key: value for key in TLS_KEYS if (value := getattr(whole, key)) is not UNSET}
    yield from _said(lambda: SourceOptions(**given), "")
    for key in TLS_KEYS:
        if getattr(stream, key) is not UNSET and not is_encrypted(stream.source):
            yield f"{key}: it is for rtsps:// and https:// only, and source is not encrypted"


def broken_by_flag(key: str, value: object) -> str:
    """What is wrong with a key of a stream that a flag of a command line gives; empty where nothing is."""
    document = {key: value}
    found = [*problems(document, Defaults)] or [*_share(msgspec.convert(document, Defaults))]
    return "; ".join(found)


def _share(stream: Defaults) -> Iterator[str]:
    cores = configured()
    if cores is not None and not isinstance(stream.cpu_share, UnsetType) and stream.cpu_share > cores:
        most = "1 core" if cores == 1 else f"{cores} cores"
        yield f"cpu_share is {stream.cpu_share:g}, expected {most} or less, which this machine has; 0.5 is half a core"


def _passwords(table: MqttConfig | Defaults, prefix: str, of: str = "") -> Iterator[str]:
    places = {key: getattr(table, key) for key in password_keys(of)}
    given = [key for key, place in places.items() if place is not UNSET]
    if len(given) > 1:
        yield f"{prefix}{given[0]} and {prefix}{given[1]} are both there, expected one of them"
    # What is there may be the password itself, and is not repeated.
    _, variable, credential = places
    if places[variable] is not UNSET and not _VARIABLE.fullmatch(places[variable]):
        yield f"{prefix}{variable}: expected the name of a variable: letters, digits and _; not the password"
    if places[credential] is not UNSET and not _CREDENTIAL.fullmatch(places[credential]):
        yield f"{prefix}{credential}: expected the name of a systemd credential, without a folder"


def _said(check: Callable[[], object], prefix: str) -> Iterator[str]:
    """What a check of somebody else's says, without the name of a flag."""
    try:
        check()
    except EdgeError as cause:
        yield prefix + str(cause).removeprefix("--mqtt: ")
