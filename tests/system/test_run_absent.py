"""A device whose camera, file or /sys is not there, or not to be opened, beside a stream that is well."""

from __future__ import annotations

import fcntl
import os
import shutil
import termios
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker, Subscriber
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import Device, Mounts, without_sys
from tests.support.streams import StreamServer, http_server, rtsp_server

pytestmark = pytest.mark.system


@pytest.mark.parametrize("make_server", [rtsp_server, http_server])
def test_a_server_that_starts_later_and_a_file_that_appears_later(
    make_server: Callable[[], StreamServer], cell_bundle: Path, long_video: Path, tmp_path: Path
) -> None:
    film = tmp_path / "film.avi"
    with make_server() as server:
        server.kill()
        streams = {"film": {"source": film}, "gate": {"source": server.url()}, "yard": HEALTHY}
        with Device(write_at_ease(tmp_path, cell_bundle, streams)) as device:
            device.hear("film: ", f"{film}: no such file or folder", "begins again in")
            device.hear("gate: ", "not there yet: connection refused; it is waited for")
            device.run_on("yard")
            assert device.results("gate") == device.results("film") == []
            shutil.copy(long_video, film.with_suffix(".part"))
            film.with_suffix(".part").rename(film)
            server.start()
            device.hear("gate: ", "is open")
            device.hear("film: ", "is open")
            for camera in streams:
                device.run_on(camera)
            assert device.stop() == 0
    assert not device.lines_with("bug")


def test_a_device_that_is_not_there_or_no_camera(cell_bundle: Path, tmp_path: Path) -> None:
    streams = {"none": {"source": "/dev/no-such-camera"}, "null": {"source": "/dev/null"}, "yard": HEALTHY}
    with Device(write_at_ease(tmp_path, cell_bundle, streams)) as device:
        device.hear("none: source /dev/no-such-camera: not there yet: no such device; it is waited for")
        device.hear("null: source /dev/null: not there yet: not a camera; it is waited for")
        device.run_on("yard")
        assert device.stop() == 0


def test_a_device_that_may_not_be_opened(cell_bundle: Path, tmp_path: Path) -> None:
    """A character device, as a camera is, of another user; and root without the right to pass over that."""
    node = Path("/dev/shm/video0")
    config = write_at_ease(tmp_path, cell_bundle, {"gate": {"source": node}, "yard": HEALTHY})
    with Mounts(f"mount -t tmpfs tmpfs /dev/shm && mknod -m 600 {node} c 81 0 && chown nobody {node}") as mounts:
        rights = "-dac_override,-dac_read_search"
        with Device(config, before=(*mounts.within, "setpriv", f"--bounding-set={rights}", "--")) as device:
            device.hear("gate: ", "permission denied; add this user to the group video; it is waited for")
            device.run_on("yard")
            # The administrator lets it in, and it is another thing than a camera.
            mounts.path(node).unlink()
            mounts.path(node).symlink_to("/dev/null")
            device.hear("gate: ", "not there yet: not a camera")
            device.run_on("yard")
            assert device.stop() == 0


def test_a_device_that_another_program_has(cell_bundle: Path, tmp_path: Path) -> None:
    """A terminal that is held alone: without a camera it is what the kernel says EBUSY of."""
    holder, held = os.openpty()
    name = os.ttyname(held)
    config = write_at_ease(tmp_path, cell_bundle, {"gate": {"source": name}, "yard": HEALTHY})
    fcntl.ioctl(held, termios.TIOCEXCL)
    # An administrator of the whole system would be let in.
    before = ("setpriv", "--bounding-set=-sys_admin", "--") if os.geteuid() == 0 else ()
    try:
        with Device(config, before=before) as device:
            device.hear(f"gate: source {name}: not there yet: in use by another program; it is waited for")
            device.run_on("yard")
            fcntl.ioctl(held, termios.TIOCNXCL)
            device.hear("gate: ", "not there yet: not a camera")
            assert device.stop() == 0
    finally:
        os.close(held)
        os.close(holder)


def test_without_sys_it_runs_and_leaves_out_what_is_not_known(
    cell_bundle: Path, broker: Broker, tmp_path: Path
) -> None:
    streams = {"gate": {**HEALTHY, "tune": True}, "yard": {**HEALTHY, "latency_ms": 500}}
    config = write_at_ease(tmp_path, cell_bundle, streams, mqtt={"url": broker.url})
    with (
        without_sys() as mounts,
        Subscriber(broker) as subscriber,
        Device(config, before=mounts.within, environment={"XDG_STATE_HOME": str(tmp_path)}) as device,
    ):
        device.hear("gate: ", "tuned in")
        subscriber.wait_for(lambda messages: any(m.topic.endswith("/telemetry") for m in messages), "telemetry")
        for camera in streams:
            subscriber.wait_for(
                lambda messages, topic=f"result/{camera}": sum(m.topic.endswith(topic) for m in messages) > 10,
                f"results of {camera}",
            )
        assert device.stop() == 0
    telemetry = msgspec.json.decode(subscriber.messages("/telemetry")[0].payload)
    assert "temperature_c" not in telemetry
    assert telemetry["throttled"] == []
    assert telemetry["memory_rss_mb"] > 10
    assert not device.lines_with("bug")
    assert "null" not in subscriber.messages("/telemetry")[0].payload.decode()
