"""`Publisher` at a real broker: what is heard of it, and that kills cost no event."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.protocols import Event
from edge_sdk.publisher import Publisher
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.results import make_detections, make_frame
from tests.support.subscribers import PERSISTENT, KillableDevice, Witness, documents, statuses

pytestmark = pytest.mark.system

_PROGRAM = "library"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    folder = tmp_path / "outbox"
    folder.mkdir()
    return folder


def test_it_says_what_the_daemon_says(broker: Broker, outbox: Path, cell_bundle: Path) -> None:
    bundle = Bundle.open(cell_bundle)
    with Subscriber(broker) as subscriber:
        with Publisher.open(broker.url, device="gate-1", site="north", outbox=outbox, cameras={"gate": bundle}) as ours:
            ours.put(make_detections(2, make_frame(7, "gate")))
            number = ours.put_event(Event(kind="appeared", camera="gate", label="red"))
            ours.put(Event(kind="door opened", camera="door", detail={"badge": 12}))
            subscriber.wait_for(lambda _: len(subscriber.messages("event/door")) == 1, "the events")
            subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) == 1, "the result")
            subscriber.wait_for(
                lambda _: any(d.get("cameras") for d in documents(subscriber.messages("/status"))), "it"
            )
            assert ours.stats().state == "online"
        wait_until(lambda: statuses(subscriber)[-1][:2] == ("offline", "shutdown"), "the goodbye")
        messages = subscriber.messages()
    own = "edge/v1/north/gate-1"
    assert {m.topic for m in messages} == {
        f"{own}/{end}" for end in ("status", "state", "result/gate", "event/gate", "event/door")
    }
    [result], [event], [opened] = (
        documents([m for m in messages if m.topic.endswith(end)]) for end in ("result/gate", "event/gate", "event/door")
    )
    model = {"name": bundle.manifest.name, "version": bundle.manifest.version, "sha256": bundle.digest}
    assert (result["seq"], result["camera"], len(result["detections"])) == (7, "gate", 2)
    assert result["model"] == {**model, "variant": bundle.manifest.variants[0].name}
    assert (event["seq"], event["label"], event["model"]) == (number, "red", model)
    assert (opened["kind"], opened["detail"], "model" in opened) == ("door opened", {"badge": 12}, False)
    online = [d for d in documents([m for m in messages if m.topic.endswith("/status")]) if d["status"] == "online"]
    assert online[-1]["cameras"] == {"gate": model}
    assert len({d["run_id"] for d in (result, event, opened, *online)}) == 1


@pytest.mark.smoke
def test_kills_of_broker_and_program_lose_nothing_that_was_acknowledged(tmp_path: Path, outbox: Path) -> None:
    rng = random.Random(5)
    with Broker(tmp_path, persistence=True, config=PERSISTENT) as broker, Witness(broker) as witness:
        device = KillableDevice(broker.port, outbox, program=_PROGRAM)
        device.start()
        for _ in range(2):
            before = witness.subscriptions
            broker.kill()
            reached = len(device.acknowledged)
            wait_until(lambda: len(device.acknowledged) > reached + 20, "events without a broker")  # noqa: B023
            device.kill()
            device.start()
            time.sleep(rng.uniform(0.0, 0.3))
            device.kill()
            broker.start()
            wait_until(lambda: witness.subscriptions > before, "the witness to be back")  # noqa: B023
            device.start()
        device.kill()
        device.start(rate=1.0)  # it brings what the ones before had on disk
        acknowledged = set(device.acknowledged)
        wait_until(lambda: acknowledged <= witness.numbers, "every acknowledged event")
        device.kill()
        assert len(acknowledged) > 40
        assert not witness.conflicts
