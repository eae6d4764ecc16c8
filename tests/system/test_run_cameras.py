"""Several cameras of one process, frames of every kind, and sources that are not there for a while or not to be opened.

What is broken is no trouble to the cameras beside it.
"""

from __future__ import annotations

import fcntl
import os
import termios
from pathlib import Path

import pytest

from tests.support.broker import Broker, Subscriber, free_port
from tests.support.bundles import LARGE, endless, failing, write_graded, write_real_bundle
from tests.support.configs import AT_EASE, HEALTHY, Table, config_text, write_at_ease, write_config
from tests.support.device import Device, count_results, wait_for_results
from tests.support.streams import http_server
from tests.support.subscribers import documents, statuses

pytestmark = pytest.mark.system

_CORES = 2
_FAIREST = 0.9
_AS_IS = {**AT_EASE, "best_effort": True}


def _on_two_cores(config: Path) -> Device:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:_CORES]))
    try:
        return Device(config)
    finally:
        os.sched_setaffinity(0, before)


def test_four_cameras_share_two_cores(tmp_path: Path, broker: Broker) -> None:
    # Each one's convolutions cost some milliseconds a frame, of which a hundred come a second.
    cameras: dict[str, Table] = {
        f"gate{n}": {
            "source": "pattern:320x240@100",
            "bundle": str(write_graded(tmp_path / f"{n}.edge", side=256 + 8 * n, width=32)),
        }
        for n in range(4)
    }
    defaults = {**_AS_IS, "variant": LARGE}
    config = write_config(tmp_path, config_text(cameras, mqtt={"url": broker.url}, defaults=defaults))
    with Subscriber(broker) as subscriber, _on_two_cores(config) as device:
        wait_for_results(subscriber, device, cameras, 5)
        before = count_results(subscriber, cameras)
        wait_for_results(subscriber, device, cameras, 60)
        after = count_results(subscriber, cameras)
        assert device.stop() == 0, device.said
    assert not device.lines_with("Traceback")
    counts = [after[camera] - before[camera] for camera in cameras]
    # Jain's index: 1 where all have the same, 1/n where one has all.
    assert sum(counts) ** 2 / (len(counts) * sum(count**2 for count in counts)) >= _FAIREST, counts


def test_broken_cameras_are_no_trouble_to_the_others(tmp_path: Path, broker: Broker, cell_bundle: Path) -> None:
    healthy: dict[str, Table] = dict.fromkeys(("north", "east", "south"), HEALTHY)
    hangs = write_real_bundle(tmp_path / "hangs.edge", endless())
    fails = write_real_bundle(tmp_path / "fails.edge", failing())
    with http_server() as server:
        broken: dict[str, Table] = {
            "refuses": {"source": f"rtsp://127.0.0.1:{free_port()}/live"},
            "freezes": {"source": server.url()},
            "lacks": {**HEALTHY, "bundle": str(tmp_path / "none.edge")},
            "hangs": {**HEALTHY, "bundle": str(hangs), "run_limit_s": 0.5},
            "fails": {**HEALTHY, "bundle": str(fails)},
        }
        words = {
            "refuses": "connection refused",
            "freezes": "lost: no frame for 2 s",
            "lacks": "is left out until the configuration is read again",
            "hangs": "a run did not finish within",
            "fails": "begins again in",
        }
        config = write_at_ease(tmp_path, cell_bundle, {**healthy, **broken}, mqtt={"url": broker.url})
        with Subscriber(broker) as subscriber, Device(config) as device:
            wait_for_results(subscriber, device, [*healthy, "freezes"])
            server.pause()
            for camera, said in words.items():
                device.hear(f"{camera}: ", said)
            wait_for_results(subscriber, device, healthy, 40)
            assert {status for status, _, _ in statuses(subscriber)} == {"online"}
            assert device.stop() == 0, device.said
            everything = [documents(subscriber.messages(f"/result/{camera}")) for camera in healthy]
    assert not device.lines_with("Traceback")
    assert len({result["run_id"] for of_camera in everything for result in of_camera}) == 1
    for of_camera in everything:
        numbers = [result["seq"] for result in of_camera]
        assert numbers == sorted(set(numbers)), "it began anew"


# Sources that come, go and cannot be opened.


def test_devices_that_are_not_there_no_cameras_or_in_use(cell_bundle: Path, tmp_path: Path) -> None:
    """A terminal that is held alone is what the kernel says EBUSY of."""
    holder, held = os.openpty()
    name = os.ttyname(held)
    sources = {"none": "/dev/no-such-camera", "null": "/dev/null", "held": name}
    config = write_at_ease(tmp_path, cell_bundle, {"yard": HEALTHY, **{c: {"source": s} for c, s in sources.items()}})
    fcntl.ioctl(held, termios.TIOCEXCL)
    # An administrator of the whole system would be let in.
    before = ("setpriv", "--bounding-set=-sys_admin", "--") if os.geteuid() == 0 else ()
    try:
        with Device(config, before=before) as device:
            device.hear("none: source /dev/no-such-camera: not there yet: no such device; it is waited for")
            device.hear("null: source /dev/null: not there yet: not a camera; it is waited for")
            device.hear(f"held: source {name}: not there yet: in use by another program; it is waited for")
            device.run_on("yard")
            fcntl.ioctl(held, termios.TIOCNXCL)
            device.hear("held: ", "not there yet: not a camera")
            assert device.stop() == 0
    finally:
        os.close(held)
        os.close(holder)
