"""Commands: what a device can be told on its `cmd` topic, and the answer to it on `res`.

Owns names, fields and ranges. No command carries code, a path, an address or a name of anything but a camera. What a
command does, and who may send which, is the service's matter.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

CommandClass: TypeAlias = Literal["pause", "set_threshold", "set_rate", "snapshot", "report_state", "reload"]
"""What is allowed or not; `pause` stands for `resume` as well."""

CLASSES: tuple[CommandClass, ...] = get_args(CommandClass)

SLOWEST_FPS = 0.01
"""A frame in 100 s. Who wants fewer pauses; far below, the nanoseconds are too many for a number."""

FASTEST_FPS = 240

_EXPECTED_FPS = f"0 (as many as come) or {SLOWEST_FPS:g} to {FASTEST_FPS}"
_RATES = {"minimum": 0, "maximum": FASTEST_FPS, "anyOf": [{"const": 0}, {"minimum": SLOWEST_FPS}]}
_Camera = Annotated[str, Meta(min_length=1, max_length=100, description="the camera's name")]
_Id = Annotated[str, Meta(max_length=64, description="comes back in the response")]


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="command"):
    id: _Id | UnsetType = UNSET


class Pause(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="pause"):
    """No frame of this camera is looked at any more, until it is resumed."""

    camera: _Camera


class Resume(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="resume"):
    """Frames of this camera are looked at again."""

    camera: _Camera


class SetThreshold(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_threshold"):
    """Detections of this camera count from this confidence on."""

    camera: _Camera
    confidence: Annotated[float, Meta(ge=0.01, le=1)]


class SetRate(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="set_rate"):
    """So many frames a second of this camera run at most; 0: as many as come."""

    camera: _Camera
    max_fps: Annotated[float, Meta(extra_json_schema=_RATES)]

    def __post_init__(self) -> None:
        """Refuse what is neither 0 nor in the range, which no type says; msgspec reports the ValueError."""
        if self.max_fps != 0 and not SLOWEST_FPS <= self.max_fps <= FASTEST_FPS:
            raise ValueError(f"max_fps is {_in_short(self.max_fps)}, expected {_EXPECTED_FPS}")


class Snapshot(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="snapshot"):
    """The next frame of this camera as JPEG on its `snapshot` topic, at most `width` pixels wide."""

    camera: _Camera
    width: Annotated[int, Meta(ge=64, le=1920)] = 640


class ReportState(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="report_state"):
    """The response holds what the retained state says."""


class Reload(_Order, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="reload"):
    """The configuration file is read again."""


Command: TypeAlias = Pause | Resume | SetThreshold | SetRate | Snapshot | ReportState | Reload


def class_of(command: Command) -> CommandClass:
    """Which class of commands this is of."""
    if isinstance(command, Resume):
        return "pause"
    # msgspec types a tag as any text or number; the classes above are the tags.
    name: CommandClass = command.__struct_config__.tag  # type: ignore[assignment]
    return name


_EXAMPLES: tuple[Command, ...] = (
    Pause(camera="gate"),
    Resume(camera="gate"),
    SetThreshold(camera="gate", confidence=0.6),
    SetRate(camera="gate", max_fps=5),
    Snapshot(camera="gate"),
    ReportState(),
    Reload(),
)


def example_of(name: str) -> Command:
    """A command of this name, for people who wrote a wrong one."""
    return next(each for each in _EXAMPLES if each.__struct_config__.tag == name)


def _in_short(value: float) -> str:
    """A number as people write it, where that is the same number."""
    text = f"{value:g}"
    return text if float(text) == value else repr(value)


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
    """What came of one command.

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
    """A command is not carried out.

    Args:
        code: for programs.
        message: for people.
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.complaint = Complaint(code=code, message=message)
