"""Many thousands of frames and hundreds of reopenings: neither memory nor descriptors grow."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from scipy.stats import theilslopes

from edge_sdk.sources.opening import open_source
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.configs import Table, config_text, write_config
from tests.support.device import Device, count_results, wait_for_results
from tests.support.pictures import write_video
from tests.support.service import open_cameras, open_descriptors
from tests.support.streams import JPEG, StreamServer, http_server, rtsp_server

pytestmark = pytest.mark.system

_FRAMES = 60_000
_WINDOW = 30_000  # by then the records of recent results have come round, which 20,000 are too few for
_LIMIT_BYTES = 10  # a frame, one megabyte in 100,000; 0.1, 3.8 and 4.5 were measured, of the heap's own ways


class _Sample(NamedTuple):
    results: int
    resident: int
    files: int


def _resident(pid: int | str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _bytes_a_frame(samples: list[_Sample]) -> float:
    """The median slope of all pairs of the last thirty thousand frames: one step of the heap is no growth."""
    last = [s for s in samples if s.results > samples[-1].results - _WINDOW]
    return float(theilslopes([s.resident for s in last], [s.results for s in last]).slope)


def test_sixty_thousand_frames_flat_out_leave_nothing(tmp_path: Path, broker: Broker, cell_bundle: Path) -> None:
    video = write_video(tmp_path / "short.avi", range(250), size_wh=(160, 120))
    in_turn = {"source": str(video), "every_frame": True, "repeat": True}
    cameras: dict[str, Table] = {**{f"file{n}": in_turn for n in range(3)}, "bars": {"source": "pattern:160x120@240"}}
    samples: list[_Sample] = []
    defaults = {"bundle": cell_bundle, "tune": False, "best_effort": True}
    config = write_config(tmp_path, config_text(cameras, mqtt={"url": broker.url}, defaults=defaults))
    with Subscriber(broker) as subscriber, Device(config) as device:
        wait_for_results(subscriber, device, cameras)
        for rounds in count(1):  # queues fill later on a busy machine: what grows without end grows in every round
            while not samples or samples[-1].results < rounds * _FRAMES:
                time.sleep(0.25)  # between two samples
                results = sum(count_results(subscriber, cameras).values())
                samples.append(_Sample(results, _resident(device.process.pid), device.descriptors()))
                assert not device.is_over, device.said
            if (slope := _bytes_a_frame(samples)) < _LIMIT_BYTES:
                break
            assert rounds < 3, f"{slope:.0f} bytes a frame: {samples[:: len(samples) // 10]}"
        assert device.stop() == 0, device.said
    assert not device.lines_with("Traceback")
    before, after = ([s for s in samples if (s.results > _WINDOW) is later] for later in (False, True))
    # A file that begins again is opened before its descriptor is looked at, at times.
    assert median(s.files for s in after) <= median(s.files for s in before), samples


@pytest.mark.parametrize(
    "make_server", [pytest.param(partial(rtsp_server, encoder=JPEG), id="rtsp"), pytest.param(http_server, id="http")]
)
def test_a_stream_that_ends_is_opened_again_without_leaving_anything(make_server: Callable[[], StreamServer]) -> None:
    """Two hundred times: no thread, no descriptor, and no memory that grows with them."""

    def wait_reopened(count: int) -> None:
        wait_until(lambda: (source.latest(0.1), source.stats.reopenings)[1] >= count, f"{count} reopenings", 300)

    with make_server() as server:
        with closing(open_source(server.url("/ends"))) as source:
            wait_reopened(3)
            # What other tests left in this process may end meanwhile: only what is added was left here.
            descriptors, threads = open_descriptors(), threading.active_count()
            wait_reopened(50)
            resident = _resident()
            wait_reopened(200)
            # What one opening holds is some 500 kB; a leak of a tenth of it would be 7500 here.
            assert _resident() - resident < 5_000_000
            # While one stream ends and the next one begins, the descriptors and threads of both are there.
            wait_until(
                lambda: open_descriptors() <= descriptors + 1 and threading.active_count() <= threads,
                "a moment at which nothing is left of the streams that ended",
            )
            assert not source.ended
        assert open_cameras() == []
        assert open_descriptors() <= descriptors
