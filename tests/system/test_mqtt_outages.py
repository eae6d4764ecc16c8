"""The publisher while its broker is absent, killed, frozen, or strict about sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from edge_sdk.publishing import (
    MemoryOutbox,
    ModelRef,
    MqttSettings,
    PublisherStats,
    State,
)
from edge_sdk.publishing.mqtt import WINDOW, MqttLink
from edge_sdk.publishing.wakeup import Wakeup
from tests.support.broker import WAIT_S, Broker, Subscriber, wait_until
from tests.support.results import make_detections, make_encoder, make_frame
from tests.support.subscribers import (
    QOS,
    RESULT,
    STATE,
    documents,
    latest_state,
    numbers,
    publishing_to,
    put,
    states,
    statuses,
    until,
    wait_online,
)

pytestmark = pytest.mark.system


def test_an_idle_broker_is_heard_by_its_answers_to_probes_and_a_dead_one_is_not(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        settings = MqttSettings(host="127.0.0.1", port=broker.port, device="pi", keepalive_s=1)
        link, wakeup = MqttLink(settings, b"{}"), Wakeup()
        link.open()

        def turned(has_come: Callable[[], bool]) -> bool:
            link.turn(0.05, wakeup)
            return has_come()

        wait_until(lambda: turned(lambda: link.phase == "up"), "a connection")
        assert link.heard()
        assert not link.heard()
        for _ in range(2):
            wait_until(lambda: turned(link.heard), "an answer to a probe")
        broker.kill()
        wait_until(lambda: turned(lambda: link.phase == "lost"), "the end of the connection")
        assert not link.heard()
        link.close(politely=False)
        wakeup.close()


def _has_sent(count: int) -> Callable[[PublisherStats], bool]:
    return lambda stats: stats.sent >= count


def _has_come_after(subscriber: Subscriber, number: int) -> Callable[[object], bool]:
    return lambda _: max(numbers(subscriber)) > number


@pytest.mark.parametrize("qos", QOS)
def test_broker_absent_at_start(tmp_path: Path, qos: Literal[0, 1]) -> None:
    states: list[tuple[State, str]] = []
    with Broker(tmp_path, start=False) as broker:
        with publishing_to(broker, qos=qos, on_state=lambda *s: states.append(s)) as (publisher, door):
            put(door, *range(5))
            until(publisher, lambda s: s.last_error == "Connection refused", "the first attempt")
            assert publisher.stats().state == "connecting"
            broker.start()
            until(publisher, lambda s: s.sent == 5, "what waited")
        assert [s for s, _ in states] == ["connecting", "online", "closed"]


@pytest.mark.parametrize("qos", QOS)
def test_broker_killed_and_restarted_while_results_flow(broker: Broker, qos: Literal[0, 1]) -> None:
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.wait(0.005):
            put(door, number)
            number += 1

    with Subscriber(broker) as subscriber, publishing_to(broker, qos=qos) as (publisher, door):
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for _ in range(3):
                until(publisher, _has_sent(publisher.stats().sent + 20), "results before the kill")
                broker.kill()
                until(publisher, lambda s: s.state == "connecting" and s.queued > 20, "the loss of the broker")
                broker.start()
                wait_online(publisher)
                subscriber.wait_for(_has_come_after(subscriber, publisher.stats().put), "new results")
        finally:
            stop.set()
            producer.join()
        assert publisher.stats().connects == 4
        if qos == 1:
            until(publisher, lambda s: s.acknowledged == s.put, "an acknowledgement for every result")


def test_birth_and_state_come_again_with_a_broker_that_remembers_nothing(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        wait_online(publisher)
        door.warn("hung", "a run came to no end")
        broker.restart()
        until(publisher, lambda s: s.connects == 2, "the second connection")
        with Subscriber(broker) as late:
            late.wait_for(lambda _: "warnings" in latest_state(late), "the state")
            assert statuses(late)[0][0] == "online"
            assert [list(cameras) for cameras in states(late)][-1] == ["door"]


@pytest.mark.parametrize("qos", QOS)
def test_a_loud_camera_does_not_cost_another_its_results_while_the_broker_is_away(
    tmp_path: Path, qos: Literal[0, 1]
) -> None:
    outbox = MemoryOutbox(max_messages=50)
    with (
        Broker(tmp_path, start=False) as broker,
        publishing_to(broker, qos=qos, outbox=outbox) as (publisher, door),
    ):
        gate = publisher.stream("gate", make_encoder())
        put(gate, *range(10))
        put(door, *range(2000))
        put(gate, *range(10, 20))
        assert (gate.stats().queued, gate.stats().dropped) == (20, 0)
        assert (door.stats().queued, door.stats().dropped) == (30, 1970)
        broker.start()
        until(publisher, lambda s: s.sent == 50, "what waited")
        assert (gate.stats().sent, door.stats().sent) == (20, 30)


@pytest.mark.parametrize("qos", QOS)
def test_a_camera_is_taken_over_while_the_broker_comes_and_goes(broker: Broker, qos: Literal[0, 1]) -> None:
    with Subscriber(broker) as subscriber, publishing_to(broker, qos=qos) as (publisher, door):
        wait_online(publisher)
        put(door, *range(10))
        subscriber.wait_for(lambda _: numbers(subscriber) == list(range(10)), "the results of the first")
        broker.kill()
        until(publisher, lambda s: s.state == "connecting", "the loss of the broker")
        put(door, *range(10, 20))
        other = publisher.stream("door", make_encoder(model=ModelRef("other", 1, "1" * 64)))
        put(door, 99)
        put(other, *range(10))
        broker.start()
        until(publisher, _has_sent(30), "all results")
        following = iter(range(10, 10_000))

        def hears_again() -> bool:
            put(other, next(following))
            return max(numbers(subscriber)) > 29

        wait_until(hears_again, "the subscriber")
        # A subscriber that is not back yet misses what comes meanwhile: gaps are its own, doubles would be ours.
        found = [(d["seq"], d["model"]["name"]) for d in documents(subscriber.messages(RESULT))]
        assert found == sorted(set(found))
        assert all((name == "tiny") == (number < 20) for number, name in found)
        assert len({d["run_id"] for d in documents(subscriber.messages(RESULT))}) == 1


@pytest.mark.parametrize("qos", QOS)
def test_a_frozen_broker_makes_nothing_grow(broker: Broker, qos: Literal[0, 1]) -> None:
    outbox = MemoryOutbox(max_messages=50, max_bytes=500_000)
    links: list[MqttLink] = []
    with publishing_to(broker, qos=qos, outbox=outbox, links=links, keepalive_s=60) as (publisher, door):
        wait_online(publisher)
        broker.freeze()
        [link] = links
        for number in range(8000):  # 8000 * 10 kB: far more than the kernel's buffers hold
            put(door, number, count=100)
            assert len(link._client._out_packet) <= WINDOW
            assert len(link._client._out_messages) <= WINDOW
            assert len(outbox) <= 50
            assert outbox.waiting_bytes <= 500_000
        stats = publisher.stats()
        assert stats.put == 8000
        assert stats.dropped > 1000
        assert stats.sent + stats.dropped + stats.queued >= 8000 - WINDOW
        broker.thaw()
        until(publisher, lambda s: s.queued == 0 and s.sent + s.dropped == s.put, "the end of the queue")
        assert publisher.stats().connects == 1


def test_a_broker_frozen_for_longer_than_the_keep_alive(broker: Broker) -> None:
    with publishing_to(broker, keepalive_s=1) as (publisher, door):
        wait_online(publisher)
        broker.freeze()
        until(publisher, lambda s: s.state == "connecting", "the keep-alive to run out")
        put(door, 1)
        broker.thaw()
        until(publisher, lambda s: s.sent == 1, "the result")


def test_close_with_a_frozen_broker_returns_in_time(broker: Broker) -> None:
    with publishing_to(broker, keepalive_s=60) as (publisher, door):
        wait_online(publisher)
        broker.freeze()
        put(door, *range(500), count=300)
        publisher.close(timeout_s=0.5)
        assert not publisher._thread.is_alive()
        assert publisher.stats().queued > 0
        broker.thaw()
    with Subscriber(broker) as late:
        late.wait_for(lambda _: [s[:2] for s in statuses(late)][-1:] == [("offline", "lost")], "the last will")


def test_close_with_a_dead_broker_returns_in_time(broker: Broker) -> None:
    with publishing_to(broker) as (publisher, door):
        wait_online(publisher)
        broker.kill()
        put(door, *range(10))
        publisher.close(timeout_s=WAIT_S)
        assert not publisher._thread.is_alive()


@pytest.mark.parametrize("qos", QOS)
def test_a_message_above_the_limit_is_dropped_and_not_tried_for_ever(tmp_path: Path, qos: Literal[0, 1]) -> None:
    said: list[str] = []
    with (
        Broker(tmp_path, config=["max_packet_size 2000"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=qos, on_doubt=said.append) as (publisher, door),
    ):
        put(door, 1)
        put(door, 2, count=100)
        put(door, 3)
        subscriber.wait_for(lambda _: 3 in numbers(subscriber), "the small results")
        assert numbers(subscriber) == [1, 3]
        until(publisher, lambda s: s.sent == 2, "the acknowledgements")
        stats = publisher.stats()
        assert (stats.too_large, stats.connects, stats.state) == (1, 1, "online")
        put(door, 4, count=101)
        until(publisher, lambda s: s.too_large == 2, "the next one")
        [line] = said  # once, and not once a result
        assert line.endswith("maximum packet size and is not sent; raise that there (max_packet_size)")
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("max_packet_size 2000", "max_packet_size 200000"))
        broker.restart()

        def arrives() -> bool:  # the subscriber comes back later than the publisher
            put(door, 5, count=100)
            return 5 in numbers(subscriber)

        wait_until(arrives, "a large result after the limit was raised")
        subscriber.wait_for(lambda _: "warnings" not in documents(subscriber.messages(STATE))[-1], "the warning's end")


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("room", [0, 1])
def test_the_size_of_a_packet_is_counted_right(tmp_path: Path, qos: Literal[0, 1], room: int) -> None:
    encoder = make_encoder(clock_ns=lambda: 0)
    payload = encoder.encode(make_detections(30, make_frame(1)))
    fixed_header_bytes, topic_bytes, properties_bytes = 3, 2 + len("edge/v1/default/pi/result/door"), 65
    message_id_bytes = 2 if qos else 0
    limit = fixed_header_bytes + topic_bytes + message_id_bytes + properties_bytes + len(payload) - 1 + room
    with (
        Broker(tmp_path, config=[f"max_packet_size {limit}"]) as broker,
        publishing_to(broker, qos=qos, encoder=encoder) as (publisher, door),
    ):
        put(door, 1, count=30)
        until(publisher, lambda s: s.sent + s.too_large == 1, "the decision")
        assert (publisher.stats().sent, publisher.stats().connects) == (room, 1)
