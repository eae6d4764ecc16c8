"""What events cost that lose nothing.

Run as `python -m benchmarks.experiments.events put|drain|kills|kills-forgetful|frozen [SECONDS]`.

put: microseconds of one `put` into the outbox, at a camera's pace and as fast as it goes.
drain: events a second after an outage, beside paho alone with the same window; rounds alternate.
kills: 60 s at 200 events a second while broker and device are killed at random.
kills-forgetful: the same with a Mosquitto that saves as seldom as it does by itself, every half an hour.
frozen: the serial time of a frame, of a loop with a small detector, with a broker that is frozen for so long, 3 s by
default, between two runs with one that is not.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.frame import Result
from edge_sdk.core.threads import Backoff
from edge_sdk.model import Model
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.client import WINDOW
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from edge_sdk.sources.opening import open_source
from tests.support.broker import Broker, wait_until
from tests.support.bundles import build_cell_detector
from tests.support.event_device import encoded
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import PERSISTENT, KillableDevice, Witness, kill_at_random

_EVENTS = 10_000
_FROZEN_KEEPALIVE_S = 2  # a silent broker is given up after twice that, so that long freezes have connections in them
_ROUNDS = 5
_FROZEN_ROUNDS = 12  # of 3 s; of longer ones fewer, that take as long together
_FORGETFUL = ("autosave_interval 1800", *(line for line in PERSISTENT if not line.startswith("autosave")))


def put(folder: Path) -> None:
    """The outbox alone, then with a broker that takes what comes."""
    for pace_s in (0.0, 0.005):
        spent = []
        outbox = EventOutbox(OutboxSettings(), folder / "put.sqlite", "boot")
        for _ in range(_EVENTS if not pace_s else 2000):
            begun = time.perf_counter_ns()
            outbox.put("edge/v1/default/pi/event/door", "door", _encoded)
            spent.append((time.perf_counter_ns() - begun) / 1000)
            if pace_s:
                time.sleep(pace_s)
        outbox.close()
        print(f"put, {f'every {pace_s * 1000:.0f} ms' if pace_s else 'one after the other'}: {_spread(spent)} us")
        (folder / "put.sqlite").unlink()


def drain(folder: Path) -> None:
    """After an outage."""
    ratios = []
    with Broker(folder) as broker:
        for _ in range(_ROUNDS):
            bare, ours = _bare_rate(broker), _outbox_rate(broker, folder)
            ratios.append(ours / bare)
            print(f"paho alone {bare:.0f}/s, from disk {ours:.0f}/s, ratio {ratios[-1]:.2f}")
    print(f"drain: median ratio {statistics.median(ratios):.2f} of paho alone, window {WINDOW}")


def kills(folder: Path, seconds: float = 60.0, config: Sequence[str] = PERSISTENT) -> None:
    """What was acknowledged and did not arrive."""
    seed = random.randrange(2**32)
    print(f"kills: seed {seed}, mosquitto with {', '.join(config)}")
    with Broker(folder, persistence=True, config=config) as broker, Witness(broker) as witness:
        device = KillableDevice(broker.port, folder / "outbox")
        device.start()
        killed = kill_at_random(broker, device, witness, seconds, seed)
        device.kill()
        device.start(rate=0.1)  # it brings the rest
        acknowledged = set(device.acknowledged)
        deadline = time.monotonic() + 120
        while acknowledged - witness.numbers and time.monotonic() < deadline:
            time.sleep(0.1)
        device.kill()
    lost = len(acknowledged - witness.numbers)
    print(f"kills: {seconds:.0f} s, of the broker {killed.broker}, the device {killed.device}, both {killed.both}")
    print(f"kills: {lost} of {len(acknowledged)} acknowledged events lost, {witness.doubles} came twice")
    print(f"kills: {len(witness.conflicts)} numbers with two contents, {witness.lost_sessions} sessions forgotten")


def frozen(folder: Path, seconds: float = 3.0) -> None:
    """A loop of 50 frames a second that puts results and events; short runs in turn, of each kind the median run."""
    model = Model.open(Bundle.open(build_cell_detector(folder)))
    p99: dict[str, list[float]] = {"undisturbed": [], "frozen": [], "undisturbed again": []}
    connects = []
    for _ in range(max(1, round(_FROZEN_ROUNDS * 3 / seconds))):
        for name, found in p99.items():
            turns_ms, given_up = _turns_ms(folder, model, is_frozen=name == "frozen", turns=round(seconds * 50))
            spent = sorted(turns_ms)
            connects += [given_up] if name == "frozen" else []
            found.append(spent[int(len(spent) * 0.99)])
    typical = {name: statistics.median(found) for name, found in p99.items()}
    for name, found in p99.items():
        print(
            f"{name}: p99 of a turn {typical[name]:.1f} ms, of {len(found)} runs {min(found):.1f} to {max(found):.1f}"
        )
    print(f"frozen for {seconds:g} s: the connection was given up meanwhile in {sum(connects)} of {len(connects)} runs")
    others = (typical["undisturbed"], typical["undisturbed again"])
    print(f"frozen: {typical['frozen'] / min(others):.2f} and {typical['frozen'] / max(others):.2f} of theirs")


def _turns_ms(folder: Path, model: Model, *, is_frozen: bool, turns: int) -> tuple[list[float], bool]:
    """What frames take, from preparing to the outbox, with an event each; and whether the connection was given up."""
    states: list[str] = []
    shutil.rmtree(folder / "loop", ignore_errors=True)
    (folder / "loop").mkdir()
    with Broker(folder / "loop") as broker, closing(open_source("pattern:128x128@50")) as source:
        path = folder / "loop" / "events.sqlite"
        publisher, _ = _publisher(broker, path, _FROZEN_KEEPALIVE_S, lambda state, _: states.append(state))
        loop = model.loop(source, _Door(publisher.stream("door", make_encoder())))
        wait_until(lambda: publisher.stats().state == "online", "the connection")
        if is_frozen:
            broker.freeze()
        spent = [loop.last_serial_ns / 1e6 for _ in islice(loop, turns)]
        given_up = "connecting" in states
        broker.thaw()
        publisher.close(1.0)
    return spent, given_up


class _Door:
    """Takes the loop's results, and makes an event of each."""

    def __init__(self, stream: MqttStream) -> None:
        self._stream = stream

    def put(self, result: Result) -> None:
        self._stream.put(result)
        self._stream.put_event(_encoded)


def _publisher(
    broker: Broker,
    path: Path,
    keepalive_s: int = 60,
    on_state: Callable[[ConnectionState, str], None] = lambda _state, _detail: None,
) -> tuple[MqttPublisher, EventOutbox]:
    outbox = EventOutbox(OutboxSettings(), path, IDENTITY.boot_id)
    settings = MqttSettings(host=broker.host, port=broker.port, device="pi", keepalive_s=keepalive_s)
    publisher = MqttPublisher(settings, IDENTITY, on_state=on_state, events=outbox, backoff=Backoff(0.02, 0.1))
    return publisher, outbox


def _outbox_rate(broker: Broker, folder: Path) -> float:
    path = folder / "drain.sqlite"
    path.unlink(missing_ok=True)
    outbox = EventOutbox(OutboxSettings(), path, IDENTITY.boot_id)
    for _ in range(_EVENTS):
        outbox.put("edge/v1/default/pi/event/door", "door", _encoded)
    outbox.close()
    begun = time.perf_counter()
    publisher, outbox = _publisher(broker, path)
    _wait(lambda: outbox.stats().delivered == _EVENTS)
    spent = time.perf_counter() - begun
    publisher.close(1.0)
    return _EVENTS / spent


def _bare_rate(broker: Broker) -> float:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(WINDOW)
    client.max_queued_messages_set(0)
    answered = threading.Semaphore(0)
    client.on_publish = lambda *_: answered.release()
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    begun = time.perf_counter()
    client.connect(broker.host, broker.port)
    client.loop_start()
    connected.wait()
    for number in range(_EVENTS):
        client.publish("edge/v1/default/pi/event/door", _encoded(number), 1)
    for _ in range(_EVENTS):
        answered.acquire()
    spent = time.perf_counter() - begun
    client.disconnect()
    client.loop_stop()
    return _EVENTS / spent


def _encoded(seq: int) -> bytes:
    return encoded(IDENTITY, seq)


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"p50 {p50:.1f}, p99 {p99:.1f}, largest {ordered[-1]:.0f}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        forgetful = partial(kills, config=_FORGETFUL)
        verbs = {"put": put, "drain": drain, "kills": kills, "kills-forgetful": forgetful, "frozen": frozen}
        verbs[sys.argv[1]](Path(work), *map(float, sys.argv[2:]))
