"""What people are told of the process as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.pipeline import Pipeline
from edge_sdk.daemon.settings import PipelineSettings, RunSettings
from edge_sdk.daemon.vitals import Vitals
from edge_sdk.health.notify import Notifier
from edge_sdk.health.progress import Progress
from edge_sdk.health.start import Start
from edge_sdk.wall_clock import WallClock
from tests.device.delivery import until


class _Pipeline:
    """One that runs and has no result yet."""

    title, first_result_ns = "tiny runs on pattern", 0
    settings = PipelineSettings(source="pattern", bundle=Path("tiny.edge"))

    def health(self) -> None:
        return None


def test_how_far_a_time_server_put_the_clock_forward_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said: list[str] = []
    offsets = iter((0.0, 86400.0))
    answers = iter([False])
    settings = RunSettings(device="pi", pipelines=(_Pipeline.settings,))
    outlet = Outlet(settings, said.append, lambda: False)
    outlet.clock = WallClock(lambda: next(answers, True), lambda: next(offsets))
    assert not outlet.clock.is_synchronised
    vitals = Vitals(Notifier(), Start(), said.append, outlet, Progress(60.0))
    pipelines = [cast("Pipeline", _Pipeline())]

    def look() -> bool:
        vitals.look(pipelines, have_begun=True)
        return any("the clock is set" in line for line in said)

    until(look)
    vitals.close()
    [line] = [line for line in said if "clock" in line]
    assert line == "the clock is set by a time server now: +86400.0 s; times before were that much off"
    assert outlet.clock.is_synchronised
