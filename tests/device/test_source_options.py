"""Options of a source: what is refused, and what a camera is asked for."""

from __future__ import annotations

from typing import Any

import cv2
import msgspec
import pytest

from edge_sdk.camera import opencv
from edge_sdk.errors import ConfigError
from edge_sdk.source_options import SourceOptions
from tests.device.doubled_cameras import VideoCapture, put_in_place


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"size_wh": (0, 720)}, "size_wh is (0, 720), expected [width, height] of 1 to 16384 whole pixels"),
        ({"size_wh": (1280, 16385)}, "expected [width, height] of 1 to 16384 whole pixels"),
        ({"size_wh": (1280.5, 720)}, "whole pixels"),
        ({"size_wh": (1280,)}, "expected [width, height]"),
        ({"fps": 0}, "fps is 0, expected 0.1 to 240 frames a second"),
        ({"fps": 241.0}, "fps is 241, expected"),
        ({"fps": float("nan")}, "fps is nan, expected"),
        ({"pixel_format": "H264"}, "pixel_format is H264, expected MJPG or YUYV"),
        ({"transport": "http"}, "transport is http, expected tcp or udp"),
        ({"rotate": 45}, "rotate is 45, expected 0 or 90 or 180 or 270"),
        ({"open_timeout_s": 0.0}, "open_timeout_s is 0.0, expected 0.1 to 60 seconds"),
        ({"read_timeout_s": 61.0}, "read_timeout_s is 61.0, expected"),
    ],
)
def test_what_no_source_can_have_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions(**options)
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2


def test_in_a_file_the_place_is_named() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"fps is 500, expected .* at `\$\[0\]`"):
        msgspec.convert([{"fps": 500}], list[SourceOptions])


@pytest.mark.parametrize(
    "options", [{}, {"size_wh": (1, 1)}, {"size_wh": (16384, 16384), "fps": 240}, {"fps": 0.1, "rotate": 270}]
)
def test_what_a_source_can_have_is_taken(options: dict[str, Any]) -> None:
    assert SourceOptions(**options) == msgspec.convert(options, SourceOptions)


ASKED = SourceOptions(size_wh=(1280, 720), fps=15, pixel_format="MJPG")


def test_a_v4l2_camera_is_asked_for_its_format_first(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    capture = opencv.open_device("/dev/video0", ASKED)
    assert capture
    assert VideoCapture.opened == [("/dev/video0", cv2.CAP_V4L2)]
    assert VideoCapture.calls == [
        (cv2.CAP_PROP_FOURCC, cv2.VideoWriter.fourcc(*"MJPG")),
        (cv2.CAP_PROP_FRAME_WIDTH, 1280),
        (cv2.CAP_PROP_FRAME_HEIGHT, 720),
        (cv2.CAP_PROP_FPS, 15),
        (cv2.CAP_PROP_BUFFERSIZE, 2),
    ]
    assert capture.remarks == ()
    assert capture.fps == 15


def test_what_a_v4l2_camera_does_not_give_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    gives = {
        cv2.CAP_PROP_FRAME_HEIGHT: 960.0,
        cv2.CAP_PROP_FPS: 10.0,
        cv2.CAP_PROP_FOURCC: float(cv2.VideoWriter.fourcc(*"YUYV")),
    }
    VideoCapture.gives.update(gives)
    capture = opencv.open_device("/dev/video0", ASKED)
    assert capture
    assert capture.remarks == (
        "asked for MJPG, the camera gives YUYV",
        "asked for 1280x720, the camera gives 1280x960",
        "asked for 15 frames a second, the camera gives 10",
    )


def test_nothing_is_asked_of_a_v4l2_camera_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    capture = opencv.open_device("/dev/video0")
    assert capture
    assert [name for name, _ in VideoCapture.calls] == [cv2.CAP_PROP_BUFFERSIZE]
    assert capture.remarks == ()


def test_a_v4l2_camera_that_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "!")
    assert opencv.open_device("/dev/video0", ASKED) is None
