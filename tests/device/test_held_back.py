"""A stream whose results are late because its frames are old when they come is told of, and that it is over."""

from __future__ import annotations

import pytest

from edge_sdk.budget import Budget
from edge_sdk.daemon.held_back import HeldBack
from edge_sdk.frame import Frame, Result
from edge_sdk.loop import Loop
from tests.device.results import make_detections
from tests.device.simulated import MS, Camera, Clock, Collector


@pytest.mark.parametrize(
    ("spells", "told"),
    [
        ([(9, 60, 5)], []),
        ([(10, 60, 5)], ["frames are 60 ms"]),
        ([(10, 40, 20)], ["frames are 40 ms"]),  # in time but for the model
        ([(9, 60, 5), (1, 20, 5), (9, 60, 5)], []),
        ([(200, 60, 5), (99, 20, 5), (1, 60, 5), (99, 20, 5)], ["frames are 60 ms"]),
        ([(10, 60, 5), (100, 20, 5), (10, 70, 5)], ["frames are 60 ms", "", "frames are 70 ms"]),
        ([(10, 0, 60), (10, 20, 60)], []),  # the model's fault
        ([(10, 60, 5), (200, 20, 60)], ["frames are 60 ms"]),
    ],
)
def test_it_is_told_when_it_lasts(spells: list[tuple[int, float, float]], told: list[str]) -> None:
    said, warned = list[str](), list[tuple[str, str]]()
    supervisor = HeldBack(50 * MS, said.append, lambda name, line: warned.append((name, line)))
    for frames, delay_ms, work_ms in spells:
        clock = Clock()

        def stages(frame: Frame, clock: Clock = clock, work_ms: float = work_ms) -> Result:
            clock.advance(work_ms)
            return make_detections(0, frame)

        loop = Loop(Camera(clock, 200, frames, delay_ms), stages, Collector(), Budget(50, drops=False), clock_ns=clock)
        for _ in range(frames):
            supervisor.after(loop, loop.step())
    assert [line.partition(" old")[0] for _, line in warned] == told
    assert {name for name, _ in warned} <= {"held_back"}
    assert [line.startswith("warning: ") for line in said] == [bool(line) for line in told]
