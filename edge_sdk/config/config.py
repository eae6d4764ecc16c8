"""Config: a device's configuration file, as it is written; docs/config.md is its reference.

Owns keys, types and ranges. What only several keys together can get wrong is found by `rules`. `UNSET` is what the file
does not say: what then holds is said by whoever uses it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.commands import CommandClass
from edge_sdk.config.fields import (
    LONGEST_RUN_S,
    LONGEST_TRIAL_S,
    MOST,
    BundlePath,
    FilePath,
    Name,
    PasswordCredential,
    PasswordEnv,
    PasswordFile,
    SizeWh,
    SourceLocation,
    counted,
    timeout,
)
from edge_sdk.config.publish import EventConfig, PublishConfig
from edge_sdk.publishing import LEAST_MB
from edge_sdk.source_options import FASTEST_FPS, SLOWEST_FPS

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
    """What may be asked of this device over MQTT; see `edge_sdk.commands`.

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
        source: see `edge_sdk.camera.open_source`; without a password.
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
