"""Control: what commands have set of one camera, and what they need to know of it.

Written by the daemon's main thread and read by the stream's, which acts on it between two frames. It belongs to the
camera and not to its pipeline: it stays when another pipeline takes over, and goes with the camera or the process.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from edge_sdk.commands import CommandClass
from edge_sdk.picture import Image


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a camera once its stream runs.

    Attributes:
        task: of its bundle.
        confidence: the bundle's threshold; None for what is no detector.
        labels: of its bundle.
        is_paced: whether frames come at their own pace.
        tells_events: whether it is told what appears and disappears.
    """

    task: str
    confidence: float | None
    labels: tuple[str, ...]
    is_paced: bool
    tells_events: bool = False


class Shot(msgspec.Struct, frozen=True, eq=False):
    """A picture that was asked for, and its number in its source."""

    image: Image
    seq: int


class Control:
    """Of one camera.

    Attributes:
        known: set by the stream; None until it runs.
        paused: whether frames are left alone.
        confidence: from which detections count; None: as the bundle has it.
        max_fps: frames a second that run at most; 0: as many as come.
        version: grows with every change of these.
        wants_shot: whether somebody waits for a picture.
        shot: the picture; whoever takes it sets it back.
    """

    def __init__(self) -> None:
        self.known: Known | None = None
        self.paused = False
        self.confidence: float | None = None
        self.max_fps = 0.0
        self.version = 0
        self.wants_shot = False
        self.shot: Shot | None = None

    def change(
        self, *, paused: bool | None = None, confidence: float | None = None, max_fps: float | None = None
    ) -> None:
        """Set what is given; it acts on the next frame."""
        self.paused = self.paused if paused is None else paused
        self.confidence = self.confidence if confidence is None else confidence
        self.max_fps = self.max_fps if max_fps is None else max_fps
        self.version += 1  # last: who sees it sees the rest


class Controls:
    """Of all cameras of a process, by name.

    Attributes:
        are_told: whether the state says what they are: where commands are allowed.
        sees: whether it is published what each camera sees.
    """

    def __init__(self) -> None:
        self._of: dict[str, Control] = {}
        self.are_told = self.sees = False

    def of(self, camera: str) -> Control:
        """One camera's; made when it is asked for first."""
        return self._of.setdefault(camera, Control())

    def keep_only(self, cameras: Collection[str], allowed: Collection[CommandClass]) -> None:
        """Forget what was set of other cameras, and by commands of other classes: nobody could set it back."""
        for camera in self._of.keys() - set(cameras):
            del self._of[camera]
        for control in self._of.values():
            control.confidence = control.confidence if "set_threshold" in allowed else None
            control.change(
                paused=control.paused and "pause" in allowed,
                max_fps=control.max_fps if "set_rate" in allowed else 0.0,
            )
