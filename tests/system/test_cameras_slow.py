"""Real streams with few pictures: none is thrown away for a newer one that does not come."""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from pathlib import Path

import pytest

from edge_sdk.camera import SourceOptions, open_source
from edge_sdk.frame import Frame
from tests.support.program import edge_sdk
from tests.support.streams import StreamServer, http_server, rtsp_server, true_age_ms

pytestmark = pytest.mark.system


def _first(server: StreamServer, path: str, within_s: float) -> Frame | None:
    with closing(open_source(server.url(path), options=SourceOptions(read_timeout_s=12), waits=True)) as source:
        return source.latest(within_s)


@pytest.mark.parametrize("path", ["/snapshot", "/one", "/slow"])
def test_an_only_picture_that_came_while_the_stream_opened_is_delivered(path: str) -> None:
    """0.3 s after it was asked for, and then the end, or none for eight seconds: each came never, or after those."""
    with http_server() as server:
        assert _first(server, path, 5) is not None


@pytest.mark.parametrize("fps", [5, 25])
def test_a_picture_that_came_with_the_next_one_says_so(fps: int) -> None:
    """FFmpeg returns H.264 a period late: all were claimed to be 1 ms old, and were 200."""
    with rtsp_server(fps=fps) as server, closing(open_source(server.url())) as source:
        less_ms = []
        for _ in range(30):
            frame = source.latest(10)
            assert frame is not None
            claimed_ms = (time.monotonic_ns() - frame.captured_ns) / 1e6
            if frame.delay_ns:
                less_ms.append(true_age_ms(frame) - claimed_ms)
        assert len(less_ms) > 15
        assert abs(statistics.median(less_ms)) < 20, less_ms


def test_a_camera_whose_period_is_beyond_the_budget_is_run_and_called_late(cell_bundle: Path) -> None:
    """Dropped for its age it would run once a second, and no other picture comes sooner."""
    with rtsp_server(fps=5) as server:
        options = ("--source", server.url(), "--latency-ms", 150, "--frames", 15, "--no-tune", "--duration", 40)
        run = edge_sdk("run", cell_bundle, *options)
    assert run.returncode == 0, run.stderr
    assert "15 results" in run.stderr
    assert " 0 late" not in run.stderr
    assert "warning: frames are " in run.stderr
    assert " 0 dropped as too old" in run.stderr
