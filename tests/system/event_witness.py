"""What tests of events need: a device to kill, and a subscriber whose session the broker keeps."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.system.broker import WAIT_S, Broker, wait_until
from tests.system.paho_user import PahoUser

PERSISTENT = ("autosave_on_changes true", "max_queued_messages 0", "max_inflight_messages 0")
"""Lines of mosquitto.conf: with `persistence` a session is on disk, and loses nothing while its client is away."""


class KillableDevice:
    """A program that puts events in a process, and which of them were acknowledged.

    Args:
        port: of the broker.
        folder: of its outbox.
        rate: events a second.
        before: a command that runs it, such as `strace`, and ends with it.
        program: a module that says what `event_device` says.
    """

    def __init__(
        self,
        port: int,
        folder: Path,
        rate: float = 200.0,
        before: Sequence[str] = (),
        program: str = "tests.system.event_device",
    ) -> None:
        self._command = [*before, sys.executable, "-m", program, str(port), str(folder)]
        self._rate = rate
        self.acknowledged: set[int] = set()
        self.starts = 0
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()

    def start(self, rate: float | None = None) -> None:
        """Start it, perhaps at another rate, and wait until its first event is acknowledged."""
        self.starts += 1
        before = len(self.acknowledged)
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [*self._command, str(rate or self._rate)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,))
        self._reader.start()
        wait_until(lambda: len(self.acknowledged) > before, "the first acknowledged event")

    def kill(self) -> None:
        """End it as a power cut would; what it had said before counts."""
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
    """A subscriber to events with a session that outlives connections; counts each event by (device, camera, seq).

    Attributes:
        doubles: that came again, and not because the broker itself was not sure.
    """

    def __init__(self, broker: Broker) -> None:
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self.contents: dict[tuple[str, str, int], bytes] = {}
        self.order: list[int] = []
        self.conflicts: list[tuple[str, str, int]] = []
        self.subscriptions = self.doubles = 0
        self.lost_sessions = -1  # the first connection finds none
        session: Any = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id="witness", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect(broker.host, broker.port, keepalive=5, clean_start=False, properties=session)
        self._client.loop_start()
        wait_until(lambda: self.subscriptions > 0, "the subscription")

    @property
    def numbers(self) -> set[int]:
        """Of the events that came."""
        return {seq for _, _, seq in list(self.seen)}

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        wait_until(condition, what)

    def _on_connect(self, client: mqtt.Client, _data: object, flags: mqtt.ConnectFlags, *_: object) -> None:
        self.lost_sessions += not flags.session_present
        client.subscribe("edge/v1/+/+/event/#", qos=1)

    def _on_subscribe(self, *_: object) -> None:
        self.subscriptions += 1

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
        time.sleep(rng.uniform(0.5, 3.0))
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
