"""The unit of the examples under a real systemd: ready, watched, reloaded, ended, restarted or left alone."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest

from tests.support.broker import free_port, wait_until
from tests.support.streams import http_server
from tests.support.systemd import Container, Service

pytestmark = pytest.mark.system

_EXAMPLES = Path(__file__).parents[2] / "examples" / "raspberry_pi"
_RUN = "run /srv/test/cells.edge --source"
_NO_RESULTS = ["StandardOutput=null", "StandardError=journal"]
_VIDEO = f"{_RUN} /srv/test/cells.avi --no-tune --best-effort"


def test_it_is_not_ready_before_the_camera_is(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        service.configure(f"{_RUN} rtsp://127.0.0.1:{silent.getsockname()[1]}/live")
        service.control("start", "--no-block")
        caller, _ = silent.accept()
        with caller:
            service.send("SIGHUP")  # comes when it likes, and ends nothing
            service.wait_until_said("warning")
            assert service.show("ActiveState") == "activating"
            service.control("stop")
    assert service.show("Result") == "success"
    assert not service.said("is open")


def test_it_is_ready_with_a_model_and_a_source_and_its_journal_has_priorities(service: Service) -> None:
    service.configure(_VIDEO, _NO_RESULTS)
    service.control("start")
    assert (service.show("ActiveState"), service.show("StatusText")) == ("active", "cells runs on /srv/test/cells.avi")
    service.wait_until_said("s after start")
    opened, *others = service.said("is open")
    assert not others
    assert int(service.show("ActiveEnterTimestampMonotonic")) >= opened.monotonic_us
    ours = [entry for entry in service.journal() if entry.identifier == "edge-sdk"]
    assert {entry.priority for entry in ours if entry.message.startswith("warning: no trusted key")} == {4}
    assert {entry.priority for entry in ours if "is open" in entry.message} == {6}
    assert not [entry for entry in ours if "edge-sdk:" in entry.message or entry.message.startswith("<")]
    service.control("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert service.said("stopped by signal")


def test_it_runs_with_no_rights_that_it_does_not_need(service: Service, systemd_container: Container) -> None:
    service.configure(_VIDEO)
    service.control("start")
    pid = service.show("MainPID")
    status = dict(
        line.split(":\t", 1)
        for line in systemd_container.run("cat", f"/proc/{pid}/status").splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split()[0] == systemd_container.run("id", "-u", "edge-sdk") != "0"
    assert systemd_container.run("id", "-g", "edge-sdk") == status["Gid"].split()[0]
    assert systemd_container.run("getent", "group", "video").split(":")[2] in status["Groups"].split()
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapBnd"], 16)) == ("1", "2", 0)
    service.wait_until_said("s after start")
    assert systemd_container.run("ls", "/var/lib/edge-sdk") == "proved"
    assert "NOTIFY_SOCKET" in systemd_container.run("cat", f"/proc/{pid}/environ")  # as it was given


@pytest.mark.parametrize("signal", ["SIGUSR1", "SIGSTOP"])
def test_a_pipeline_that_hangs_is_ended_and_comes_back(signal: str, service: Service) -> None:
    """SIGUSR1 hangs the pipeline alone; SIGSTOP all of the process."""
    service.configure(_VIDEO, ["WatchdogSec=3", "RestartSec=100ms"])
    service.control("start")
    service.wait_until_said("s after start")
    service.send(signal)
    service.wait_until("NRestarts", "1")
    assert service.said("Watchdog timeout")
    if signal == "SIGUSR1":
        assert service.said("step_that_never_ends"), "where it hung is not in the journal"
    service.wait_until_said("s after start", times=2)
    assert service.show("ActiveState") == "active"


def test_a_camera_that_is_lost_is_no_hang(service: Service) -> None:
    with http_server() as camera:
        service.configure(f"{_RUN} {camera.url()} --no-tune --best-effort", ["WatchdogSec=3"])
        service.control("start")
        service.wait_until_said("s after start")
        camera.pause()
        service.wait_until_said(": lost")
        lost = service.said(": lost")[0].monotonic_us
        wait_until(lambda: time.monotonic_ns() // 1000 > lost + 7_000_000, "twice what the watchdog allows is over")
        assert (service.show("ActiveState"), service.show("NRestarts")) == ("active", "0")
        camera.go_on()
        service.control("stop")


def test_a_run_by_hand_as_the_guide_has_it_leaves_nothing_of_root_s(systemd_container: Container) -> None:
    container = systemd_container
    [line] = re.findall(r'as_service="sudo (.+)"', (_EXAMPLES / "README.md").read_text(encoding="utf-8"))
    container.write(
        "/etc/edge-sdk/config.toml",
        'version = 1\n[[pipelines]]\nname = "hall"\nsource = "pattern"\n'
        'bundle = "/srv/test/cells.edge"\ntune = false\n',
    )
    as_service = line.replace("--pty", "--pipe --wait").split()  # there is no terminal here
    said = container.run(*as_service, "/opt/edge-sdk/bin/edge-sdk", "run", "--duration", "3")
    assert "stopped by duration" in said
    owners = container.run("find", "/var/lib/edge-sdk", "-mindepth", "1", "-printf", "%u\\n").split()
    assert set(owners) == {"edge-sdk"}
    assert container.run("stat", "-c", "%a", "/var/lib/edge-sdk") == "750"


def test_the_broker_s_password_is_a_credential(service: Service, systemd_container: Container) -> None:
    broker = f"--mqtt mqtt://user@127.0.0.1:{free_port()} --mqtt-password-file %d/mqtt --trust /srv/test/fleet.key.pub"
    service.configure(f"{_VIDEO} {broker}")
    service.control("start", check=False)
    service.wait_until("ExecMainStatus", "2")  # the unit starts without the file; the program says what is missing
    assert service.said("mqtt: the MQTT password cannot be read")
    systemd_container.write("/etc/credstore/mqtt", "secret\n", mode="600")
    service.configure(f"{_VIDEO} {broker}")
    service.control("start")
    service.wait_until_said("not reachable")
    assert not service.said("secret") + service.said("signature is checked")
    assert "secret" not in systemd_container.run("cat", f"/proc/{service.show('MainPID')}/environ")


def test_what_a_restart_cannot_mend_is_not_restarted(service: Service) -> None:
    service.configure(f"{_RUN} rtsp://user:password@127.0.0.1/live")
    service.control("start", check=False)
    service.wait_until("ActiveState", "failed")
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("2", "0")
    assert [entry.priority for entry in service.said("a password on the command line")] == [3]


def test_what_fails_again_and_again_is_left_alone(service: Service) -> None:
    service.configure(f"{_RUN} /srv/test/none.avi", ["RestartSec=100ms"])
    service.control("start", "--no-block")
    wait_until(lambda: bool(service.said("Start request repeated too quickly")), "the limit of starts is reached")
    service.wait_until("ActiveState", "failed")
    assert service.show("NRestarts") == "10"
    assert len(service.said("none.avi")) == 10


_CONFIG = "/etc/edge-sdk/config.toml"

_HEAD = """
version = 1

[defaults]
bundle = "/srv/test/cells.edge"
tune = false
best_effort = true
"""


def _camera(name: str, source: str, **more: str) -> str:
    lines = [f'name = "{name}"', f'source = "{source}"', *(f"{key} = {value}" for key, value in more.items())]
    return "\n".join(["[[pipelines]]", *lines, ""])


def _configure(container: Container, *cameras: str) -> None:
    container.write(_CONFIG, "\n".join([_HEAD, *cameras]))


def test_a_reload_takes_a_new_camera_and_keeps_the_others(service: Service, systemd_container: Container) -> None:
    front, yard = _camera("front", "pattern:128x128@10"), _camera("yard", "pattern:128x128@10")
    _configure(systemd_container, front)
    service.configure("run", _NO_RESULTS)  # as it is installed: the file is where it belongs
    service.control("start")
    assert service.show("StatusText") == "cells runs on pattern:128x128@10"
    service.wait_until_said("s after start")
    pid = service.show("MainPID")

    _configure(systemd_container, front, yard)
    service.control("reload")
    service.wait_until("StatusText", "2 pipelines: cells runs on pattern:128x128@10, cells runs on pattern:128x128@10")
    service.wait_until("ActiveState", "active")
    assert service.said("configuration read again: new: yard; as before: front")

    _configure(systemd_container, front, front)
    service.control("reload")
    service.wait_until_said("are both named 'front'")
    service.wait_until("ActiveState", "active")
    assert service.show("StatusText").startswith("2 pipelines")
    assert (service.show("MainPID"), service.show("NRestarts")) == (pid, "0")

    service.control("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert service.said("yard: stopped by signal")


def test_a_camera_that_is_not_there_holds_up_neither_start_nor_others(
    service: Service, systemd_container: Container
) -> None:
    _configure(
        systemd_container,
        _camera("gone", "rtsp://127.0.0.1:9/live"),
        _camera("unplugged", "/dev/video7"),
        _camera("front", "pattern:128x128@10"),
    )
    service.configure("run", [*_NO_RESULTS, "WatchdogSec=3"])
    service.control("start")
    assert service.show("ActiveState") == "active"
    service.wait_until_said("gone: source rtsp://127.0.0.1:9/live: not there yet: connection refused")
    service.wait_until_said("unplugged: source /dev/video7: not there yet: no such device")
    service.wait_until_said("s after start")
    assert service.show("NRestarts") == "0"
