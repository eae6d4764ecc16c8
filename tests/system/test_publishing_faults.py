"""Results and events through every fault of a connection: it is said with what to do, and mended without a restart.

Faults of the network and of the broker's process are in test_event_network and test_event_kills, of disks in
test_event_disks, of clocks in test_publishing_clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import pytest

from edge_sdk.publishing import State
from tests.support.broker import WAIT_S, Broker, Subscriber, wait_until
from tests.support.faults import FAULTS, Fault
from tests.support.outboxes import outbox_at, payload
from tests.support.subscribers import numbers, publishing_to, put, until

pytestmark = pytest.mark.system


@pytest.mark.parametrize("fault_in", FAULTS, ids=lambda fault: fault.__name__)
def test_results_and_events_wait_for_the_end_of_a_fault(
    tmp_path: Path, fault_in: Callable[[Path], AbstractContextManager[Fault]]
) -> None:
    said: list[tuple[State, str]] = []
    with outbox_at(tmp_path / "events.sqlite") as events:
        first = events.put("edge/v1/default/pi/event/door", "door", payload)
        assert events.wait_committed(WAIT_S)  # the file is open: what is missing is the broker
        with (
            fault_in(tmp_path) as fault,
            publishing_to(
                fault.broker, qos=1, event_outbox=events, on_state=lambda *s: said.append(s), **fault.reach
            ) as (
                publisher,
                door,
            ),
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


@pytest.mark.parametrize("kind", ["event", "result"])
def test_a_broker_that_hangs_up_at_a_message_is_given_the_others(
    tmp_path: Path, kind: Literal["event", "result"]
) -> None:
    """Mosquitto does with MQTT 3.1.1: there it cannot say that a message is too large."""
    doubts: list[str] = []
    troubles: list[tuple[str, str]] = []
    with (
        outbox_at(tmp_path / "events.sqlite", said=troubles) as events,
        Broker(tmp_path, config=["max_packet_size 3000"]) as broker,
        Subscriber(broker) as subscriber,
        publishing_to(broker, qos=1, protocol="3.1.1", event_outbox=events, on_doubt=doubts.append) as (
            publisher,
            door,
        ),
    ):
        door.put_event(payload)
        if kind == "event":
            door.put_event(lambda seq: payload(seq, 4000))
        else:
            put(door, 1, count=100)
        door.put_event(payload)
        put(door, 2)
        until(publisher, lambda s: s.events.delivered == 2 and s.acknowledged == 1, "the others")
        assert set(numbers(subscriber)) == {2}
        stats = publisher.stats()
        assert (stats.events.lost.quarantine, stats.rejected) == ((1, 0) if kind == "event" else (0, 1))
        [line] = [line for name, line in troubles if name == "events_refused" and line] + doubts
        assert "it ended the connection each time it got one of" in line
        assert "raise its limit of a message (max_packet_size, message_size_limit), or have its ACL let" in line
        # Mended where it was: the same again arrives.
        config = tmp_path / "mosquitto.conf"
        config.write_text(config.read_text().replace("max_packet_size 3000", "max_packet_size 300000"))
        broker.restart()
        if kind == "event":
            door.put_event(lambda seq: payload(seq, 4000))
        else:
            put(door, 3, count=100)
        until(publisher, lambda s: s.events.delivered + s.acknowledged >= 4, "it, now")
