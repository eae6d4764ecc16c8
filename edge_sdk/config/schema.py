"""Tables and keys of a device's configuration file; docs/config.md is its reference.

The struct of a table is, or extends, the settings of the part that it configures: that of a pipeline extends
`SourceOptions`. Type, range, unit, default and description of a key stand with its field, once: the reader of files
(`load`), the flags of `edge-sdk run`, the JSON Schema and the errors all take them from there. `None` stands for a key
that the file does not have. `load` also checks keys that must fit each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import msgspec
from msgspec import Meta

from edge_sdk.core.toml import ONE_LINE
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.inference.cascade import CropSettings
from edge_sdk.inference.trial import TRIAL_S
from edge_sdk.messages.commands import Permission
from edge_sdk.messages.schema import EVENTS, SNAPSHOTS, Channel, Expiry, MessageRate, Qos
from edge_sdk.outbox.event import OutboxConfig
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import BrokerSettings
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import FORMS

CONFIG_VERSION = 1
"""Version of the format."""

PASSWORD_KEYS = ("password_file", "password_env", "password_credential")
"""Keys that say where a password is; a table has one of them at most."""

TLS_KEYS = ("tls_fingerprint", "tls_ca_file", "tls_verify")
"""Keys that say how a camera's certificate is verified; a pipeline has one of them at most."""


def password_keys(of: str = "") -> tuple[str, ...]:
    """Return the keys of one of the passwords in a table; `of` is `key_` for the password of a private key."""
    return tuple(f"{of}{key}" for key in PASSWORD_KEYS)


_MOST = 1e9
"""The largest number of milliseconds or cores."""

_PasswordFile = Annotated[Path, Meta(description="a file whose first line is the password; other users cannot read it")]
_PasswordEnv = Annotated[str, Meta(description="the name of an environment variable that holds the password")]
_PasswordCredential = Annotated[
    str, Meta(description="the name of a systemd credential (LoadCredential=NAME:…) that holds the password")
]


def _in(unit: str, description: str, **limits: Any) -> Meta:
    return Meta(description=description, extra={"unit": unit}, **limits)


_LatencyMs = Annotated[
    float, _in("milliseconds", "budget in milliseconds, capture to outbox; overrides the bundle's", ge=1, le=_MOST)
]
_CpuShare = Annotated[float, _in("cores", "what tuning may use: 0.5 is half a core", gt=0, le=_MOST)]
_RunLimitS = Annotated[float, _in("seconds", "end a run of the model after so long", gt=0, le=600)]


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[device]`: who this device is."""

    name: Annotated[str, Meta(description="this device's name, in every topic; the host's by default")] | None = None
    site: Annotated[str, Meta(description="where the device stands, a level of every topic")] = "default"


class MqttConfig(BrokerSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[mqtt]`: the broker."""

    url: Annotated[
        str,
        Meta(
            extra={"also": ("host", "broker", "server", "port", "user", "username")},
            description="mqtt[s]://[user@]host[:port] or ws[s]://[user@]host[:port][/path]",
        ),
    ]
    password_file: _PasswordFile | None = None
    password_env: _PasswordEnv | None = None
    password_credential: _PasswordCredential | None = None
    key_password_file: _PasswordFile | None = None
    key_password_env: _PasswordEnv | None = None
    key_password_credential: _PasswordCredential | None = None


class TrustConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[trust]`: whose bundles run here."""

    keys: Annotated[
        tuple[Annotated[Path, Meta(description="a path")], ...],
        Meta(description="public key files that `edge-sdk keygen` wrote"),
    ] = ()
    allow_older: Annotated[bool, Meta(description="run a signed bundle although a newer version of it ran here")] = (
        False
    )


class CommandsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[commands]`: what may be asked of this device over MQTT; see `edge_sdk.messages.commands`."""

    allow: Annotated[tuple[Permission, ...], Meta(description="commands that are carried out; all others are off")]


class ThenConfig(CropSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[pipelines.then]`: a second bundle, for the objects that the first one finds."""

    bundle: Annotated[Path, Meta(description="a NAME.edge folder that `edge-sdk build` wrote")]


class PipelineConfig(SourceOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[[pipelines]]`: one pipeline, with the options of its source."""

    camera: Annotated[
        str,
        Meta(
            extra={"also": ("camera",)}, description="the camera's name in topics: 1 to 100 characters, none of / + # $"
        ),
    ] = msgspec.field(name="name")
    source: Annotated[str, Meta(pattern=ONE_LINE, description=FORMS, extra={"also": ("url", "input")})]
    bundle: (
        Annotated[Path, Meta(description="a NAME.edge folder that `edge-sdk build` wrote", extra={"also": ("model",)})]
        | None
    ) = None
    password_file: _PasswordFile | None = None
    password_env: _PasswordEnv | None = None
    password_credential: _PasswordCredential | None = None
    latency_ms: _LatencyMs | None = None
    confidence: (
        Annotated[
            float,
            Meta(
                description="how confident an object must be to count, 0 to 1",
                ge=0,
                le=1,
                extra={"also": ("threshold", "conf", "score")},
            ),
        ]
        | None
    ) = None
    iou: (
        Annotated[
            float,
            Meta(
                description="drop an object that overlaps a surer one by more, 0 to 1",
                ge=0,
                le=1,
                extra={"also": ("nms", "iou_threshold")},
            ),
        ]
        | None
    ) = None
    labels: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1)], ...],
            Meta(
                extra={"also": ("classes",)},
                min_length=1,
                description="the classes that count, by the bundle's labels; all others are left out",
            ),
        ]
        | None
    ) = None
    variant: Annotated[str, Meta(min_length=1, description="one of the bundle's models, and no other")] | None = None
    cpu_share: _CpuShare | None = None
    tune: Annotated[bool, Meta(description="find out what runs best here, and remember it")] = True
    best_effort: Annotated[bool, Meta(description="run although the budget cannot be kept here")] = False
    run_limit_s: _RunLimitS | None = None
    trial_s: Annotated[float, _in("seconds", "seconds that a new bundle may be tried; 0: never", ge=0, le=3600)] = (
        TRIAL_S
    )
    every_frame: Annotated[bool, Meta(description="each frame of a video file, in turn")] = False
    then: ThenConfig | None = None


if TYPE_CHECKING:
    Defaults = PipelineConfig
else:
    Defaults = msgspec.defstruct(
        "Defaults",
        [
            (field.name, Optional[field.type], None)  # noqa: UP045 - a type that is only known here
            for field in msgspec.structs.fields(PipelineConfig)
            if field.name not in ("camera", "source")
        ],
        namespace={"__doc__": "Table `[defaults]`: keys of a pipeline, for all pipelines that lack them."},
        module=__name__,
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )


class EventConfig(EventRule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[[events]]`: a rule, and the cameras for which it holds."""

    cameras: (
        Annotated[tuple[str, ...], Meta(min_length=1, description="names of pipelines; without it all of them")] | None
    ) = None


class ResultsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[publish.results]`: how results travel; see `Channel`."""

    qos: Qos | None = None
    expiry_s: Expiry = 60
    max_per_s: MessageRate | None = None


class EventsConfig(Channel, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[publish.events]`: how events travel; acknowledged always, as none may be lost."""

    qos: Annotated[Literal[1], Meta(description="acknowledged, perhaps twice")] = 1
    expiry_s: Expiry = EVENTS.expiry_s


class SnapshotsConfig(SnapshotSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Table `[publish.snapshots]`: which pictures are published, and how they travel; see `Channel`."""

    qos: Qos = SNAPSHOTS.qos
    expiry_s: Expiry = SNAPSHOTS.expiry_s


class PublishConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Tables `[publish.…]`: what goes to the broker of each camera."""

    results: ResultsConfig = ResultsConfig()
    events: EventsConfig = EventsConfig()
    snapshots: SnapshotsConfig | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of one configuration file of a device."""

    version: Annotated[Literal[1], Meta(description="version of this format")]
    device: DeviceConfig = DeviceConfig()
    mqtt: MqttConfig | None = None
    outbox: OutboxConfig = OutboxConfig()
    trust: TrustConfig = TrustConfig()
    commands: CommandsConfig | None = None
    home_assistant: HomeAssistantSettings | None = None
    defaults: Defaults | None = None
    pipelines: Annotated[tuple[PipelineConfig, ...], Meta(min_length=1, extra={"also": ("cameras", "camera")})]
    events: tuple[EventConfig, ...] = ()
    publish: PublishConfig | None = None


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The tables about a broker alone; see `Config`."""

    device: DeviceConfig = DeviceConfig()
    mqtt: MqttConfig
    outbox: OutboxConfig = OutboxConfig()
    publish: PublishConfig | None = None


def config_schema() -> bytes:
    """Return the JSON Schema of configuration files, with which editors complete them; docs/config.schema.json."""
    import inspect  # not needed on a device

    schema = msgspec.json.schema(Config, schema_hook=lambda _path: {"type": "string", "pattern": ONE_LINE})
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on; their attributes stand with the keys.
        definition["description"] = inspect.cleandoc(definition["description"]).partition("\n")[0]
        definition["properties"] = {key: _without_null(field) for key, field in definition["properties"].items()}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Configuration of edge-sdk on a device"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    """Leave out null, which TOML does not have."""
    field = {key: value for key, value in field.items() if key != "default" or not isinstance(value, dict | None)}
    kinds = [kind for kind in field.pop("anyOf", []) if kind != {"type": "null"}]
    return {**field, **kinds[0]} if len(kinds) == 1 else field | ({"anyOf": kinds} if kinds else {})
