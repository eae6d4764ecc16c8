"""The commands that a device can be given on its `cmd` topic, the answers to them, and what of a camera they set.

A command is a struct with its fields and ranges, a member of `Command`, and an entry of `COMMANDS` with its permission
and an example. One that sets something of a camera names its `Control` there, and its value is a field of
`ControlState`: the handler, the retained state and Home Assistant's entities read these entries. Any other command has
its function in `edge_sdk.service.commands.HANDLERS`. No command carries code, a path, an address or a name of anything
but a camera. `ResponseMessage` is the answer; `RefusedError` becomes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.tasks.decoders import thresholds_of

if TYPE_CHECKING:
    from edge_sdk.bundle.manifest import Manifest

Permission: TypeAlias = Literal["pause", "set_threshold", "set_rate", "snapshot", "report_state", "reload"]
"""What `[commands] allow` may hold; `pause` permits `resume` as well."""

PERMISSIONS: tuple[Permission, ...] = get_args(Permission)

# A frame in 100 s: who wants fewer pauses. Far below, the nanoseconds are too many for a number.
SLOWEST_FPS, FASTEST_FPS = 0.01, 240

_EXPECTED_FPS = f"0 (as many as come) or {SLOWEST_FPS:g} to {FASTEST_FPS}"
_RATES = {"minimum": 0, "maximum": FASTEST_FPS, "anyOf": [{"const": 0}, {"minimum": SLOWEST_FPS}]}
_Camera = Annotated[str, Meta(min_length=1, max_length=100, description="the camera's name")]
_Id = Annotated[str, Meta(max_length=64, description="comes back in the response")]


class _CommandBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="command"):
    id: _Id | UnsetType = UNSET


class Pause(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="pause"):
    """Pause a camera: none of its frames is run until `resume`."""

    camera: _Camera


class Resume(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="resume"):
    """Frames of this camera are looked at again."""

    camera: _Camera


class SetThreshold(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_threshold"):
    """Detections of this camera count from this confidence on."""

    camera: _Camera
    confidence: Annotated[float, Meta(ge=0.01, le=1)]


class SetRate(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_rate"):
    """Limit a camera's frames per second; 0 removes the limit."""

    camera: _Camera
    max_fps: Annotated[float, Meta(extra_json_schema=_RATES)]

    def __post_init__(self) -> None:
        """Refuse what is neither 0 nor in the range, which no type says; msgspec reports the ValueError."""
        if self.max_fps != 0 and not SLOWEST_FPS <= self.max_fps <= FASTEST_FPS:
            raise ValueError(f"max_fps is {self.max_fps:g}, expected {_EXPECTED_FPS}")


class Snapshot(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="snapshot"):
    """The next frame of this camera as JPEG on its `snapshot` topic, at most `width` pixels wide."""

    camera: _Camera
    width: Annotated[int, Meta(ge=64, le=1920)] = 640


class ReportState(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="report_state"):
    """The response holds what the retained state says."""


class Reload(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="reload"):
    """The configuration file is read again."""


Command: TypeAlias = Pause | Resume | SetThreshold | SetRate | Snapshot | ReportState | Reload


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one camera that commands have changed.

    Attributes:
        paused: whether the camera's frames are ignored.
        confidence: least confidence of detections; left out where the model is not a detector.
        max_fps: most frames per second that the model runs on; 0: no limit.
    """

    paused: bool
    confidence: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    max_fps: Annotated[float, Meta(ge=0)]


UNCHANGED = ControlState(paused=False, max_fps=0.0)
"""The controls of a camera for which no command has set anything; a threshold that is left out is the bundle's."""


class Control(NamedTuple):
    """One setting of a camera that commands change; its value is a field of `ControlState`."""

    name: str  # the field of `ControlState`
    entity_kind: str  # word in the id of its Home Assistant entity
    entity_label: str  # what follows the camera's name in the name of the entity
    entity: dict[str, Any]  # the fixed part of the entity, in Home Assistant's words
    # Takes the camera's manifest and whether its source has a pace; returns why the camera lacks this control, or "".
    refusal: Callable[[Manifest, bool], str] = lambda _manifest, _is_paced: ""
    # Whether it is one of the bundle's `thresholds`, which the model uses; `PipelineRunner` acts on every other.
    is_threshold: bool = False


_NUMBER = {"platform": "number", "entity_category": "config"}
_PAUSED = Control("paused", "switch", "", {"platform": "switch", "state_on": "False", "state_off": "True"})
_CONFIDENCE = Control(
    "confidence",
    "confidence",
    "confidence",
    {**_NUMBER, "min": 0.01, "max": 1, "step": 0.01, "mode": "slider"},
    lambda manifest, _: (
        ""
        if "confidence" in thresholds_of(manifest)
        else f"a bundle for {manifest.task} with decoder {manifest.decoder} has no confidence threshold"
    ),
    is_threshold=True,
)
_MAX_FPS = Control(
    "max_fps",
    "rate",
    "rate limit",
    {**_NUMBER, "min": 0, "max": FASTEST_FPS, "step": 0.5, "mode": "box"},  # Home Assistant hides what is outside
    lambda _, is_paced: "" if is_paced else "this source's frames come in turn, and none is left out",
)

CONTROLS = (_PAUSED, _CONFIDENCE, _MAX_FPS)
"""All settings of a camera that commands change."""

THRESHOLDS = tuple(control.name for control in CONTROLS if control.is_threshold)
"""Those that the model uses."""


class CommandKind(NamedTuple):
    """One of the commands."""

    permission: Permission  # that `[commands] allow` must hold for it
    example: Command  # for people who wrote a wrong one
    control: Control | None = None  # what of a camera it sets, if anything
    value: bool | None = None  # what it sets; None: the command's field with the control's name


COMMANDS: dict[str, CommandKind] = {
    "pause": CommandKind("pause", Pause(camera="gate"), _PAUSED, value=True),
    "resume": CommandKind("pause", Resume(camera="gate"), _PAUSED, value=False),
    "set_threshold": CommandKind("set_threshold", SetThreshold(camera="gate", confidence=0.6), _CONFIDENCE),
    "set_rate": CommandKind("set_rate", SetRate(camera="gate", max_fps=5), _MAX_FPS),
    "snapshot": CommandKind("snapshot", Snapshot(camera="gate")),
    "report_state": CommandKind("report_state", ReportState()),
    "reload": CommandKind("reload", Reload()),
}
"""By name, which is the struct's tag."""


def name_of(command: Command) -> str:
    """Return the name of a command, as it is written on the topic."""
    return str(command.__struct_config__.tag)


Code: TypeAlias = Literal[
    "malformed",
    "too_large",
    "unknown_command",
    "not_allowed",
    "retained",
    "response_topic",
    "too_fast",
    "unknown_camera",
    "not_possible",
    "failed",
]
"""Why a command was not carried out."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command was not carried out: a word for programs, a line for people."""

    code: Code
    message: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot: where it was published, its size in pixels and in bytes, and the frame's number in its source."""

    topic: str
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=0)]
    seq: Annotated[int, Meta(ge=0)]


class ResponseMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="response"):
    """The answer to one command.

    Attributes:
        device, boot_id, run_id: as in results.
        command: which, where that could be read.
        id: as the command had it.
        ok: whether it was carried out.
        error: why not.
        state: what the retained state says, for `report_state`.
        picture: of a `snapshot`.
    """

    schema: Literal[1] = 1
    device: str
    boot_id: str
    run_id: str
    command: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    ok: bool
    error: Complaint | UnsetType = UNSET
    state: msgspec.Raw | UnsetType = UNSET
    picture: Picture | UnsetType = UNSET


class RefusedError(Exception):
    """A command is not carried out: a code for programs, a message for people."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.complaint = Complaint(code=code, message=message)
