"""The Raspberry Pi's camera, on a stand-in with picamera2's names and habits; never tested with a camera."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from types import ModuleType

import pytest

from edge_sdk.camera import SourceOptions, SourceStatus, open_source
from edge_sdk.camera.picamera import Picamera
from edge_sdk.errors import CameraError, MissingDependencyError
from tests.device.doubled_cameras import Picamera2, Script, put_in_place


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)


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
    (camera,) = Picamera2.opened
    assert camera.number == 1
    assert camera.config["main"] == {"format": "RGB888", "size": (640, 480)}
    assert camera.config["controls"] == {"FrameRate": 15}
    assert camera.held == 0
    assert camera.calls == ["start", "cancel", "stop", "close"]


def test_the_sensors_time_may_count_suspended_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.clock_gettime_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: real(clock) + 3600 * 10**9)
    for clock in (time.monotonic_ns, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
        monkeypatch.setattr(Picamera2, "clock", staticmethod(clock))
        camera = Picamera(0, SourceOptions())
        assert camera.grab()
        assert camera.stamp_ns is not None
        assert 30_000_000 <= time.monotonic_ns() - camera.stamp_ns < 5 * 10**9
        camera.release()


def test_a_time_that_is_no_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picamera2, "clock", staticmethod(lambda: 10**18))
    camera = Picamera(0, SourceOptions())
    assert camera.grab()
    assert camera.stamp_ns is None


def test_another_size_than_asked_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picamera2, "given", (1296, 972))
    with closing(open_source("picamera2", options=SourceOptions(size_wh=(1280, 960)))) as source:
        assert source.remarks == ("asked for 1280x960, the camera gives 1296x972",)


@pytest.mark.parametrize(
    ("attribute", "value", "location", "expected"),
    [
        ("cameras", 0, "picamera2", "picamera2: no camera is connected; see `rpicam-hello"),
        ("cameras", 1, "picamera2:1", "picamera2:1: no such camera, 1 are connected"),
        (
            "script",
            Script(*["!"] * 99),
            "picamera2",
            "in use by another program, or it does not answer (Camera __init__",
        ),
        ("start", None, "picamera2", "it does not start ('NoneType' object is not callable)"),
    ],
)
def test_a_camera_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, location: str, expected: str
) -> None:
    monkeypatch.setattr(Picamera2, attribute, value)
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
    assert all("close" in camera.calls for camera in Picamera2.opened)


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
