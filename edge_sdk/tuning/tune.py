"""tune: tuning for its own sake, with the very code of a run, on frames that nobody publishes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import cv2

from edge_sdk.budget import Budget
from edge_sdk.bundle import Bundle
from edge_sdk.errors import CameraError, SessionError, StoppedError
from edge_sdk.frame import Result
from edge_sdk.loop import Loop, Tick
from edge_sdk.protocols import Source
from edge_sdk.tuning.candidate import Candidate
from edge_sdk.tuning.choice import Limits
from edge_sdk.tuning.paced_image import PacedImage
from edge_sdk.tuning.tuned import Tuned
from edge_sdk.tuning.tuning import Tuning

_SIZE_WH = (1280, 720)
_STEP_S = 0.2
_SILENCE_S = 30.0  # a camera that is switched on again, or a stream that is opened anew, is back sooner


def golden_camera(bundle: Bundle, fps: float, camera: str) -> PacedImage:
    """A camera that shows the bundle's first golden image, enlarged to 1280x720, at `fps` frames a second."""
    image = cv2.resize(bundle.golden()[0][0], _SIZE_WH)
    return PacedImage(image.astype("uint8", copy=False), fps, camera)


def tune(
    tuning: Tuning,
    limits: Limits,
    source: Source,
    fps: float,
    seconds: float | None,
    on_trying: Callable[[Candidate], None] = lambda _candidate: None,
    *,
    silence_s: float = _SILENCE_S,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tuned, str]:
    """Tune on a source that comes at its own pace, whatever is remembered.

    Args:
        tuning: of the bundle.
        limits: what has to be kept.
        source: opened by the caller, who closes it.
        fps: its frames a second.
        seconds: for all candidates; by default 20, and more for a camera so slow that these are not enough.
        on_trying: called with every candidate before it is loaded or measured.
        silence_s: how long the source may deliver nothing.
        is_stopped: asked at every step.

    Returns:
        What came out, and why it is not remembered; empty where it is.

    Raises:
        CameraError: the source ended first, or fell silent.
        SessionError: nothing could be measured, or what was chosen cannot be loaded again.
        EdgeError: what the bundle promises cannot be loaded, read or trusted here.
        StoppedError: `is_stopped` said so.
    """
    outcome: list[tuple[Tuned, str]] = []
    home = tuning.open_promised()
    tuner = tuning.supervisor(
        home,
        fps,
        seconds=seconds,
        on_tuned=lambda tuned, remark: outcome.append((tuned, remark)),
        on_trying=on_trying,
    )
    loop = Loop(source, home, _Nobody(), Budget(limits.budget_ms))
    del home  # given back when something better runs
    with contextlib.closing(tuner):
        heard_s = time.monotonic()
        while not tuner.done:
            if is_stopped():
                raise StoppedError
            tick = loop.step(_STEP_S)
            tuner.after(loop, tick)
            if tick is not Tick.IDLE:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silence_s:
                raise CameraError(
                    f"the source delivered no frame for {silence_s:g} s, so there is nothing to measure; see that it "
                    "is on and shows a picture, or tune without --source"
                )
            if source.ended:
                raise CameraError("the source ended before tuning did; give a longer one, or fewer --seconds")
    if not outcome:
        raise SessionError(
            "nothing could be measured, so nothing is chosen; mend what the lines above tell of, or give more --seconds"
        )
    return outcome[0]


class _Nobody:
    """Takes results."""

    def put(self, result: Result) -> None:
        """Take one."""
