"""The commands that a device accepts on its `cmd` topic, their responses, and the camera settings that they change.

A command is a struct with its fields and ranges, a member of `Command`, and an entry of `COMMANDS` with an example and
its permission, which `Permission` names. The entry of a command that changes a camera's setting names the `Control`,
whose value is a field of `ControlState`: the handler, the retained state and Home Assistant's entities read these
entries. Any other command has its function in `edge_sdk.service.commands.HANDLERS`. No command carries code, a path, an
address or any name except a camera's. `ResponseMessage` is the response; a `RefusedError` is sent as one.
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

# One frame in 100 s; for fewer frames there is `pause`. Much lower rates would overflow the interval in nanoseconds.
SLOWEST_FPS, FASTEST_FPS = 0.01, 240

_EXPECTED_FPS = f"0 (as many as come) or {SLOWEST_FPS:g} to {FASTEST_FPS}"
_RATES = {"minimum": 0, "maximum": FASTEST_FPS, "anyOf": [{"const": 0}, {"minimum": SLOWEST_FPS}]}
_Camera = Annotated[str, Meta(min_length=1, max_length=100, description="the camera's name")]
_Id = Annotated[str, Meta(max_length=64, description="comes back in the response")]


class _CommandBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="command"):
    id: _Id | UnsetType = UNSET


class Pause(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="pause"):
    """Pause a camera: the model runs on none of its frames until `resume`."""

    camera: _Camera


class Resume(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="resume"):
    """Resume a paused camera: the model runs on its frames again."""

    camera: _Camera


class SetThreshold(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_threshold"):
    """Set the least confidence of a camera's detections."""

    camera: _Camera
    confidence: Annotated[float, Meta(ge=0.01, le=1)]


class SetRate(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_rate"):
    """Limit a camera's frames per second; 0 removes the limit."""

    camera: _Camera
    max_fps: Annotated[float, Meta(extra_json_schema=_RATES)]

    def __post_init__(self) -> None:
        """Raise ValueError unless `max_fps` is 0 or within the range, which no type expresses; msgspec reports it."""
        if self.max_fps != 0 and not SLOWEST_FPS <= self.max_fps <= FASTEST_FPS:
            raise ValueError(f"max_fps is {self.max_fps:g}, expected {_EXPECTED_FPS}")


class Snapshot(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="snapshot"):
    """Publish the next frame of a camera as JPEG on its `snapshot` topic, at most `width` pixels wide."""

    camera: _Camera
    width: Annotated[int, Meta(ge=64, le=1920)] = 640


class ReportState(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="report_state"):
    """Return the device's retained state in the response."""


class Reload(_CommandBase, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="reload"):
    """Read the configuration file again and apply it."""


Command: TypeAlias = Pause | Resume | SetThreshold | SetRate | Snapshot | ReportState | Reload


class ControlState(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one camera that commands have changed.

    Attributes:
        paused: whether the camera's frames are ignored.
        confidence: least confidence of results, 0-1; left out for models without a confidence threshold.
        max_fps: most frames per second on which the model runs; 0: no limit.
    """

    paused: bool
    confidence: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    max_fps: Annotated[float, Meta(ge=0)]


UNCHANGED = ControlState(paused=False, max_fps=0.0)
"""The state of a camera without commands; a threshold that is left out is the bundle's."""


class Control(NamedTuple):
    """One setting of a camera that commands change; its value is a field of `ControlState`."""

    name: str  # the field of `ControlState`
    entity_kind: str  # word in the id of its Home Assistant entity
    entity_label: str  # text after the camera's name in the name of the entity
    entity: dict[str, Any]  # constant keys of the entity's Home Assistant discovery message
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
"""All controls of a camera."""

THRESHOLDS = tuple(control.name for control in CONTROLS if control.is_threshold)
"""The controls that are thresholds of the model."""


class CommandKind(NamedTuple):
    """One of the commands."""

    permission: Permission  # the entry of `[commands] allow` that permits the command
    example: Command  # shown in the response to an invalid command
    control: Control | None = None  # the control that the command sets, if any
    value: bool | None = None  # the value that it sets; None: the command's field with the control's name


COMMANDS: dict[str, CommandKind] = {
    "pause": CommandKind("pause", Pause(camera="gate"), _PAUSED, value=True),
    "resume": CommandKind("pause", Resume(camera="gate"), _PAUSED, value=False),
    "set_threshold": CommandKind("set_threshold", SetThreshold(camera="gate", confidence=0.6), _CONFIDENCE),
    "set_rate": CommandKind("set_rate", SetRate(camera="gate", max_fps=5), _MAX_FPS),
    "snapshot": CommandKind("snapshot", Snapshot(camera="gate")),
    "report_state": CommandKind("report_state", ReportState()),
    "reload": CommandKind("reload", Reload()),
}
"""All commands by name, which is the struct's tag."""


def name_of(command: Command) -> str:
    """Return the name of a command: the value of `command` in its JSON."""
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
"""Codes of the reasons why a command is not carried out."""


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a command was not carried out: a code for programs, a message for people."""

    code: Code
    message: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A published snapshot: its topic, its size in pixels and in bytes, and the frame's number in its source."""

    topic: str
    width: Annotated[int, Meta(ge=1)]
    height: Annotated[int, Meta(ge=1)]
    bytes: Annotated[int, Meta(ge=0)]
    seq: Annotated[int, Meta(ge=0)]


class ResponseMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="response"):
    """The answer to one command.

    Attributes:
        device, boot_id, run_id: as in results.
        command: name of the command, if it could be read.
        id: the command's `id`.
        ok: whether the command was carried out.
        error: the reason why the command was not carried out.
        state: the retained state, for `report_state`.
        picture: the published picture, for `snapshot`.
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
