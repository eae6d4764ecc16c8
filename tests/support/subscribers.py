"""Subscribers and requesters that share no code with the publisher, and what they saw."""

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import paho.mqtt.client as mqtt

from edge_sdk.core.threads import Backoff
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.client import MqttConnection
from edge_sdk.publishing.publisher import MqttPublisher, PublisherStats
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings, Secret
from tests.support.broker import WAIT_S, Broker, PahoUser, Received, Subscriber, wait_until
from tests.support.connections import Door
from tests.support.results import IDENTITY, make_encoder

# What tests of events need: a device to kill, and a subscriber whose session the broker keeps.

PERSISTENT = ("autosave_on_changes true", "max_queued_messages 0", "max_inflight_messages 0")
"""Lines of mosquitto.conf: with `persistence` a session is on disk, and loses nothing while its client is away."""


class KillableDevice:
    """A program that puts events in a process, and which of them were acknowledged."""

    def __init__(self, port: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)  # `Publisher.open` wants a folder that is there
        self._command = [sys.executable, "-m", "tests.support.event_device", str(port), str(folder)]
        self.acknowledged: set[int] = set()
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()

    def start(self, rate: float = 200.0) -> None:
        before = len(self.acknowledged)
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen([*self._command, str(rate)], stdout=subprocess.PIPE, text=True, cwd=root)
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()
        wait_until(lambda: len(self.acknowledged) > before, "the first acknowledged event")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        following = 0
        with process.stdout:
            for line in process.stdout:
                word, _, number = line.strip().partition(" ")
                if word == "first":
                    following = int(number)
                elif number.isdecimal():
                    self.acknowledged.update(range(following, int(number) + 1))
                    following = int(number) + 1


class Witness(PahoUser):
    """A subscriber to events with a session that outlives connections; counts each event by (device, camera, seq)."""

    def __init__(self, broker: Broker, **login: str) -> None:
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.contents: dict[tuple[str, str, int], bytes] = {}
        self.order: list[int] = []
        self.conflicts: list[tuple[str, str, int]] = []
        self.doubles = 0
        self.lost_sessions = -1  # the first connection finds none
        super().__init__(broker, "edge/v1/+/+/event/#", session="witness", keepalive_s=5, **login)

    @property
    def numbers(self) -> set[int]:
        return {seq for _, _, seq in list(self.seen)}

    def _on_connect(self, client: mqtt.Client, data: object, flags: mqtt.ConnectFlags, *more: object) -> None:
        self.lost_sessions += not flags.session_present
        super()._on_connect(client, data, flags, *more)

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        document = msgspec.json.decode(message.payload)
        key = (document["device"], document["camera"], document["seq"])
        if self.contents.setdefault(key, message.payload) != message.payload:
            self.conflicts.append(key)
        self.seen[key] += 1
        self.doubles += self.seen[key] > 1 and not message.dup
        self.order.append(document["seq"])


class Kills(NamedTuple):
    """How often each alone was killed, and the device while the broker was away."""

    broker: int
    device: int
    both: int


def kill_at_random(broker: Broker, device: KillableDevice, witness: Witness, seconds: float, seed: int) -> Kills:
    """SIGKILL for the broker, a device that runs, or both, at random moments, for so long; each once at least."""
    rng, ends = random.Random(seed), time.monotonic() + seconds
    killed: Counter[str] = Counter()
    victims = rng.sample(Kills._fields, len(Kills._fields))
    while victims or time.monotonic() < ends:
        time.sleep(rng.uniform(0.5, 3.0 if seconds else 1.0))
        victim = victims.pop() if victims else rng.choice(Kills._fields)
        killed[victim] += 1
        before = witness.subscriptions
        if victim != "device":
            broker.kill()
        if victim != "broker":
            time.sleep(rng.uniform(0.0, 0.3))  # while the broker is away, where it is
            device.kill()
            device.start()
        if victim != "device":
            time.sleep(rng.uniform(0.1, 1.0))
            broker.start()
            wait_until(lambda before=before: witness.subscriptions > before, "the witness to be back")  # type: ignore[misc]
    return Kills(**killed)


# Publishers to a real broker, and what a subscriber saw of them.

QOS: tuple[Literal[0, 1], ...] = (0, 1)
RESULT, STATUS, STATE = "/result/door", "/status", "/state"


@contextmanager
def publishing_to(
    broker: Broker, *, qos: Literal[0, 1] = 0, user: str = "", password: str | None = None,
    on_state: Callable[[ConnectionState, str], None] = lambda _state, _detail: None,
    on_warning: Callable[[str], None] = lambda _line: None, encoder: ResultEncoder | None = None,
    links: list[MqttConnection] | None = None, event_outbox: EventOutbox | None = None, **changes: Any,
) -> Iterator[Door]:  # fmt: skip
    who = {"host": broker.host, "port": broker.port, **changes}
    secret = None if password is None else Secret(password)
    settings = MqttSettings(device="pi", qos=qos, username=user or None, password=secret, **who)

    def make_link() -> MqttConnection:
        assert links is not None
        links.append(MqttConnection(settings, b"{}"))
        return links[-1]

    publisher = MqttPublisher(
        settings, IDENTITY, on_state=on_state, on_warning=on_warning, versions={"edge_sdk": "0.0"}, events=event_outbox,
        backoff=Backoff(0.05, 0.2), make_link=None if links is None else make_link,
    )  # fmt: skip
    try:
        yield Door(publisher, publisher.stream("door", encoder or make_encoder()))
    finally:
        publisher.close(timeout_s=WAIT_S)


def until(publisher: MqttPublisher, condition: Callable[[PublisherStats], bool], what: str) -> None:
    wait_until(lambda: condition(publisher.stats()), lambda: f"{what}; {publisher.stats()}")


def wait_online(publisher: MqttPublisher) -> None:
    until(publisher, lambda s: s.state == "online", "the connection")


def documents(messages: list[Received]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(m.payload) for m in messages]


def numbers(subscriber: Subscriber) -> list[int]:
    return [d["seq"] for d in documents(subscriber.messages(RESULT))]


def states(subscriber: Subscriber) -> list[dict[str, Any]]:
    return [d["cameras"] for d in documents(subscriber.messages(STATE))]


def latest_state(subscriber: Subscriber, camera: str = "door") -> dict[str, Any]:
    """One camera's part of the latest state; empty where there is none."""
    camera_state: dict[str, Any] = [{}, *states(subscriber)][-1].get(camera, {})
    return camera_state


def warnings(subscriber: Subscriber) -> dict[str, str]:
    found: dict[str, str] = [{}, *documents(subscriber.messages(STATE))][-1].get("warnings", {})
    return found


def results(subscriber: Subscriber) -> list[dict[str, Any]]:
    return documents([message for message in subscriber.messages() if "/result/" in message.topic])


def running_in(subscriber: Subscriber, camera: str) -> list[dict[str, Any]]:
    """The models of one camera that ran, without repetitions, because the state also comes for other reasons."""
    said = [cameras[camera]["running"] for cameras in states(subscriber) if "running" in cameras.get(camera, {})]
    return [running for running, _ in itertools.groupby(said)]


def statuses(subscriber: Subscriber) -> list[tuple[str, str | None, bool]]:
    messages = subscriber.messages(STATUS)
    return [(d["status"], d.get("reason"), m.retain) for d, m in zip(documents(messages), messages, strict=True)]
