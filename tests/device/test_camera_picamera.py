"""The Raspberry Pi's camera, on a stand-in with picamera2's names and habits; never tested with a camera."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as JobTimeoutError
from contextlib import closing
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edge_sdk.camera import SourceOptions, SourceStatus, open_source
from edge_sdk.camera.picamera import Picamera
from edge_sdk.errors import CameraError, MissingDependencyError


class _Request:
    def __init__(self, camera: _Picamera2, number: int) -> None:
        self._camera, self._number = camera, number
        camera.held += 1

    def get_metadata(self) -> dict[str, Any]:
        return {"SensorTimestamp": self._camera.clock_ns() - 30_000_000}

    def make_array(self, name: str) -> Any:
        assert name == "main"
        width, height = self._camera.config["main"]["size"]
        return np.full((height, width, 3), self._number % 256, np.uint8)

    def release(self) -> None:
        self._camera.held -= 1


class _Job:
    def __init__(self, camera: _Picamera2) -> None:
        self._camera = camera

    def get_result(self, timeout: float | None = None) -> _Request:
        assert timeout is not None
        time.sleep(0.002)
        self._camera.taken += 1
        if self._camera.taken > self._camera.frames:
            raise JobTimeoutError
        return _Request(self._camera, self._camera.taken)


class _Picamera2:
    """As `picamera2.Picamera2`."""

    cameras = 2
    frames = 10**9
    busy = False
    given: tuple[int, int] | None = None
    clock: Callable[[], int] = staticmethod(time.monotonic_ns)
    opened: list[_Picamera2] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, camera_num: int = 0) -> None:
        if self.busy:
            raise RuntimeError("Camera __init__ sequence did not complete.")
        self.number, self.held, self.taken = camera_num, 0, 0
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}
        self.opened.append(self)

    @staticmethod
    def global_camera_info() -> list[dict[str, Any]]:
        return [{"Num": number, "Model": "imx708"} for number in range(_Picamera2.cameras)]

    def clock_ns(self) -> int:
        return type(self).clock()

    def create_video_configuration(
        self, main: dict[str, Any], controls: dict[str, Any], buffer_count: int
    ) -> dict[str, Any]:
        return {"main": {"size": (1280, 720), **main}, "controls": controls, "buffer_count": buffer_count}

    def configure(self, config: dict[str, Any]) -> None:
        self.config = config
        if self.given:
            self.config["main"]["size"] = self.given

    def camera_configuration(self) -> dict[str, Any]:
        return self.config

    def start(self) -> None:
        self.calls.append("start")

    def capture_request(self, wait: bool | float | None = None) -> _Job:
        assert wait is False
        return _Job(self)

    def cancel_all_and_flush(self) -> None:
        self.calls.append("cancel")

    def stop(self) -> None:
        self.calls.append("stop")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("picamera2")
    module.Picamera2 = _Picamera2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "picamera2", module)
    _Picamera2.opened.clear()


def test_frames_in_opencvs_order_of_colours_with_the_sensors_time() -> None:
    options = SourceOptions(size_wh=(640, 480), fps=15)
    with closing(open_source("picamera2:1", camera="pi", options=options)) as source:
        for _ in range(5):
            frame = source.latest(5)
            assert frame is not None
            assert frame.size_wh == (640, 480)
            assert time.monotonic_ns() - frame.captured_ns >= 30_000_000
        assert source.fps == 15
        assert source.remarks == ()
    (camera,) = _Picamera2.opened
    assert camera.number == 1
    assert camera.config["main"] == {"format": "RGB888", "size": (640, 480)}
    assert camera.config["controls"] == {"FrameRate": 15}
    assert camera.held == 0
    assert camera.calls == ["start", "cancel", "stop", "close"]


def test_the_sensors_time_may_count_suspended_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.clock_gettime_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: real(clock) + 3600 * 10**9)
    for clock in (time.monotonic_ns, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
        monkeypatch.setattr(_Picamera2, "clock", staticmethod(clock))
        camera = Picamera(0, SourceOptions())
        assert camera.grab()
        assert camera.stamp_ns is not None
        assert 30_000_000 <= time.monotonic_ns() - camera.stamp_ns < 5 * 10**9
        camera.release()


def test_a_time_that_is_no_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Picamera2, "clock", staticmethod(lambda: 10**18))
    camera = Picamera(0, SourceOptions())
    assert camera.grab()
    assert camera.stamp_ns is None


def test_another_size_than_asked_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Picamera2, "given", (1296, 972))
    with closing(open_source("picamera2", options=SourceOptions(size_wh=(1280, 960)))) as source:
        assert source.remarks == ("asked for 1280x960, the camera gives 1296x972",)


def test_a_camera_that_falls_silent_is_lost_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Picamera2, "frames", 3)
    with closing(open_source("picamera2")) as source:
        deadline = time.monotonic() + 30
        while source.stats.reopenings < 1:
            assert time.monotonic() < deadline
            source.latest(0.05)
    assert _Picamera2.opened[0].calls == ["start", "cancel", "stop", "close"]
    assert all(camera.held == 0 for camera in _Picamera2.opened)


@pytest.mark.parametrize(
    ("attribute", "value", "location", "expected"),
    [
        ("cameras", 0, "picamera2", "picamera2: no camera is connected; see `rpicam-hello"),
        ("cameras", 1, "picamera2:1", "picamera2:1: no such camera, 1 are connected"),
        ("busy", True, "picamera2", "in use by another program, or it does not answer (Camera __init__"),
        ("start", None, "picamera2", "it does not start ('NoneType' object is not callable)"),
    ],
)
def test_a_camera_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, location: str, expected: str
) -> None:
    monkeypatch.setattr(_Picamera2, attribute, value)
    with pytest.raises(CameraError) as caught:
        open_source(location)
    assert expected in str(caught.value)
    with closing(open_source(location, waits=True)) as source:
        deadline = time.monotonic() + 30
        while not source.trouble:
            assert time.monotonic() < deadline
            source.latest(0.01)
        assert source.trouble in str(caught.value)
        assert source.status is SourceStatus.OPENING
    assert all("close" in camera.calls for camera in _Picamera2.opened)


class _Broken(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise ValueError("numpy.dtype size changed, may indicate binary incompatibility")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("module", "expected"),
    [(None, "python3 -m venv --system-site-packages"), (_Broken("picamera2"), "--force-reinstall simplejpeg")],
)
def test_a_module_that_is_not_there_or_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, waits: bool, module: ModuleType | None, expected: str
) -> None:
    monkeypatch.setitem(sys.modules, "picamera2", module)
    with pytest.raises(MissingDependencyError) as caught:
        open_source("picamera2", waits=waits)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
