"""Config: a device's configuration file, as it is written; docs/config.md is its reference.

Owns keys, types and ranges. What only several keys together can get wrong is found by `rules`. `UNSET` is what the file
does not say: what then holds is said by whoever uses it.

The tables that say what is published beside results, and how each kind travels.

The types that keys of a configuration file have in common, with their ranges and words.

The JSON Schema of configuration files, with which editors complete them.

Merging: what a stream does not say itself, [defaults] say.

Password: where a configuration file says that one is, and reading it from there.

Owns the rule that it stands in no configuration file and in no message. Nothing is read before somebody asks, and
everything again when it is asked for again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.core.errors import ConfigError, UsageError
from edge_sdk.events.rules import LONGEST_DWELL_S, MAX_FRAMES
from edge_sdk.messages.commands import CommandClass
from edge_sdk.messages.schema import EVENTS, LONGEST_EXPIRY_S, SNAPSHOTS
from edge_sdk.outbox.settings import LEAST_MB
from edge_sdk.publishing.settings import Secret, read_password
from edge_sdk.sources.location import FASTEST_FPS, LONGEST_WAIT_S, SHORTEST_WAIT_S, SLOWEST_FPS, names_user

_Labels = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Meta(min_length=1, description="classes, by the bundle's labels; each for itself"),
]
_Cameras = Annotated[tuple[str, ...], Meta(min_length=1, description="names of pipelines; without it all of them")]
_Confidence = Annotated[float, Meta(ge=0, le=1, description="what is less confident is not seen")]
_Expiry = Annotated[
    int,
    Meta(
        ge=1,
        le=LONGEST_EXPIRY_S,
        description="seconds after which a broker drops a message that it could not deliver",
        extra={"unit": "seconds"},
    ),
]
_Rate = Annotated[
    float,
    Meta(ge=0.001, le=1000, description="messages a second of one camera; of what is more the newest is kept"),
]
_Qos = Annotated[Literal[0, 1], Meta(description="1: acknowledged, perhaps twice")]
_SureQos = Annotated[
    Literal[1],
    Meta(
        description="acknowledged, perhaps twice",
        extra={"advice": {0: "nobody acknowledges at 0, and no event may be lost", 2: "1 does, doubles bear one seq"}},
    ),
]


def _frames(description: str) -> Any:
    return Meta(ge=1, le=MAX_FRAMES, description=f"in so many results in a row it is {description}")


def _seconds(description: str) -> Any:
    return Meta(ge=0, le=LONGEST_DWELL_S, description=description, extra={"unit": "seconds"})


class EventConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When classes have appeared or disappeared, which is told as an event; see `EventRule`.

    Attributes:
        labels: of the classes.
        cameras: where; everywhere by default.
        confidence, appear_frames, appear_s, disappear_frames, disappear_s, cooldown_s: see `EventRule`.
    """

    labels: _Labels
    cameras: _Cameras | UnsetType = UNSET
    confidence: _Confidence = 0.5
    appear_frames: Annotated[int, _frames("seen before it has appeared")] = 2
    appear_s: Annotated[float, _seconds("for so long it is seen before it has appeared")] = 0.0
    disappear_frames: Annotated[int, _frames("not seen before it has disappeared")] = 2
    disappear_s: Annotated[float, _seconds("for so long it is not seen before it has disappeared")] = 2.0
    cooldown_s: Annotated[float, _seconds("for so long after an appearance no other one is told")] = 0.0


class ResultsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How results travel.

    Attributes:
        qos: by default as `[mqtt]` says.
        expiry_s: seconds that a broker keeps one for.
        max_per_s: of one camera; no limit by default.
    """

    qos: _Qos | UnsetType = UNSET
    expiry_s: _Expiry = 60
    max_per_s: _Rate | UnsetType = UNSET


class EventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How events travel.

    Attributes:
        qos: of MQTT.
        expiry_s: seconds that a broker keeps one for.
        max_per_s: of one camera; no limit by default.
    """

    qos: _SureQos = 1
    expiry_s: _Expiry = EVENTS.expiry_s
    max_per_s: _Rate | UnsetType = UNSET


class SnapshotsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which pictures are published, and how they travel; see `SnapshotSettings`.

    Attributes:
        on: with each event, or at an interval.
        interval_s: seconds; with `interval`.
        max_per_s: of one camera; with `event`.
        width: pixels at most.
        quality: of JPEG.
        qos: of MQTT.
        expiry_s: seconds that a broker keeps one for.
    """

    on: Annotated[Literal["event", "interval"], Meta(description="when a picture is made")]
    interval_s: (
        Annotated[float, Meta(ge=0.1, le=86400, description="from one picture to the next", extra={"unit": "seconds"})]
        | UnsetType
    ) = UNSET
    max_per_s: (
        Annotated[float, Meta(ge=0.001, le=10, description="pictures a second of one camera; the newest is kept")]
        | UnsetType
    ) = UNSET
    width: Annotated[
        int, Meta(ge=16, le=4096, description="wider pictures are made smaller", extra={"unit": "pixels"})
    ] = 640
    quality: Annotated[int, Meta(ge=20, le=100, description="of JPEG")] = 80
    qos: _Qos = SNAPSHOTS.qos
    expiry_s: _Expiry = SNAPSHOTS.expiry_s


class PublishConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What goes to the broker of each camera.

    Attributes:
        results: how results travel.
        events: how events travel.
        snapshots: which pictures; none by default.
    """

    results: ResultsConfig = ResultsConfig()
    events: EventsConfig = EventsConfig()
    snapshots: SnapshotsConfig | UnsetType = UNSET


MOST = 1e9
"""The largest number of seconds, milliseconds, frames or cores: a billion seconds are 30 years."""


ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$(?!\n)"
"""A path that a line can show; Python's `$` matches before a line's end, too."""


LONGEST_RUN_S, LONGEST_TRIAL_S = 600, 3600
"""Of one run of a model, and of trying a new bundle: more is meant in milliseconds."""


def counted(unit: str, description: str, most: float = MOST) -> Any:
    """What is above 0, in some unit."""
    return Meta(gt=0, le=most, description=description, extra={"unit": unit})


def timeout(description: str) -> Any:
    """Of a camera, in seconds."""
    return Meta(ge=SHORTEST_WAIT_S, le=LONGEST_WAIT_S, description=f"seconds {description}", extra={"unit": "seconds"})


FilePath = Annotated[str, Meta(pattern=ONE_LINE, description="a path")]
Name = Annotated[str, Meta(description="1 to 100 characters, none of / + # $")]
PasswordFile = Annotated[
    str, Meta(pattern=ONE_LINE, description="a file whose first line is the password; other users cannot read it")
]
PasswordEnv = Annotated[str, Meta(description="the name of an environment variable that holds the password")]
PasswordCredential = Annotated[
    str, Meta(description="the name of a systemd credential (LoadCredential=NAME:…) that holds the password")
]
BundlePath = Annotated[str, Meta(pattern=ONE_LINE, description="a NAME.edge folder that `edge-sdk build` wrote")]
SourceLocation = Annotated[
    str,
    Meta(
        pattern=ONE_LINE,
        description="a V4L2 index or /dev path, an rtsp(s):// or http(s):// URL, picamera2, video, images, pattern",
        extra={"number": "camera"},
    ),
]
Pixels = Annotated[int, Meta(ge=16, le=16384)]
SizeWh = Annotated[
    tuple[Pixels, Pixels], Meta(description="width and height in pixels, of a camera", examples=[[1280, 720]])
]


VERSION = 1
"""Of the format."""


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who this device is.

    Attributes:
        name: one level of every topic; by default the host's name.
        site: one level of every topic: where the device stands.
    """

    name: Annotated[Name, Meta(description="this device's name, a level of every topic")] | UnsetType = UNSET
    site: Annotated[Name, Meta(description="where the device stands, a level of every topic")] = "default"


class MqttConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The broker; see `MqttSettings`.

    Attributes:
        url: without a password.
        password_file, password_env, password_credential: where the user's password is; one of them at most.
        ca_file: authorities to trust instead of the system's, PEM.
        cert_file: this device's own certificate, PEM.
        key_file: its private key, PEM, where it does not stand in cert_file.
        key_password_file, key_password_env, key_password_credential: where the password of an encrypted key is; one of
            them at most.
        prefix: first levels of every topic.
        qos: of results.
        protocol: the version of MQTT.
    """

    url: Annotated[str, Meta(description="mqtt[s]://[user@]host[:port] or ws[s]://[user@]host[:port][/path]")]
    password_file: PasswordFile | UnsetType = UNSET
    password_env: PasswordEnv | UnsetType = UNSET
    password_credential: PasswordCredential | UnsetType = UNSET
    ca_file: Annotated[FilePath, Meta(description="PEM file of the authorities to trust instead of the system's")] | (
        UnsetType
    ) = UNSET
    cert_file: Annotated[
        FilePath, Meta(description="PEM file of this device's certificate, for a broker that wants one")
    ] | (UnsetType) = UNSET
    key_file: Annotated[FilePath, Meta(description="PEM file of its private key, where cert_file does not hold it")] | (
        UnsetType
    ) = UNSET
    key_password_file: PasswordFile | UnsetType = UNSET
    key_password_env: PasswordEnv | UnsetType = UNSET
    key_password_credential: PasswordCredential | UnsetType = UNSET
    prefix: Annotated[str, Meta(description="first levels of every topic")] = "edge/v1"
    qos: Annotated[Literal[0, 1], Meta(description="of results; 1: acknowledged, perhaps twice")] = 0
    protocol: Annotated[Literal["5", "3.1.1"], Meta(description="version of MQTT")] = "5"


class OutboxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where events wait for the broker; see `OutboxSettings`.

    Attributes:
        folder: of its file; by default the state folder's.
        max_mb: 10^6 bytes that the file may take.
        max_age_days: days that an event may wait.
    """

    folder: Annotated[FilePath, Meta(description="where events wait on disk for the broker")] | UnsetType = UNSET
    max_mb: Annotated[
        float, Meta(ge=LEAST_MB, le=MOST, description="10^6 bytes that the file may take", extra={"unit": "megabytes"})
    ] = 64
    max_age_days: Annotated[float, counted("days", "days that an event may wait, without those the device is off")] = 14


class TrustConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whose bundles run here.

    Attributes:
        keys: public key files; when there are any, a bundle that none of them signed is refused.
        allow_older: run a bundle although a newer version of it ran here.
    """

    keys: Annotated[tuple[FilePath, ...], Meta(description="public key files that `edge-sdk keygen` wrote")] = ()
    allow_older: Annotated[bool, Meta(description="run a signed bundle although a newer version of it ran here")] = (
        False
    )


_CommandClass = Annotated[CommandClass, Meta(extra={"advice": {"resume": "write pause, which stands for resume too"}})]


class CommandsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be asked of this device over MQTT; see `edge_sdk.messages.commands`.

    Attributes:
        allow: classes of commands; `pause` stands for `resume` as well.
    """

    allow: Annotated[tuple[_CommandClass, ...], Meta(description="commands that are carried out; all others are off")]


class HomeAssistantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether Home Assistant finds this device by itself.

    Attributes:
        enabled: false takes back what an earlier run has told it.
        prefix: first level of Home Assistant's own topics.
        labels: of the bundles, each of which gets a count of its own.
    """

    enabled: Annotated[bool, Meta(description="false: take back what was told")] = True
    prefix: Annotated[Name, Meta(description="first level of Home Assistant's own topics")] = "homeassistant"
    labels: Annotated[tuple[str, ...], Meta(description="labels that get a count of their own", max_length=20)] = ()


class Defaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a stream may say, and [defaults] for those that do not; see `PipelineSettings` and `SourceOptions`.

    Attributes:
        bundle: a NAME.edge folder.
        password_file, password_env, password_credential: where the password of the source's user is; one of them at
            most.
        size_wh: pixels, 16 to 16384.
        fps: frames a second.
        pixel_format: of a V4L2 camera.
        transport: of RTSP.
        rotate: degrees clockwise.
        repeat: files begin again when they are through.
        open_timeout_s: seconds that a stream may take to open.
        read_timeout_s: seconds without a frame after which a stream is lost.
        tls_fingerprint: SHA-256 of the certificate that an rtsps or https camera shows; one of these three at most.
        tls_ca_file: authorities to trust instead of the system's, PEM.
        tls_verify: false: a camera's certificate is not verified.
        allow_other_hosts: a stream may redirect to other servers.
        latency_ms: the budget, milliseconds from capture to outbox.
        variant: which of the bundle's models runs, and no other.
        cpu_share: cores that tuning may use.
        tune: whether what runs best here is found out.
        best_effort: run although the budget cannot be kept here.
        run_limit_s: seconds after which a run of the model is ended.
        trial_s: seconds that a new bundle may be tried; 0: not at all.
        every_frame: of a video file each frame runs, in turn.
    """

    bundle: BundlePath | UnsetType = UNSET
    password_file: PasswordFile | UnsetType = UNSET
    password_env: PasswordEnv | UnsetType = UNSET
    password_credential: PasswordCredential | UnsetType = UNSET
    size_wh: SizeWh | UnsetType = UNSET
    fps: (
        Annotated[
            float,
            Meta(
                ge=SLOWEST_FPS,
                le=FASTEST_FPS,
                description="frames a second that a camera is asked for",
                extra={"unit": "frames a second"},
            ),
        ]
        | UnsetType
    ) = UNSET
    pixel_format: Annotated[Literal["MJPG", "YUYV"], Meta(description="of a V4L2 camera")] | UnsetType = UNSET
    transport: Annotated[Literal["tcp", "udp"], Meta(description="of RTSP")] | UnsetType = UNSET
    rotate: Annotated[Literal[0, 90, 180, 270], Meta(description="degrees clockwise")] | UnsetType = UNSET
    repeat: Annotated[bool, Meta(description="files begin again when they are through")] | UnsetType = UNSET
    open_timeout_s: Annotated[float, timeout("that a stream may take to open")] | UnsetType = UNSET
    read_timeout_s: Annotated[float, timeout("without a frame, after which a stream is lost")] | UnsetType = UNSET
    tls_fingerprint: (
        Annotated[str, Meta(description="SHA-256 fingerprint of the certificate of an rtsps or https camera")]
        | UnsetType
    ) = UNSET
    tls_ca_file: (
        Annotated[FilePath, Meta(description="PEM file of the authorities to trust instead of the system's")]
        | UnsetType
    ) = UNSET
    tls_verify: Annotated[bool, Meta(description="false: a camera's certificate is not verified")] | UnsetType = UNSET
    allow_other_hosts: Annotated[bool, Meta(description="a stream may redirect to other servers")] | UnsetType = UNSET
    latency_ms: (
        Annotated[
            float,
            Meta(
                ge=1,
                le=MOST,
                description="budget in milliseconds, capture to outbox; overrides the bundle's",
                extra={"unit": "milliseconds"},
            ),
        ]
        | UnsetType
    ) = UNSET
    variant: Annotated[str, Meta(min_length=1, description="one of the bundle's models, and no other")] | UnsetType = (
        UNSET
    )
    cpu_share: Annotated[float, counted("cores", "what tuning may use: 0.5 is half a core")] | UnsetType = UNSET
    tune: Annotated[bool, Meta(description="find out what runs best here, and remember it")] | UnsetType = UNSET
    best_effort: Annotated[bool, Meta(description="run although the budget cannot be kept here")] | UnsetType = UNSET
    run_limit_s: (
        Annotated[float, counted("seconds", "end a run of the model after so long", LONGEST_RUN_S)] | UnsetType
    ) = UNSET
    trial_s: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=LONGEST_TRIAL_S,
                description="seconds that a new bundle may be tried; 0: never",
                extra={"unit": "seconds"},
            ),
        ]
        | UnsetType
    ) = UNSET
    every_frame: Annotated[bool, Meta(description="each frame of a video file, in turn")] | UnsetType = UNSET


class PipelineConfig(Defaults, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stream.

    Attributes:
        name: of the camera in topics and messages; no other stream of this device has it.
        source: see `edge_sdk.open_source`; without a password.
    """

    name: Annotated[Name, Meta(description="the camera's name in topics: 1 to 100 characters, none of / + # $")]
    source: SourceLocation


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One configuration file.

    Attributes:
        version: of the format, `VERSION`.
        device: who this is.
        mqtt: the broker; without it results are lines of JSON on standard output.
        outbox: where events wait for the broker.
        trust: whose bundles run.
        commands: what may be asked of this device.
        home_assistant: whether Home Assistant finds it.
        defaults: what a stream does not say itself.
        pipelines: the streams.
        events: when classes have appeared or disappeared.
        publish: how what is of a camera goes to the broker.
    """

    version: Annotated[Literal[1], Meta(description="of this format")]
    device: DeviceConfig = DeviceConfig()
    mqtt: MqttConfig | UnsetType = UNSET
    outbox: OutboxConfig = OutboxConfig()
    trust: TrustConfig = TrustConfig()
    commands: CommandsConfig | UnsetType = UNSET
    home_assistant: HomeAssistantConfig | UnsetType = UNSET
    defaults: Defaults = Defaults()
    pipelines: Annotated[tuple[PipelineConfig, ...], Meta(min_length=1)]
    events: tuple[EventConfig, ...] = ()
    publish: PublishConfig | UnsetType = UNSET


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tables about a broker alone; see `Config`."""

    device: DeviceConfig = DeviceConfig()
    mqtt: MqttConfig
    outbox: OutboxConfig = OutboxConfig()
    publish: PublishConfig | UnsetType = UNSET


def config_schema() -> bytes:
    """The schema, indented; docs/config.schema.json is this."""
    import inspect  # nobody needs it on a device

    schema = msgspec.json.schema(Config)
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on; their attributes stand with the keys.
        definition["description"] = inspect.cleandoc(definition["description"]).partition("\n")[0]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Configuration of edge-sdk on a device"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


PASSWORD_KEYS = ("password_file", "password_env", "password_credential")
"""Exactly one of them says where a password is."""

_OTHERS = 0o077  # rights of everybody but the file's owner
_FOLDER = "CREDENTIALS_DIRECTORY"


def password_keys(of: str = "") -> tuple[str, ...]:
    """The keys of one password of several in a table: `of` is `key_` for that of a private key."""
    return tuple(f"{of}{key}" for key in PASSWORD_KEYS)


def read_secret(
    table: MqttConfig | Defaults, where: str, what: str, warn: Callable[[str], None], of: str = ""
) -> Secret | None:
    """Read the password that a table names; None where it names none.

    Args:
        table: with one of `PASSWORD_KEYS` at most, as `read_config` gives it.
        where: the table, for people: `mqtt`.
        what: the password, for people.
        warn: takes one line for people: a file that others can read.
        of: which of a table's passwords; see `password_keys`.

    Raises:
        ConfigError: it cannot be read, or is no password.
    """
    try:
        for key in password_keys(of):
            place = getattr(table, key)
            if place is not UNSET:
                return _read(key, place, f"{where}.{key}", what, warn)
    except UsageError as cause:
        raise ConfigError(str(cause)) from None
    return None


def _read(key: str, place: str, where: str, what: str, warn: Callable[[str], None]) -> Secret:
    if key.endswith("_file"):
        return _from_file(Path(place), where, what, warn)
    return _from_variable(place, where, what) if key.endswith("_env") else _from_credential(place, where, what)


def _from_file(path: Path, where: str, what: str, warn: Callable[[str], None]) -> Secret:
    try:
        secret = read_password(path, what)
    except UsageError as cause:
        raise ConfigError(f"{where}: {cause}") from None
    with contextlib.suppress(OSError):  # it was there, and was read
        mode = path.stat().st_mode & 0o777
        if mode & _OTHERS:
            warn(f"warning: {path}: other users can read {what} (mode {mode:04o}); chmod 600 {path}")
    return secret


def _from_variable(name: str, where: str, what: str) -> Secret:
    # The name is not repeated: whoever takes the key for the password's own place wrote the password there.
    text = os.environ.get(name, "")
    if not text:
        raise ConfigError(f"{where}: the environment has no such variable, expected one that holds {what}")
    try:
        text.encode()
    except UnicodeEncodeError:  # not chained: it holds the password
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


TLS_KEYS = ("tls_fingerprint", "tls_ca_file", "tls_verify")
"""How a camera's certificate is verified."""


def merged(pipeline: PipelineConfig, defaults: Defaults) -> PipelineConfig:
    """The stream with what it does not say itself.

    A password of the defaults is for a source whose URL names a user, and that names no place of its own. A stream that
    says how its certificate is verified says it alone.
    """
    alone: set[str] = set()
    if not names_user(pipeline.source) or _says_one_of(pipeline, PASSWORD_KEYS):
        alone.update(PASSWORD_KEYS)
    if _says_one_of(pipeline, TLS_KEYS):
        alone.update(TLS_KEYS)
    missing = {
        field: getattr(defaults, field)
        for field in Defaults.__struct_fields__
        if getattr(pipeline, field) is UNSET and field not in alone
    }
    return msgspec.structs.replace(pipeline, **missing)


def _says_one_of(pipeline: PipelineConfig, keys: Iterable[str]) -> bool:
    return any(getattr(pipeline, key) is not UNSET for key in keys)
