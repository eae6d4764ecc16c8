"""Cameras that do what a script says."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as JobTimeoutError
from types import ModuleType
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

from edge_sdk.frame import Image
from edge_sdk.source_options import device_timeout_s

# Cameras that do what a script says, behind the names and habits of OpenCV's captures and of picamera2.
#
# A script is a list of openings, each a text: `!` it does not open; `f` a frame, `F` one of another size, `x` one that
# cannot be decoded, `s` silence until the reader's time-out, `e` an error of the driver's. After the last letter the
# camera ends, and after the last opening it gives frames for ever.

SIZE_WH, OTHER_SIZE_WH = (640, 480), (320, 240)
_PACE_S = 0.002


class Script:
    """What the cameras of one test do, and what became of them.

    Attributes:
        openings: how often one was opened, or tried to be.
        held: captures and requests that were not given back.
        door: clear while it is not opened a second time.
    """

    def __init__(self, *openings: str) -> None:
        self._openings = openings
        self.openings = 0
        self.held = 0
        self.door = threading.Event()
        self.door.set()

    def open(self) -> Iterator[str] | None:
        """What the next opening gives; None where it does not open."""
        if self.openings:
            self.door.wait(30)
        acts = self._openings[self.openings] if self.openings < len(self._openings) else "f" * 10**6
        self.openings += 1
        return None if acts == "!" else iter(acts)


def picture(act: str) -> Image:
    """The picture of an `f` or an `F`."""
    size_wh = OTHER_SIZE_WH if act == "F" else SIZE_WH
    return np.zeros((size_wh[1], size_wh[0], 3), np.uint8)


class VideoCapture:
    """As `cv2.VideoCapture`, of 640x480 and 30 a second unless that is set; notes what is set and opened."""

    script: ClassVar[Script]
    gives: ClassVar[dict[int, float]]
    calls: ClassVar[list[tuple[int, float]]]
    opened: ClassVar[list[tuple[str, int]]]

    def __init__(self) -> None:
        self._acts: Iterator[str] | None = None
        self._act, self._silence_s, self._has_late_silence = "", 0.0, False
        self._values: dict[int, float] = {
            cv2.CAP_PROP_FRAME_WIDTH: SIZE_WH[0],
            cv2.CAP_PROP_FRAME_HEIGHT: SIZE_WH[1],
            cv2.CAP_PROP_FPS: 30,
            cv2.CAP_PROP_FOURCC: cv2.VideoWriter.fourcc(*"YUYV"),
        }

    def open(self, location: str, backend: int, parameters: list[int]) -> bool:
        self.opened.append((location, backend))
        given = dict(zip(parameters[::2], parameters[1::2], strict=True))
        self._silence_s = given.get(cv2.CAP_PROP_READ_TIMEOUT_MSEC, device_timeout_s() * 1000) / 1000
        self._has_late_silence = backend == cv2.CAP_GSTREAMER  # it "grabbed", and has nothing (docs/cameras.md)
        self._acts = self.script.open()
        self.script.held += self._acts is not None
        return self._acts is not None

    def grab(self) -> bool:
        if self._acts is None:
            return False
        self._act = next(self._acts, "")
        if self._act == "e":
            raise cv2.error("unforeseen")
        time.sleep(self._silence_s if self._act == "s" else _PACE_S)
        return self._has_late_silence if self._act == "s" else self._act != ""

    def retrieve(self, buffer: Image | None = None) -> tuple[bool, Image | None]:
        return (True, picture(self._act)) if self._act in ("f", "F") else (False, buffer)

    def set(self, name: int, value: float) -> bool:
        self.calls.append((name, value))
        self._values[name] = self.gives.get(name, value)
        return True

    def get(self, name: int) -> float:
        return self._values.get(name, 0)

    def release(self) -> None:
        self.script.held -= self._acts is not None
        self._acts = None


class Request:
    """As `picamera2.request.CompletedRequest`."""

    def __init__(self, camera: Picamera2, act: str) -> None:
        self._camera, self._act = camera, act
        camera.held += 1

    def get_metadata(self) -> dict[str, Any]:
        return {"SensorTimestamp": self._camera.clock_ns() - 30_000_000}

    def make_array(self, name: str) -> Any:
        assert name == "main"
        if self._act == "x":
            raise ValueError("cannot reshape array")
        width, height = OTHER_SIZE_WH if self._act == "F" else self._camera.config["main"]["size"]
        return np.zeros((height, width, 3), np.uint8)

    def release(self) -> None:
        self._camera.held -= 1


class Job:
    """As `picamera2.job.Job`."""

    def __init__(self, camera: Picamera2) -> None:
        self._camera = camera

    def get_result(self, timeout: float | None = None) -> Request:
        assert timeout is not None
        act = self._camera.next_act()
        time.sleep(timeout if act == "s" else _PACE_S)
        if act == "s":
            raise JobTimeoutError
        if act in ("", "e"):
            raise RuntimeError("Camera frontend has timed out!")
        return Request(self._camera, act)


class Picamera2:
    """As `picamera2.Picamera2`."""

    script: ClassVar[Script]
    cameras = 2
    given: tuple[int, int] | None = None
    clock: Callable[[], int] = staticmethod(time.monotonic_ns)
    opened: ClassVar[list[Picamera2]]

    def __init__(self, camera_num: int = 0) -> None:
        acts = self.script.open()
        if acts is None:
            raise RuntimeError("Camera __init__ sequence did not complete.")
        self._acts = acts
        self.number, self.held = camera_num, 0
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}
        self.script.held += 1
        self.opened.append(self)

    @staticmethod
    def global_camera_info() -> list[dict[str, Any]]:
        return [{"Num": number, "Model": "imx708"} for number in range(Picamera2.cameras)]

    def next_act(self) -> str:
        return next(self._acts, "")

    def clock_ns(self) -> int:
        return type(self).clock()

    def create_video_configuration(
        self, main: dict[str, Any], controls: dict[str, Any], buffer_count: int
    ) -> dict[str, Any]:
        return {"main": {"size": SIZE_WH, **main}, "controls": controls, "buffer_count": buffer_count}

    def configure(self, config: dict[str, Any]) -> None:
        self.config = config
        if self.given:
            self.config["main"]["size"] = self.given

    def camera_configuration(self) -> dict[str, Any]:
        return self.config

    def start(self) -> None:
        self.calls.append("start")

    def capture_request(self, wait: bool | float | None = None) -> Job:
        assert wait is False
        return Job(self)

    def cancel_all_and_flush(self) -> None:
        self.calls.append("cancel")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")
        self.script.held -= 1


def put_in_place(monkeypatch: pytest.MonkeyPatch, *openings: str) -> Script:
    """Have OpenCV, with GStreamer, and picamera2 give these cameras; see the module for what `openings` say."""
    script = Script(*openings)
    fresh: dict[str, object] = {"script": script, "gives": {}, "calls": [], "opened": []}
    for name, value in fresh.items():
        monkeypatch.setattr(VideoCapture, name, value, raising=False)
    monkeypatch.setattr(Picamera2, "script", script, raising=False)
    monkeypatch.setattr(Picamera2, "opened", [], raising=False)
    monkeypatch.setattr(cv2, "VideoCapture", VideoCapture)
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "    GStreamer:                   YES (1.26.0)\n")
    module = ModuleType("picamera2")
    module.Picamera2 = Picamera2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "picamera2", module)
    return script
