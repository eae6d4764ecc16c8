"""A fleet of simulated devices in several processes, all of which can be killed at once, and what they said.

A process is `python -m benchmarks.experiments.simulated_fleet JSON`, of `Orders`; each line of its standard output is
a `Said` in JSON. SIGTERM ends all its devices.
"""

from __future__ import annotations

import heapq
import importlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import paho.mqtt.client as mqtt

from edge_sdk.core.frame import Detections, Frame
from edge_sdk.core.machine import share_one_heap
from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import stopping_on_signals
from edge_sdk.messages.encoder import EventEncoder
from edge_sdk.messages.schema import Identity
from edge_sdk.messages.schema import TelemetryMessage as Telemetry
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.settings import MqttSettings
from tests.support.broker import WAIT_S, Broker, PahoUser
from tests.support.results import make_detections, make_encoder

_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Held(msgspec.Struct, frozen=True):
    """What a process holds and has used, as the kernel tells it."""

    memory_mb: float
    files: int
    threads: int
    cpu_s: float


def held_by(pid: int) -> Held:
    """Read it of a process."""
    proc = Path(f"/proc/{pid}")
    pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    times = (proc / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()  # a name may hold spaces
    files, threads = (sum(1 for _ in (proc / name).iterdir()) for name in ("fd", "task"))
    return Held(pages * _PAGE_MB, files, threads, (int(times[11]) + int(times[12])) * _TICK_S)


SITE, CAMERA = "default", "door"
_TURN_S = 0.05
_TELEMETRY_S = 10.0


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Which devices, and what they do."""

    port: int
    folder: str
    names: list[str]
    results_per_s: float
    event_every_s: float
    will_delay_s: int
    ca_file: str = ""


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a process."""

    what: Literal["base", "held", "state", "events", "put"]
    device: str = ""
    at: float = 0.0
    state: str = ""
    detail: str = ""
    first: int = 0
    last: int = 0
    memory_mb: float = 0.0


class _Device:
    def __init__(self, name: str, orders: Orders) -> None:
        # A boot of its own each time: what kills a whole fleet is a power cut.
        self.name, self.identity = name, Identity(name, boot_id=str(uuid.uuid4()))
        outbox = OutboxSettings(folder=Path(orders.folder))
        self._events = EventOutbox(outbox, outbox.path_of(SITE, name), self.identity.boot_id)
        settings = MqttSettings(
            host="localhost",
            port=orders.port,
            tls=bool(orders.ca_file),
            ca_file=Path(orders.ca_file) if orders.ca_file else None,
            device=name,
            will_delay_s=orders.will_delay_s,
        )
        self.publisher = MqttPublisher(settings, self.identity, on_state=self._changed, events=self._events)
        encoder = make_encoder(self.identity)
        self._stream = self.publisher.stream(CAMERA, encoder)
        self._encoder = EventEncoder.beside(encoder, CAMERA)
        self._picture = make_detections(5)
        self._results = 0
        self._following: int | None = None
        self._latest: int | None = None

    def put_result(self) -> None:
        seen = self._picture
        frame = Frame.of(seen.frame.image, seq=self._results, camera=CAMERA)
        self._stream.put(Detections(frame, seen.inference_ns, seen.xyxy, seen.confidence, seen.class_id))
        self._results += 1

    def put_event(self) -> None:
        event = Event(kind="appeared", label="cat", confidence=0.9)
        number = self._stream.put_event(lambda seq: self._encoder.encode(event, seq))
        self._following, self._latest = self._following or number, number

    def put_telemetry(self) -> None:
        """How the process does, which is that of many devices here."""
        held = held_by(os.getpid())
        self.publisher.telemetry(
            Telemetry(
                **msgspec.structs.asdict(self.identity),
                at=Event(kind="now").at,
                memory_rss_mb=held.memory_mb,
                open_files=held.files,
            )
        )

    def say_committed(self) -> None:
        if self._following is not None and self._latest is not None and self._events.wait_committed(0.0):
            _say(Said("events", self.name, first=self._following, last=self._latest))
            self._following = None

    def close(self) -> None:
        self._stream.close()
        self.publisher.close(30.0)
        _say(Said("put", self.name, last=self._results, detail=self.identity.run_id))

    def _changed(self, state: str, detail: str) -> None:
        _say(Said("state", self.name, time.monotonic(), state, detail))


def main(orders: Orders) -> None:
    """Be one process of a fleet, until SIGTERM."""
    share_one_heap()
    importlib.import_module("edge_sdk.publishing.client")
    _say_held("base")
    with stopping_on_signals() as stop:
        devices = [_Device(name, orders) for name in orders.names]
        began = time.monotonic()
        due: list[tuple[float, int, str]] = []
        for number in range(len(devices)):
            share = number / len(devices)  # of a period: devices do not act in step
            due.append((began + share / orders.results_per_s, number, "result"))
            due.append((began + share * orders.event_every_s, number, "event"))
            due.append((began + share * _TELEMETRY_S, number, "telemetry"))
        heapq.heapify(due)
        every_s = {
            "result": 1 / orders.results_per_s,
            "event": orders.event_every_s,
            "telemetry": _TELEMETRY_S,
        }
        while not stop.is_asked():
            at, number, kind = due[0]
            wait_s = at - time.monotonic()
            if wait_s > 0:
                time.sleep(min(wait_s, _TURN_S))
            else:
                device = devices[number]
                {"result": device.put_result, "event": device.put_event, "telemetry": device.put_telemetry}[kind]()
                heapq.heapreplace(due, (at + every_s[kind], number, kind))
            for device in devices:
                device.say_committed()
        _say_held("held")
        for device in devices:
            device.close()


def _say_held(what: Literal["base", "held"]) -> None:
    held = held_by(os.getpid())
    _say(Said(what, last=held.files, memory_mb=held.memory_mb))


_one_at_a_time = threading.Lock()


def _say(said: Said) -> None:
    with _one_at_a_time:
        os.write(sys.stdout.fileno(), msgspec.json.encode(said) + b"\n")


# All of them, seen from the test.

_ROOT = Path(__file__).parents[2]


class SimulatedFleet:
    """Processes with as many devices each; a context, after which they are gone."""

    def __init__(
        self,
        port: int,
        folder: Path,
        *,
        processes: int,
        devices_each: int,
        results_per_s: float = 5.0,
        event_every_s: float = 0.5,
        will_delay_s: int = 1,
        ca_file: str = "",
    ) -> None:
        self.names = [f"dev-{number:03}" for number in range(processes * devices_each)]
        self._orders = [
            Orders(
                port=port,
                folder=str(folder),
                names=self.names[first : first + devices_each],
                results_per_s=results_per_s,
                event_every_s=event_every_s,
                will_delay_s=will_delay_s,
                ca_file=ca_file,
            )
            for first in range(0, len(self.names), devices_each)
        ]
        self.acknowledged: dict[str, set[int]] = defaultdict(set)
        self.runs: dict[str, list[Said]] = {}
        self.put: dict[str, int] = {}
        self.base: list[Said] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> SimulatedFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start all processes."""
        self.runs = {name: [] for name in self.names}
        self.base = []
        for orders in self._orders:
            command = [
                sys.executable,
                "-m",
                "benchmarks.experiments.simulated_fleet",
                msgspec.json.encode(orders).decode(),
            ]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=_ROOT)
            reader = threading.Thread(target=self._read, args=(process,))
            reader.start()
            self._processes.append(process)
            self._readers.append(reader)

    def kill(self) -> None:
        """End all as a power cut would; what they had said before counts."""
        for process in self._processes:
            process.kill()
        self._reap()

    def stop(self) -> None:
        """Have all end and end."""
        for process in self._processes:
            process.terminate()
        self._reap()

    def held(self) -> list[Held]:
        """Return what each process holds."""
        return [held_by(process.pid) for process in self._processes]

    def online_since(self, moment: float) -> dict[str, float]:
        """Of the devices that are online, when they came to be so, where that was after a monotonic moment."""
        latest = {name: said[-1] for name, said in self.runs.items() if said}
        return {name: said.at for name, said in latest.items() if said.state == "online" and said.at > moment}

    def _reap(self) -> None:
        for process in self._processes:
            process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        self._processes, self._readers = [], []

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.endswith(b"\n"):  # the last one of a killed process may be torn
                    self._take(msgspec.json.decode(line, type=Said))

    def _take(self, said: Said) -> None:
        if said.what == "events":
            self.acknowledged[said.device].update(range(said.first, said.last + 1))
        elif said.what == "state":
            self.runs[said.device].append(said)
        elif said.what == "put":
            self.put[said.detail] = said.last
        else:
            self.base.append(said)


# A subscriber to a whole fleet that keeps count, and shares no code with the publisher.


class Status(NamedTuple):
    """One status as it came; `at` is in monotonic seconds."""

    at: float
    status: str
    reason: str
    boot_id: str
    run_id: str
    retain: bool


class Results:
    """How many results of one run came, and their highest number."""

    def __init__(self) -> None:
        self.count, self.highest = 0, -1

    @property
    def missing(self) -> int:
        """Numbers that did not come, up to the highest that did."""
        return self.highest + 1 - self.count


class _Document(msgspec.Struct):
    run_id: str
    boot_id: str = ""
    seq: int = 0
    captured_at: datetime | None = None
    status: str = ""
    reason: str = ""


class FleetWitness(PahoUser):
    """One subscriber with a session that outlives its connections; the broker's configuration is its own."""

    def __init__(self, broker: Broker, *, username: str | None = None, password: str | None = None) -> None:
        self.kinds: Counter[str] = Counter()
        self.results: dict[tuple[str, str], Results] = defaultdict(Results)
        self.delays_ms: list[float] = []
        self.events: Counter[tuple[str, int]] = Counter()
        self.conflicts: list[tuple[str, int]] = []
        self.statuses: dict[str, list[Status]] = defaultdict(list)
        self._contents: dict[tuple[str, int], bytes] = {}
        self._decode = msgspec.json.Decoder(_Document).decode
        super().__init__(broker, "edge/v1/#", username=username, password=password, session="witness")

    def latest(self) -> dict[str, Status]:
        """Return the newest status of each device."""
        return {device: statuses[-1] for device, statuses in list(self.statuses.items())}

    def count(self, status: str) -> int:
        """Count devices whose newest status is this one."""
        return sum(said.status == status for said in self.latest().values())

    def since(self, moment: float, status: str) -> list[tuple[str, Status]]:
        """What came after a moment, and not because it was retained."""
        return [
            (device, said)
            for device, statuses in list(self.statuses.items())
            for said in statuses
            if said.at > moment and said.status == status and not said.retain
        ]

    def lacking(self, acknowledged: dict[str, set[int]]) -> list[tuple[str, int]]:
        """Those of these that did not come."""
        return [
            (device, seq)
            for device, numbers in list(acknowledged.items())
            for seq in sorted(numbers)
            if (device, seq) not in self.events
        ]

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        now, at = time.time(), time.monotonic()
        _, _, _, device, kind, *_ = message.topic.split("/")
        self.kinds[kind] += 1
        if kind not in ("result", "event", "status"):
            return
        said = self._decode(message.payload)
        if kind == "result":
            results = self.results[device, said.run_id]
            results.count += 1
            results.highest = max(results.highest, said.seq)
            if said.captured_at is not None:
                self.delays_ms.append((now - said.captured_at.timestamp()) * 1000)
        elif kind == "event":
            key = (device, said.seq)
            if self._contents.setdefault(key, message.payload) != message.payload:
                self.conflicts.append(key)
            self.events[key] += 1
        else:
            self.statuses[device].append(
                Status(at, said.status, said.reason, said.boot_id, said.run_id, message.retain)
            )


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Orders))
