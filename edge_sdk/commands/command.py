"""Command: what a device can be told, as it is written on its `cmd` topic.

Owns names, fields and ranges. No command carries code, a path, an address or a name of anything but a camera.
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
        """One number beside a range is nothing that a type says; msgspec makes a refusal of the ValueError."""
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


def command_schema() -> bytes:
    """The JSON Schema of commands, indented; docs/command.schema.json is this."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edge-sdk command, schema 1",
        **msgspec.json.schema(Command),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
