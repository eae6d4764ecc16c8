"""Publisher: what it refuses, what it numbers and what it keeps, with no broker anywhere."""

import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import ConfigError, EdgeError, OutputError, PublishError, UsageError
from edge_sdk.core.protocols import Event, Sink
from edge_sdk.publisher import Publisher
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings
from tests.support.bundles import write_graded
from tests.support.logs import refusal
from tests.support.results import make_classification, make_frame

_NOBODY = "mqtt://127.0.0.1:9"
_SECRET = "hunter2"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_graded(tmp_path / "graded.edge", latency_ms=50.0))


def _open(folder: Path, **arguments: Any) -> Publisher:
    return Publisher.open(_NOBODY, **{"device": "gate-1", "outbox": folder, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "line"),
    [
        ({"url": None}, ConfigError, "mqtt.url is missing"),
        ({"url": f"mqtt://me:{_SECRET}@broker.local"}, ConfigError, "there is a password in the URL"),
        ({"device": "a/b"}, UsageError, "device name 'a/b' cannot be part of a topic"),
        ({"qos": 2}, ConfigError, "mqtt.qos: 2, expected 0 or 1"),
        ({"outbox": "nowhere"}, UsageError, "outbox: nowhere: no such folder"),
        ({"outbox": __file__}, UsageError, "test_publisher.py is a file, name a folder"),
        ({"outbox": {"max_mb": 0}}, ConfigError, "outbox.max_mb is 0"),
        ({"outbox": MappingProxyType({"password": _SECRET})}, ConfigError, "outbox.password: a password does not"),
        ({"publish": MappingProxyType({"event": {}})}, ConfigError, "publish: unknown key event; did you mean events?"),
        ({"url": "mqtt://me@h", "password_file": "nowhere"}, ConfigError, "nowhere: the MQTT password cannot be read"),
        ({"url": "mqtts://h", "cert_file": "nowhere"}, UsageError, "nowhere: this device's certificate cannot be read"),
        ({"cameras": {"a/b": None}}, UsageError, "camera name 'a/b' cannot be part of a topic"),
        ({"cameras": {"gate": "person.edge"}}, UsageError, "camera 'gate': expected a Bundle, got 'person.edge'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[EdgeError], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(error, Publisher.open, **{"url": _NOBODY, "device": "gate-1", "outbox": tmp_path, **arguments})
    assert line in said
    assert _SECRET not in said
    assert list(tmp_path.iterdir()) == []


def test_events_are_on_disk_before_they_count_as_acknowledged_and_their_numbers_go_on(tmp_path: Path) -> None:
    with _open(tmp_path) as publisher:
        numbers = [publisher.put_event(Event(kind="opened", camera="door")) for _ in range(3)]
        assert publisher.wait_committed(60.0)
        stats = publisher.stats()
        assert (stats.events.waiting, stats.events.is_durable, stats.events.lost.total) == (3, True, 0)
    assert numbers[0] is not None
    assert numbers == [numbers[0] + index for index in range(3)]
    with _open(tmp_path) as publisher:
        assert publisher.stats().events.waiting == 3
        assert publisher.put_event(Event(kind="opened", camera="door")) == numbers[0] + 3


def test_a_name_or_a_file_that_is_used_already_is_refused_until_it_is_free(tmp_path: Path) -> None:
    with _open(tmp_path):
        with pytest.raises(PublishError, match=rf"\(process {os.getpid()}\) publishes as device 'gate-1'"):
            _open(tmp_path)
        with pytest.raises(OutputError, match=r"events-default-gate-1\.sqlite: another program uses this file"):
            Publisher.open("mqtt://127.0.0.1:10", device="gate-1", outbox=tmp_path)
        _open(tmp_path, device="gate-2").close()
    _open(tmp_path).close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_nothing_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="events cannot wait there: Permission denied"):
        _open(tmp_path)


def test_without_a_folder_events_wait_where_the_daemon_s_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Publisher.open(_NOBODY, device="gate-1", site="north") as publisher:
        publisher.put(Event(kind="opened"))
    assert (tmp_path / "edge-sdk/outbox/events-north-gate-1.sqlite").stat().st_mode & 0o777 == 0o600


def test_it_takes_results_of_the_cameras_it_knows(tmp_path: Path, bundle: Bundle) -> None:
    with _open(tmp_path, cameras={"gate": bundle}) as publisher:
        sink: Sink = publisher
        sink.put(make_classification([1], make_frame(0, "gate")))
        assert publisher.stats().put == 1
        with pytest.raises(UsageError, match=r"camera 'door', expected one of .* \('gate'\); cameras=\{'door'"):
            sink.put(make_classification([1], make_frame(0, "door")))


def test_what_is_neither_a_result_nor_an_event_is_refused_and_anything_once_it_is_closed(
    tmp_path: Path, bundle: Bundle
) -> None:
    publisher, value = _open(tmp_path, cameras={"gate": bundle}), "x"
    with pytest.raises(UsageError, match=r"got a value of type str, expected a result .* or an Event$"):
        publisher.put(value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got a value of type str, expected an Event$"):
        publisher.put_event(value)  # type: ignore[arg-type]
    publisher.close()
    publisher.close()
    for late in (Event(kind="opened"), make_classification([1], make_frame(0, "gate"))):
        with pytest.raises(UsageError, match="this publisher is closed"):
            publisher.put(late)


# The lock of a device's name, which the daemon holds too.

_HOLDS_IT = """
import sys
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings
lock = NameLock(MqttSettings(host="broker", port=1883, device="gate"))
print("held", flush=True)
sys.stdin.read()
"""


def _lock() -> NameLock:
    return NameLock(MqttSettings(host="broker", port=1883, device="gate"))


def test_a_program_that_is_killed_lets_go_of_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS_IT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(PublishError, match=rf"\(process {other.pid}\)"):
            _lock()
        other.kill()
    _lock().close()


def test_without_a_folder_no_name_is_locked_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    locks = [_lock() for _ in range(2)]
    for lock in locks:
        lock.close()
