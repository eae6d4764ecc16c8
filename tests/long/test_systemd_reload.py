"""The unit as it is installed, with a configuration of several cameras, under a real systemd."""

from __future__ import annotations

import pytest

from tests.support.systemd import Container, Service

pytestmark = pytest.mark.system

_CONFIG = "/etc/edge-sdk/config.toml"
_HEAD = """
version = 1

[defaults]
bundle = "/srv/test/cells.edge"
tune = false
best_effort = true
"""
_NO_RESULTS = ["StandardOutput=null", "StandardError=journal"]


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
    service.wait_until("StatusText", "2 streams: cells runs on pattern:128x128@10, cells runs on pattern:128x128@10")
    service.wait_until("ActiveState", "active")
    assert service.said("configuration read again: new: yard; as before: front")

    _configure(systemd_container, front, front)
    service.control("reload")
    service.wait_until_said("are both named 'front'")
    service.wait_until("ActiveState", "active")
    assert service.show("StatusText").startswith("2 streams")
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


def test_what_nothing_mends_ends_it_and_is_not_restarted(service: Service, systemd_container: Container) -> None:
    _configure(systemd_container, _camera("front", "pattern", fsp="10"))
    service.configure("run", _NO_RESULTS)
    service.control("start", check=False)
    service.wait_until("ActiveState", "failed")
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("2", "0")
    assert [entry.priority for entry in service.said("unknown key fsp; did you mean fps?")] == [3]
