"""A camera of whose frames a clear share cannot be decoded is told of, and that it is over."""

from __future__ import annotations

import pytest

from edge_sdk.budget import Budget
from edge_sdk.camera import SourceStats
from edge_sdk.daemon.undecodable import Undecodable
from edge_sdk.loop import Loop, Tick
from tests.device.results import make_detections
from tests.device.test_loop import Camera, Clock, Collector


@pytest.mark.parametrize(
    ("minutes", "told"),
    [
        ([(0, 600)], []),
        ([(40, 600)], []),
        ([(60, 600)], ["60 of 600"]),
        ([(600, 600)], ["600 of 600"]),
        ([(60, 600), (300, 600)], ["60 of 600"]),  # known already
        ([(60, 600), (40, 600)], ["60 of 600"]),  # neither better nor worse
        ([(60, 600), (0, 600), (90, 600)], ["60 of 600", "", "90 of 600"]),
        ([(60, 600), (0, 0)], ["60 of 600"]),  # of a camera that is gone nothing is known
        ([(5, 5)], []),
    ],
)
def test_it_is_told_by_the_minute(minutes: list[tuple[int, int]], told: list[str]) -> None:
    loop = Loop(Camera(Clock(), 33, 10), lambda frame: make_detections(0, frame), Collector(), Budget(100))
    now_s, unreadable, others = 0.0, 900, 1000  # before anybody looked
    said, warned = list[str](), list[tuple[str, str]]()
    supervisor = Undecodable(
        lambda: SourceStats(delivered=others, unreadable=unreadable),
        said.append,
        lambda name, line: warned.append((name, line)),
        lambda: now_s,
    )
    for bad, frames in minutes:
        unreadable, others, now_s = unreadable + bad, others + frames - bad, now_s + 59.0
        supervisor.after(loop, Tick.IDLE)
        now_s += 1.0
        supervisor.after(loop, Tick.IDLE)
    assert [line.partition(" frames")[0] for _, line in warned] == told
    assert all(name == "undecodable" for name, _ in warned)
    assert all("; of files look whether they are whole" in line for _, line in warned if line)
    assert [line.startswith("warning: ") for line in said] == [bool(line) for line in told]
