"""The camera of a Raspberry Pi, read with picamera2.

picamera2 comes from Raspberry Pi OS, not from a wheel: docs/adr/0004 says how a virtual environment sees it, and why
nothing is added to the module path here. Tested with a stand-in only, not with a camera.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as JobTimeoutError  # in Python 3.10 this is not the built-in class
from functools import partial
from typing import Any, cast

from edge_sdk.core.errors import CameraError, MissingDependencyError, first_line
from edge_sdk.core.frame import Image
from edge_sdk.core.logs import counted
from edge_sdk.sources.location import SourceOptions, picamera_number
from edge_sdk.sources.opencv import Capture, plausible_fps, size_remark

_BUFFERS = 4
_MAX_AGE_NS = 10_000_000_000


def load_picamera() -> Any:
    """Return the class `picamera2.Picamera2`; raise a MissingDependencyError where it cannot be loaded."""
    try:
        return importlib.import_module("picamera2").Picamera2
    except ModuleNotFoundError as cause:
        raise MissingDependencyError(
            f"picamera2: no module {cause.name}; `sudo apt install python3-picamera2`, and make the virtual "
            "environment with `python3 -m venv --system-site-packages`"
        ) from cause
    except (ImportError, ValueError, OSError) as cause:
        raise MissingDependencyError(
            f"picamera2 cannot be loaded: {first_line(cause)}; if it was built for another numpy, `pip "
            "install --force-reinstall simplejpeg` in this virtual environment"
        ) from cause


class Picamera(Capture):
    """One of the board's cameras, by its number from 0; the CameraError of a failure has only the reason."""

    def __init__(self, number: int, options: SourceOptions) -> None:
        picamera = load_picamera()
        found = len(picamera.global_camera_info())
        if number >= found:
            raise CameraError(
                f"no such camera; connected: {counted(found, 'camera')}" if found else "no camera is connected"
            )
        self._timeout_s = options.read_timeout_s
        self._request: Any = None
        try:
            self._camera = picamera(number)
        except Exception as cause:  # drivers raise errors of their own
            raise CameraError(f"in use by another program, or it does not answer ({first_line(cause)})") from cause
        try:
            self.remarks = self._start(options)
        except Exception as cause:
            self.release()
            raise CameraError(f"it does not start ({first_line(cause)})") from cause
        self.fps = plausible_fps(options.fps or 30.0)

    def grab(self) -> bool:
        """Wait for the next frame; return False if none comes within the read time-out."""
        self._let_go()
        try:
            self._request = self._camera.capture_request(wait=False).get_result(timeout=self._timeout_s)
            self.stamp_ns = _monotonic_ns(self._request.get_metadata().get("SensorTimestamp"))
        except (JobTimeoutError, TimeoutError, RuntimeError, OSError):
            return False
        return True

    def retrieve_into(self, buffer: Image) -> Image | None:
        """Return the grabbed frame, as a new array."""
        image = self._request.make_array("main")
        self._let_go()
        return cast("Image", image[:, :, :3])

    def release(self) -> None:
        """Release all resources; cancel a job that waits for a frame, because the camera would wait for it."""
        for end in (self._let_go, *(getattr(self._camera, name, None) for name in _ENDS)):
            if end is not None:
                with contextlib.suppress(Exception):
                    end()

    def _start(self, options: SourceOptions) -> tuple[str, ...]:
        main: dict[str, object] = {"format": "RGB888"}  # in picamera2's naming this is blue first in memory
        if options.size_wh is not None:
            main["size"] = options.size_wh
        controls = {} if options.fps is None else {"FrameRate": options.fps}
        camera = self._camera
        camera.configure(camera.create_video_configuration(main=main, controls=controls, buffer_count=_BUFFERS))
        size_wh = tuple(camera.camera_configuration()["main"]["size"])
        camera.start()
        differs = options.size_wh is not None and size_wh != options.size_wh
        return (size_remark(options.size_wh, size_wh),) if differs and options.size_wh else ()

    def _let_go(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.release()


_ENDS = ("cancel_all_and_flush", "stop", "close")


def _monotonic_ns(sensor_ns: int | None) -> int | None:
    """Return a sensor's time on the monotonic clock; one that is implausible, as after a suspension, is unknown.

    libcamera documents CLOCK_BOOTTIME, but the kernel's drivers use CLOCK_MONOTONIC.
    """
    is_plausible = sensor_ns is not None and 0 <= time.monotonic_ns() - sensor_ns < _MAX_AGE_NS
    return sensor_ns if is_plausible else None


def picamera_opener(location: str, _password: str | None, options: SourceOptions) -> Callable[[], Picamera]:
    """Return a function that opens `picamera2` or `picamera2:1`."""
    load_picamera()
    return partial(Picamera, picamera_number(location) or 0, options)
