"""Several cameras of one process: they share what is there, and one that is broken is no trouble to the others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Protocol

import pytest

from tests.support.broker import Broker, Subscriber, free_port
from tests.support.bundles import LARGE, copy_bundle, endless, failing, write_graded, write_real_bundle
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_at_ease, write_config
from tests.support.device import Device, Result, count_results, results_after, wait_for_results
from tests.support.program import edge_sdk
from tests.support.streams import StreamServer, http_server
from tests.support.subscribers import statuses

pytestmark = pytest.mark.system

_CORES = 2
_OVERLOADED_S, _WINDOW_S = 6.0, 2.5
_FAIREST = 0.95
_PACE = "pattern:320x240@20"
_HEALTHY = ("north", "east", "south")
_AS_IS = {**AT_EASE, "best_effort": True}


def _on_two_cores(config: Path) -> Device:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:_CORES]))
    try:
        return Device(config)
    finally:
        os.sched_setaffinity(0, before)


def _jain(counts: list[int]) -> float:
    """1 where all have the same, 1/n where one has all."""
    return sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts))


def _ages(results: list[Result]) -> tuple[float, float]:
    """Of the first third and of the last, in runs of the model: those take longer when the machine is busy, too."""
    ages = [result.age_ms / result.infer_ms for result in results]
    third = len(ages) // 3
    return median(ages[:third]), median(ages[-third:])


@pytest.mark.parametrize("bundles", [1, 4])
def test_four_cameras_share_two_cores_and_each_stays_fresh(tmp_path: Path, broker: Broker, bundles: int) -> None:
    # Each one's convolutions cost some milliseconds a frame, of which a hundred come a second.
    made = [write_graded(tmp_path / f"{n}.edge", side=256 + 8 * n, width=32) for n in range(bundles)]
    cameras: dict[str, Table] = {
        f"gate{n}": {"source": "pattern:320x240@100", "bundle": str(made[n % bundles])} for n in range(4)
    }
    defaults = {**_AS_IS, "variant": LARGE}
    config = write_config(tmp_path, config_text(cameras, mqtt={"url": broker.url}, defaults=defaults))
    with Subscriber(broker) as subscriber, _on_two_cores(config) as device:
        wait_for_results(subscriber, device, cameras, 5)
        before = count_results(subscriber, cameras)
        time.sleep(_OVERLOADED_S)
        results = results_after(subscriber, before)
        assert device.stop() == 0, device.said
    assert not device.lines_with("Traceback")
    counts = {camera: len(of_camera) for camera, of_camera in results.items()}
    frames = sum(of_camera[-1].seq - of_camera[0].seq + 1 for of_camera in results.values())
    assert sum(counts.values()) < 0.8 * frames, f"two cores were enough for {counts}: nothing had to be shared"
    assert _jain([*counts.values()]) >= _FAIREST, counts
    ages = {camera: _ages(of_camera) for camera, of_camera in results.items()}
    assert all(last < 2 * first for first, last in ages.values()), ages
    # Waiting for the frame before it is one; a queue of these seconds has dozens.
    assert all(last < 4 for _, last in ages.values()), ages


class _Fault(Protocol):
    def __call__(self, folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
        """The keys of the camera that is broken, and what is said of it."""
        ...


def _refuses(folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
    return {"source": f"rtsp://127.0.0.1:{free_port()}/live", "bundle": str(bundle)}, "connection refused"


def _freezes(folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
    return {"source": camera.url(), "bundle": str(bundle)}, "lost: no frame for 2 s"


def _lacks_its_bundle(folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
    return {"source": _PACE, "bundle": str(folder / "none.edge")}, "is left out until the configuration is read again"


def _hangs(folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
    hostile = write_real_bundle(folder / "hostile.edge", endless())
    return {"source": _PACE, "bundle": str(hostile), "run_limit_s": 0.5}, "a run did not finish within"


def _fails(folder: Path, bundle: Path, camera: StreamServer) -> tuple[Table, str]:
    hostile = write_real_bundle(folder / "hostile.edge", failing())
    return {"source": _PACE, "bundle": str(hostile)}, "begins again in"


@pytest.mark.parametrize("fault", [_refuses, _freezes, _lacks_its_bundle, _hangs, _fails])
def test_a_broken_camera_is_no_trouble_to_the_others(
    tmp_path: Path, broker: Broker, cell_bundle: Path, fault: _Fault
) -> None:
    healthy: dict[str, Table] = {camera: {"source": _PACE, "bundle": str(cell_bundle)} for camera in _HEALTHY}
    with http_server() as server:
        broken, words = fault(tmp_path, cell_bundle, server)
        text = config_text({**healthy, "west": broken}, mqtt={"url": broker.url}, defaults=_AS_IS)
        with Subscriber(broker) as subscriber, Device(write_config(tmp_path, text)) as device:
            wait_for_results(subscriber, device, healthy)
            if fault is _freezes:
                wait_for_results(subscriber, device, ["west"])
                server.pause()
            device.hear(words)
            before = count_results(subscriber, healthy)
            time.sleep(_WINDOW_S)
            results = results_after(subscriber, before)
            assert {status for status, _, _ in statuses(subscriber)} == {"online"}
            assert device.stop() == 0, device.said
            everything = results_after(subscriber, dict.fromkeys(healthy, 0))
    assert not device.lines_with("Traceback")
    for camera, of_camera in results.items():
        frames = of_camera[-1].seq - of_camera[0].seq + 1
        assert frames > 20 * _WINDOW_S / 2, f"{camera} stood still"
        assert len(of_camera) > 0.8 * frames, f"{camera} has {len(of_camera)} results of {frames} frames"
    assert len({result.run_id for of_camera in everything.values() for result in of_camera}) == 1
    for of_camera in everything.values():
        numbers = [result.seq for result in of_camera]
        assert numbers == sorted(set(numbers)), "it began anew"


def test_one_that_was_left_out_is_the_exit_code_once_the_others_are_through(
    tmp_path: Path, cell_bundle: Path, cell_pictures: Path
) -> None:
    altered = copy_bundle(cell_bundle, tmp_path / "altered.edge", 2)
    (altered / "labels.txt").write_text("cat\n")
    cameras: dict[str, Table] = {"film": {"source": str(cell_pictures)}, "west": {**HEALTHY, "bundle": str(altered)}}
    done = edge_sdk("run", "--config", write_at_ease(tmp_path, cell_bundle, cameras))
    assert done.returncode == 7, done.stderr
    assert "film: stopped by end of source" in done.stderr
    assert "labels.txt: has 4 bytes" in done.stderr.splitlines()[-1]
