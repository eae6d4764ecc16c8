"""Events through faults of network, broker, process and clock: none is lost, and what is wrong is said."""

import itertools
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream
from edge_sdk.publishing.session import ConnectionState
from tests.support.broker import WAIT_S, Broker, Mode, Proxy, Subscriber, TlsBroker, require_program, wait_until
from tests.support.certificates import Authority
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.connections import put
from tests.support.device import Device, own_folders, write_blinking_config
from tests.support.event_device import encoded
from tests.support.outboxes import committed, outbox_at, payload
from tests.support.results import IDENTITY
from tests.support.streams import http_server
from tests.support.subscribers import PERSISTENT, Witness, documents, publishing_to, until

pytestmark = pytest.mark.system


class _Publisher(NamedTuple):
    publisher: MqttPublisher
    stream: MqttStream
    events: EventOutbox
    said: list[tuple[str, str]]

    def put(self, count: int) -> list[int]:
        numbers = [self.stream.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
        assert self.events.wait_committed(WAIT_S)
        return numbers

    @property
    def waiting(self) -> int:
        return self.publisher.stats().events.waiting


@contextmanager
def _publisher_at(broker: Broker, folder: Path, stall_s: int = 1, **changes: Any) -> Iterator[_Publisher]:
    said: list[tuple[str, str]] = []
    with (
        outbox_at(folder / "events.sqlite", said=said, commit_s=OutboxSettings().commit_s) as events,
        publishing_to(broker, keepalive_s=stall_s, event_outbox=events, **changes) as (publisher, stream),
    ):
        yield _Publisher(publisher, stream, events, said)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    (folder := tmp_path / "broker").mkdir()
    with Broker(folder, persistence=True, config=PERSISTENT) as broker:
        yield broker


def _brings_all(device: _Publisher, witness: Witness, numbers: list[int]) -> None:
    wait_until(lambda: set(numbers) <= witness.numbers, f"all events; {device.publisher.stats()}")
    wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
    first_arrivals = list(dict.fromkeys(witness.order))
    assert first_arrivals == numbers  # in order, and nothing that was never put
    assert not witness.conflicts
    assert device.publisher.stats().events.lost.total == 0


@pytest.mark.parametrize("mode", ["swallow", "reset"])
def test_a_link_that_fails_and_comes_back(tmp_path: Path, broker: Broker, mode: Mode) -> None:
    with (
        Witness(broker) as witness,
        Proxy(broker.port) as proxy,
        _publisher_at(broker, tmp_path, port=proxy.port) as device,
    ):
        numbers = device.put(50)
        wait_until(lambda: len(witness.numbers) >= 50, "the first events")
        for _ in range(2):
            before = proxy.connections
            proxy.mode = mode
            numbers += device.put(50)
            wait_until(lambda before=before: proxy.connections > before, "another connection")
            numbers += device.put(50)
            proxy.mode = "pass"
            numbers += device.put(50)
            wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        _brings_all(device, witness, numbers)


# Faults between a device and its broker.


class Fault(NamedTuple):
    """One that is there: the line that says it, and what mends it."""

    broker: Broker
    reach: dict[str, Any]
    said: str
    mend: Callable[[], object]


@contextmanager
def wrong_authority(folder: Path) -> Iterator[Fault]:
    known = Authority(folder, "known")
    with TlsBroker(folder) as broker:
        good = broker.authority.file.read_bytes()
        said = f"none of the authorities in {known.file} signed it; give its own, ca_file (--mqtt-ca-file)"
        yield Fault(broker, {**broker.reach, "ca_file": known.file}, said, lambda: known.file.write_bytes(good))


@contextmanager
def wrong_password(folder: Path) -> Iterator[Fault]:
    with Broker(folder, users={"camera": "other"}) as broker:
        # The same user with the right word; mosquitto_passwd has made the file that the broker reads again.
        (folder / "right").mkdir()
        Broker(folder / "right", users={"camera": "right"}, start=False)

        def mend() -> None:
            (folder / "passwords").write_bytes((folder / "right" / "passwords").read_bytes())
            os.kill(broker.pid, signal.SIGHUP)

        said = "Not authorized (reason code 135), as 'camera' with the password: give the right user and password, and "
        yield Fault(broker, {"user": "camera", "password": "right"}, said, mend)


@pytest.mark.parametrize("fault", [wrong_authority, wrong_password])
def test_results_and_events_wait_for_the_end_of_a_fault(
    tmp_path: Path, fault: Callable[[Path], AbstractContextManager[Fault]]
) -> None:
    said: list[tuple[ConnectionState, str]] = []
    with outbox_at(tmp_path / "events.sqlite") as events, fault(tmp_path) as found:
        [first] = committed(events, 1)  # the file is open: what is missing is the broker
        more: dict[str, Any] = {"event_outbox": events, "on_state": lambda *s: said.append(s), **found.reach}
        with publishing_to(found.broker, qos=1, **more) as (publisher, door):
            wait_until(lambda: any(found.said in detail for _, detail in said), f"{found.said!r} in {said}")
            put(door, *range(5))
            wanted = [first, *(door.put_event(payload) for _ in range(4))]
            found.mend()
            until(publisher, lambda s: s.events.delivered >= 5 and s.acknowledged >= 5, f"the answers; {said}")
            assert wanted == list(range(first, first + 5))
            until(publisher, lambda s: s.state == "online" and s.events.waiting == s.queued == 0, "an end of waiting")
            stats = publisher.stats()
            assert (stats.dropped, stats.rejected, stats.too_large, stats.events.lost.total) == (0, 0, 0, 0)
    assert all(line != following for line, following in itertools.pairwise(said))  # no flood


def test_a_broker_that_hangs_up_at_an_event_is_given_the_others(tmp_path: Path) -> None:
    """Mosquitto does with MQTT 3.1.1: there it cannot say that a message is too large."""
    troubles: list[tuple[str, str]] = []
    with (
        outbox_at(tmp_path / "events.sqlite", said=troubles) as events,
        Broker(tmp_path, config=["max_packet_size 3000"]) as broker,
        publishing_to(broker, qos=1, protocol="3.1.1", event_outbox=events) as (publisher, door),
    ):
        door.put_event(payload)
        door.put_event(lambda seq: payload(seq, 4000))
        door.put_event(payload)
        put(door, 2)
        until(publisher, lambda s: s.events.delivered == 2 and s.acknowledged == 1, "the others")
        assert publisher.stats().events.lost.quarantine == 1
        [line] = [line for name, line in troubles if name == "events_refused" and line]
        assert "the broker ended the connection each time it got one of" in line


def _text(bundle: Path, broker: Broker) -> str:
    return config_text(
        {"door": {"source": "pattern:128x128@20", "bundle": bundle, "best_effort": True, "trial_s": 0, **AT_EASE}},
        mqtt={"url": broker.url},
        outbox={"folder": "waiting"},
    )


@pytest.mark.smoke
def test_a_run_brings_the_events_of_an_earlier_one(cell_bundle: Path, tmp_path: Path, broker: Broker) -> None:
    numbers = _put_before(tmp_path, 30)
    with Witness(broker) as witness, Device(write_config(tmp_path, _text(cell_bundle, broker))) as device:
        wait_until(lambda: list(dict.fromkeys(witness.order)) == numbers, "the events")
        device.hear("online; 30 events waited for it")
        assert device.stop() == 0, device.said
    with outbox_at(OutboxSettings(folder=tmp_path / "waiting").path_of("default", "pi")) as outbox:
        assert outbox.wait_committed(WAIT_S)
        assert outbox.waiting == 0


def test_a_reload_brings_what_waits_to_another_broker(cell_bundle: Path, tmp_path: Path, broker: Broker) -> None:
    """The file is closed by who had it, and opened by who comes next: in order, nothing twice, and numbers go on."""
    (folder := tmp_path / "other").mkdir()
    rules = '[[events]]\nlabels = ["red", "blue"]\nappear_s = 0\n'
    with Broker(folder, start=False) as first, Witness(broker) as witness:
        numbers = _put_before(tmp_path, 30)
        with Device(write_config(tmp_path, _text(cell_bundle, first) + rules)) as device:
            device.hear("not reachable")
            device.reload(_text(cell_bundle, broker) + rules)
            wait_until(lambda: list(dict.fromkeys(witness.order))[:30] == numbers, "the events")
            assert device.stop() == 0, device.said
        assert len(witness.order) == len(set(witness.order))


def _put_before(tmp_path: Path, count: int) -> list[int]:
    settings = OutboxSettings(folder=tmp_path / "waiting")
    outbox = EventOutbox(settings, settings.path_of("default", "pi"), IDENTITY.boot_id)
    topic = "edge/v1/default/pi/event/door"
    numbers = [outbox.put(topic, "door", lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
    outbox.close()
    return numbers


_LONG_AGO, _EARLIER, _LATER = timedelta(days=-18000), timedelta(hours=-3), timedelta(days=500)
_NOW, _MINUTE = timedelta(), timedelta(minutes=1)


def _wait_for_commits(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    wait_until(log.exists, "the file")
    before = log.stat().st_size
    wait_until(lambda: log.stat().st_size > before + 20_000, "more events on disk")


def _leaps(events: list[Any]) -> list[timedelta]:
    times = [msgspec.convert(document["at"], datetime) for document in documents(events)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    return [step for step in steps if abs(step) > _MINUTE]


# The wall clock of one program, put forward and back while it runs; its monotonic clocks are the machine's.


class _WallClock:
    """The wall clock of the programs that get its `environment`."""

    def __init__(self, folder: Path, off: timedelta) -> None:
        library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        source = Path(__file__).parents[1] / "support" / "wall_clock.c"
        subprocess.run([require_program("cc"), "-shared", "-fPIC", "-o", library, source], check=True)
        self.environment = {"LD_PRELOAD": library, "WALL_CLOCK_FILE": self._file}
        self._file.write_bytes(bytes(8))
        self.leap(off)

    def leap(self, off: timedelta) -> None:
        with self._file.open("r+b") as file:  # in place: the programs have it mapped
            file.write(struct.pack("=q", round(off.total_seconds())))


def test_events_and_results_over_leaps_of_the_wall_clock(cell_bundle: Path, tmp_path: Path) -> None:
    """A day is the most that an event may wait: by the wall clock each would be years old at the first leap."""
    clock, folder = _WallClock(tmp_path, _LONG_AGO), tmp_path / "events"
    path = OutboxSettings(folder=folder).path_of("default", "pi")
    with (
        Broker(tmp_path) as broker,
        Subscriber(broker) as subscriber,  # there before the device can be
        Proxy(broker.port) as proxy,
        http_server() as camera,
    ):
        proxy.mode, url = "reset", f"mqtt://127.0.0.1:{proxy.port}"
        tables: dict[str, Table] = {"mqtt": {"url": url}, "outbox": {"folder": folder, "max_age_days": 1}}
        config = write_blinking_config(tmp_path, cell_bundle, camera.url("/blinks"), **tables)
        with Device(config, environment={**own_folders(tmp_path), **clock.environment}) as device:
            device.hear("trying again")
            for offset in (_NOW, _EARLIER, _NOW):
                _wait_for_commits(path)
                clock.leap(offset)
            _wait_for_commits(path)
            proxy.mode = "pass"
            # The back-off goes by another clock: it is not years until the next attempt.
            subscriber.wait_for(lambda _: len(_leaps(subscriber.messages("event/gate"))) == 3, "events")
            for offset in (_LATER, _NOW):  # and so does the keep-alive
                clock.leap(offset)
                count = len(subscriber.messages("result/gate")) + 20
                subscriber.wait_for(lambda _, n=count: len(subscriber.messages("result/gate")) > n, "results")
            assert device.stop() == 0
            events, results_of = subscriber.messages("event/gate"), subscriber.messages("result/gate")
        assert [len(device.lines_with(words)) for words in ("online", "bug", "events are lost")] == [1, 0, 0]
    seqs = [document["seq"] for document in documents(events)]
    # What a broker may forget after a while it forgets so long after it got it, whatever anybody's clock says.
    assert {message.expiry_s for message in events} <= set(range(7 * 86400 - 60, 7 * 86400 + 1))
    assert {message.expiry_s for message in results_of} <= set(range(1, 61))
    assert all(0 <= document["age_ms"] < 60_000 for document in documents(results_of))  # by the monotonic clock
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    for leap, expected in zip(_leaps(events), (-_LONG_AGO, _EARLIER, -_EARLIER), strict=False):
        assert leap == pytest.approx(expected, abs=_MINUTE)
