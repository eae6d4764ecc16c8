"""Obeying: a running stream does what its camera's Control says, between two frames."""

from __future__ import annotations

import time

import msgspec

from edge_sdk.bundle import Bundle
from edge_sdk.commands import SLOWEST_FPS
from edge_sdk.daemon.control import Control, Controls, Known, Shot
from edge_sdk.frame import Result
from edge_sdk.loop import Loop
from edge_sdk.protocols import Source
from edge_sdk.publishing import ControlState, Stream
from edge_sdk.stages import Stages
from edge_sdk.tuning.timed import Timed


class Obeying:
    """Of one stream; a `Sink` too, which is given each result after it was delivered.

    Args:
        controls: of the process.
        stream: whose camera's it is; is told what is set, and what is seen.
        bundle: that runs.
        is_paced: whether frames come at their own pace.
        tells_events: whether it is told what appears and disappears.
    """

    def __init__(
        self, controls: Controls, stream: Stream, bundle: Bundle, *, is_paced: bool, tells_events: bool = False
    ) -> None:
        self._controls, self._stream, self._is_paced = controls, stream, is_paced
        manifest = bundle.manifest
        self._control: Control = controls.of(stream.camera)
        self._lowest = manifest.thresholds.confidence if manifest.task == "detection" else None
        self._control.known = Known(
            task=manifest.task,
            confidence=self._lowest,
            labels=bundle.labels(),
            is_paced=is_paced,
            tells_events=tells_events,
        )
        self._version = -1

    def is_paused(self, loop: Loop) -> bool:
        """Whether no frame may run now; otherwise the next one runs as it is wanted."""
        control = self._control
        if control.version != self._version:
            self._obey(loop, control)
        if self._lowest is not None:
            _set_confidence(loop, control.confidence)  # also of another model that has come meanwhile
        return control.paused

    def rest(self, source: Source, timeout_s: float) -> None:
        """While paused: let a camera's frames pass unseen, so that none is old when it goes on."""
        if self._is_paced:
            source.latest(timeout_s)
        else:
            time.sleep(timeout_s)

    def put(self, result: Result) -> None:
        """Keep the picture where somebody waits for it, and say what is seen; see `Sink`."""
        control = self._control
        if control.wants_shot:
            control.wants_shot = False
            control.shot = Shot(result.frame.image.copy(), result.frame.seq)
        if self._controls.sees:
            self._stream.see(result)

    def _obey(self, loop: Loop, control: Control) -> None:
        self._version = control.version
        loop.least_gap_ns = _gap_ns(control.max_fps) if self._is_paced else 0
        if self._controls.are_told:
            lowest = self._lowest if control.confidence is None else control.confidence
            self._stream.controls(
                ControlState(
                    paused=control.paused,
                    confidence=msgspec.UNSET if self._lowest is None or lowest is None else lowest,
                    max_fps=control.max_fps,
                )
            )


def _gap_ns(max_fps: float) -> int:
    """Between two frames; whatever the number, for what is raised here ends the stream."""
    return int(1e9 / max(max_fps, SLOWEST_FPS)) if max_fps > 0 else 0


def _set_confidence(loop: Loop, confidence: float | None) -> None:
    stages = loop.stages.stages if isinstance(loop.stages, Timed) else loop.stages
    if isinstance(stages, Stages) and stages.confidence != confidence:
        stages.set_confidence(confidence)
