"""What the service manager is told, over a real datagram socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sdk.health.notify import Notifier


class Manager:
    """The other end: a service manager's socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(10)

    def hear(self) -> list[str]:
        return self.socket.recv(4096).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Manager, str]]:
    path = tmp_path / "notify"
    name = f"edge-sdk-test-{os.getpid()}-{time.monotonic_ns()}"
    address, bound = (str(path), str(path)) if request.param == "path" else (f"@{name}", f"\0{name}")
    heard = Manager(bound)
    with heard.socket:
        yield heard, address


def test_each_message_is_what_systemd_reads(manager: tuple[Manager, str]) -> None:
    other, address = manager
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
    notifier.starting(60)
    assert other.hear() == ["EXTEND_TIMEOUT_USEC=60000000"]
    before_us = time.monotonic_ns() // 1000
    notifier.ready("works\nat 10 °C\nREADY=0")
    assert other.hear() == ["READY=1", "STATUS=works at 10 °C READY=0"]
    notifier.reloading()
    reloading, monotonic = other.hear()
    assert reloading == "RELOADING=1"
    name, _, value = monotonic.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before_us <= int(value) <= time.monotonic_ns() // 1000
    notifier.ready("x" * 10_000)
    assert other.hear() == ["READY=1", "STATUS=" + "x" * 500]
    notifier.watchdog()
    assert other.hear() == ["WATCHDOG=1"]
    notifier.stopping()
    assert other.hear() == ["STOPPING=1"]
    notifier.close()
    notifier.watchdog()
    notifier.close()


@pytest.mark.parametrize(
    ("watchdog", "interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_environment_says_how_often_and_children_do_not_inherit_it(
    watchdog: dict[str, str], interval_s: float | None, manager: tuple[Manager, str]
) -> None:
    environment = {"HOME": "/", "NOTIFY_SOCKET": manager[1], **watchdog}
    notifier = Notifier.from_environment(environment)
    assert notifier.interval_s == interval_s
    assert environment == {"HOME": "/"}
    notifier.close()


def test_the_environment_is_this_process_s_own(manager: tuple[Manager, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager[1])
    notifier = Notifier.from_environment()
    assert "NOTIFY_SOCKET" not in os.environ
    notifier.watchdog()
    assert manager[0].hear() == ["WATCHDOG=1"]
    notifier.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative", "/nowhere/at/all", "/" + "x" * 200, "@\0"])
def test_without_a_manager_nobody_is_told(address: str | None) -> None:
    notifier = Notifier.from_environment({"WATCHDOG_USEC": "2000000"} | ({"NOTIFY_SOCKET": address} if address else {}))
    for _ in range(20):
        notifier.ready("works")
        notifier.reloading()
        notifier.watchdog()
        notifier.stopping()
    notifier.close()


def test_without_an_address_there_is_no_watchdog() -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": "2000000"}).interval_s is None


def test_a_full_socket_holds_nothing_up_and_what_matters_is_told_later(manager: tuple[Manager, str]) -> None:
    other, address = manager
    notifier = Notifier(address, 2.0)
    sent = _fill(address)
    notifier.watchdog()  # none of these blocks: the time limit of the test would see it
    notifier.ready("works")
    for _ in range(1000):
        notifier.reloading()
    for _ in range(sent):
        assert other.hear() == ["x"]
    other.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        other.hear()
    notifier.ready("reloaded")
    told = other.hear()
    assert told[-2:] == ["READY=1", "STATUS=reloaded"]
    assert told[0] == "RELOADING=1"
    assert len(told) == 10
    notifier.watchdog()
    assert other.hear() == ["WATCHDOG=1"]
    notifier.close()


def test_a_start_that_was_not_heard_is_told_with_the_next_sign_of_life(manager: tuple[Manager, str]) -> None:
    other, address = manager
    notifier = Notifier(address, 2.0)
    sent = _fill(address)
    notifier.ready("works")
    for _ in range(sent):
        other.hear()
    notifier.watchdog()
    assert other.hear() == ["READY=1", "STATUS=works", "WATCHDOG=1"]
    notifier.close()


def test_more_time_for_a_start_takes_nothing_from_what_waits(manager: tuple[Manager, str]) -> None:
    other, address = manager
    notifier = Notifier(address)
    sent = _fill(address)
    notifier.reloading()
    for _ in range(sent):
        other.hear()
    notifier.starting(60)
    reloading, _, more_time = other.hear()
    assert (reloading, more_time) == ("RELOADING=1", "EXTEND_TIMEOUT_USEC=60000000")
    notifier.close()


def _fill(address: str) -> int:
    sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        try:
            while True:
                filler.sendto(b"x", f"\0{address[1:]}" if address[0] == "@" else address)
                sent += 1
        except BlockingIOError:
            return sent
