"""Events through faults of network, broker, process and clock: none is lost, and what is wrong is said."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from edge_sdk.core.threads import Backoff
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from tests.support.broker import TRICKLE_BYTES, WAIT_S, Broker, Mode, Proxy, Received, Subscriber, wait_until
from tests.support.configs import AT_EASE, Table, config_text, write_config
from tests.support.device import BlinkingCamera, Device, WallClock, own_folders, write_blinking_config
from tests.support.event_device import encoded
from tests.support.faults import FAULTS, Fault
from tests.support.outboxes import outbox_at, payload
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import PERSISTENT, Witness, documents, publishing_to, put, until

pytestmark = pytest.mark.system


class _Publisher:
    """A publisher with one camera and an outbox on disk."""

    def __init__(self, port: int, folder: Path, stall_s: int) -> None:
        self.said: list[tuple[str, str]] = []
        self.events = EventOutbox(OutboxSettings(), folder / "events.sqlite", "boot")
        self.events.listen(lambda *said: self.said.append(said))
        assert self.events.wait_committed(WAIT_S)  # with nothing put: what its file has is known
        settings = MqttSettings(host="127.0.0.1", port=port, device="pi", keepalive_s=stall_s)
        self.publisher = MqttPublisher(settings, IDENTITY, events=self.events, backoff=Backoff(0.02, 0.1))
        self.stream: MqttStream = self.publisher.stream("door", make_encoder())

    def put(self, count: int) -> list[int]:
        """So many events, and their numbers once all are acknowledged."""
        numbers = [self.stream.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
        assert self.events.wait_committed(WAIT_S)
        return numbers

    @property
    def waiting(self) -> int:
        return self.publisher.stats().events.waiting


@contextmanager
def _publisher_at(port: int, folder: Path, stall_s: int = 1) -> Iterator[_Publisher]:
    device = _Publisher(port, folder, stall_s)
    try:
        yield device
    finally:
        device.publisher.close(WAIT_S)


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
    with Witness(broker) as witness, Proxy(broker.port) as proxy, _publisher_at(proxy.port, tmp_path) as device:
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


def test_a_link_that_lets_little_through_at_a_time(tmp_path: Path, broker: Broker) -> None:
    with (
        Witness(broker) as witness,
        Proxy(broker.port) as proxy,
        _publisher_at(proxy.port, tmp_path, stall_s=10) as device,
    ):
        numbers = device.put(50)
        wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        proxy.mode, proxy.pieces = "trickle", []
        numbers += device.put(50)
        wait_until(lambda: device.waiting == 0, f"an end of waiting; {device.publisher.stats()}")
        trickled = list(proxy.pieces)
        proxy.mode = "pass"
        numbers += device.put(50)
        _brings_all(device, witness, numbers)
        # In far more pieces than there are messages.
        assert max(trickled) == TRICKLE_BYTES
        assert len(trickled) > 50 * 3
        # Slow is not dead: nothing was given up, so nothing came twice.
        assert (proxy.connections, witness.doubles) == (1, 0)


def test_a_frozen_broker(tmp_path: Path, broker: Broker) -> None:
    with Witness(broker) as witness, _publisher_at(broker.port, tmp_path) as device:
        numbers = device.put(20)
        wait_until(lambda: len(witness.numbers) == 20, "the first events")
        wait_until(lambda: device.waiting == 0, "the broker's answers")
        broker.freeze()
        numbers += device.put(300)
        wait_until(lambda: device.publisher.stats().state == "connecting", "the connection to be given up")
        assert device.waiting >= 300  # the first ones are in doubt, too: it said nothing after them
        broker.thaw()
        _brings_all(device, witness, numbers)


def test_events_that_the_broker_never_takes_are_put_aside_and_the_others_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_sdk.outbox.event._EVERY_S", 0.5)  # between a refusal and the next offer
    (folder := tmp_path / "broker").mkdir()
    acl = ["topic readwrite edge/v1/default/pi/#", "topic deny edge/v1/default/pi/event/yard"]
    with (
        Broker(folder, acl=acl, config=["max_packet_size 3000"]) as broker,
        Subscriber(broker, "edge/v1/default/pi/event/#") as subscriber,
        _publisher_at(broker.port, tmp_path) as device,
    ):
        yard = device.publisher.stream("yard", make_encoder())
        first = device.put(1)
        denied = [yard.put_event(lambda seq: b'{"seq":%d}' % seq)]
        device.stream.put_event(lambda seq: b'{"big":"%s"}' % (b"x" * 4000))
        last = device.put(1)
        wait_until(lambda: device.waiting == 0, f"the end of waiting; {device.publisher.stats()}")
        stats = device.publisher.stats()
        assert (stats.events.delivered, stats.events.lost.quarantine, stats.connects) == (2, 2, 1)
        subscriber.wait_for(lambda messages: len(messages) == 2, "the good ones")
        assert last[0] == first[0] + 2  # the gap is what was put aside
        refusals = [line for name, line in device.said if name == "events_refused" and line]
        assert any("event/yard" in line and "ACL" in line for line in refusals)
        (folder / "acl").write_text("topic readwrite #\n")
        os.kill(broker.pid, signal.SIGHUP)

        def is_taken() -> bool:  # until it has read its ACL again it denies more of them
            denied.append(yard.put_event(lambda seq: b'{"seq":%d}' % seq))
            assert device.events.wait_committed(WAIT_S)
            return denied[0] in {d["seq"] for d in documents(subscriber.messages("event/yard"))}

        wait_until(is_taken, "what was denied")
        subscriber.wait_for(
            lambda _: {d["seq"] for d in documents(subscriber.messages("event/yard"))} == set(denied), "all of it"
        )
        wait_until(lambda: device.waiting == 0, "the end of waiting")
        assert device.publisher.stats().events.lost.quarantine == 1  # the large one


@pytest.mark.parametrize("fault_in", FAULTS, ids=lambda fault: fault.__name__)
def test_results_and_events_wait_for_the_end_of_a_fault(
    tmp_path: Path, fault_in: Callable[[Path], AbstractContextManager[Fault]]
) -> None:
    said: list[tuple[ConnectionState, str]] = []
    with outbox_at(tmp_path / "events.sqlite") as events:
        first = events.put("edge/v1/default/pi/event/door", "door", payload)
        assert events.wait_committed(WAIT_S)  # the file is open: what is missing is the broker
        with (
            fault_in(tmp_path) as fault,
            publishing_to(
                fault.broker, qos=1, event_outbox=events, on_state=lambda *s: said.append(s), **fault.reach
            ) as (publisher, door),
        ):
            wait_until(lambda: any(fault.said in detail for _, detail in said), f"{fault.said!r} in {said}")
            put(door, *range(5))
            wanted = [first, *(door.put_event(payload) for _ in range(4))]
            fault.mend()
            until(publisher, lambda s: s.events.delivered >= 5 and s.acknowledged >= 5, f"the answers; {said}")
            assert wanted == list(range(first, first + 5))
            until(publisher, lambda s: s.state == "online" and s.events.waiting == s.queued == 0, "an end of waiting")
            stats = publisher.stats()
            assert (stats.dropped, stats.rejected, stats.too_large, stats.events.lost.total) == (0, 0, 0, 0)
    assert len(said) < 60  # no flood


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
        assert "it ended the connection each time it got one of" in line
        assert "raise its limit of a message (max_packet_size, message_size_limit), or have its ACL let" in line


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
    """Events of an earlier process."""
    settings = OutboxSettings(folder=tmp_path / "waiting")
    outbox = EventOutbox(settings, settings.path_of("default", "pi"), IDENTITY.boot_id)
    topic = "edge/v1/default/pi/event/door"
    numbers = [outbox.put(topic, "door", lambda seq: encoded(IDENTITY, seq)) for _ in range(count)]
    outbox.close()
    return numbers


_LONG_AGO, _NOW = timedelta(days=-18000), timedelta()
_EARLIER, _LATER = timedelta(hours=-3), timedelta(days=500)
_MINUTE = timedelta(minutes=1)


def _wait_for_commits(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    wait_until(log.exists, "the file")
    before = log.stat().st_size
    wait_until(lambda: log.stat().st_size > before + 20_000, "more events on disk")


def _leaps(events: list[Received]) -> list[timedelta]:
    """Of more than a minute from one to the next."""
    times = [msgspec.convert(document["at"], datetime) for document in documents(events)]
    steps = [after - before for before, after in itertools.pairwise(times)]
    return [step for step in steps if abs(step) > _MINUTE]


def test_events_and_results_over_leaps_of_the_wall_clock(cell_bundle: Path, tmp_path: Path) -> None:
    """A day is the most that an event may wait: by the wall clock each would be years old at the first leap."""
    clock = WallClock(tmp_path, _LONG_AGO)
    folder = tmp_path / "events"
    path = OutboxSettings(folder=folder).path_of("default", "pi")
    with Broker(tmp_path, start=False) as broker, BlinkingCamera() as camera:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "outbox": {"folder": folder, "max_age_days": 1}}
        config = write_blinking_config(tmp_path, cell_bundle, camera.url, **tables)
        with Device(config, environment={**own_folders(tmp_path), **clock.environment}) as device:
            device.hear("not reachable")
            for offset in (_NOW, _EARLIER, _NOW):
                _wait_for_commits(path)
                clock.leap(offset)
            _wait_for_commits(path)
            broker.start()
            with Subscriber(broker) as subscriber:
                # The back-off goes by another clock: it is not years until the next attempt.
                subscriber.wait_for(lambda _: len(_leaps(subscriber.messages("event/gate"))) == 3, "events")
                for offset in (_LATER, _NOW):  # and so does the keep-alive
                    clock.leap(offset)
                    count = len(subscriber.messages("result/gate")) + 20
                    subscriber.wait_for(lambda _, n=count: len(subscriber.messages("result/gate")) > n, "results")
                assert device.stop() == 0
                events, results_of = subscriber.messages("event/gate"), subscriber.messages("result/gate")
        assert len(device.lines_with("online")) == 1
        assert not device.lines_with("bug")
        assert not device.lines_with("events are lost")
    seqs = [document["seq"] for document in documents(events)]
    # What a broker may forget after a while it forgets so long after it got it, whatever anybody's clock says.
    assert {message.expiry_s for message in events} <= set(range(7 * 86400 - 60, 7 * 86400 + 1))
    assert {message.expiry_s for message in results_of} <= set(range(1, 61))
    for document in documents(results_of):
        assert 0 <= document["age_ms"] < 60_000  # by the monotonic clock
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    first, back, forth, *_ = _leaps(events)
    assert first == pytest.approx(-_LONG_AGO, abs=_MINUTE)
    assert back == pytest.approx(_EARLIER, abs=_MINUTE)
    assert forth == pytest.approx(-_EARLIER, abs=_MINUTE)
