"""A fleet of simulated devices in several processes, all of which can be killed at once, and what they said."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

import msgspec

from tests.support.broker import WAIT_S
from tests.support.device import Held, held_by
from tests.support.simulated_devices import Orders, Said

_ROOT = Path(__file__).parents[2]


class SimulatedFleet:
    """Processes with as many devices each; a context, after which they are gone.

    Args:
        port: of the broker.
        folder: for the devices' outboxes.
        processes: how many.
        devices_each: in every one.
        results_per_s, event_every_s, will_delay_s, ca_file: see `Orders`.

    Attributes:
        names: of all devices.
        acknowledged: of each the numbers of its events that were on disk, of all runs.
        runs: of each device's latest run, its publisher's states: when, which and why.
        put: results of runs that ended in order, by run id.
        base: memory in MiB and descriptors of the processes before they made their devices.
    """

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

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start all at once, without waiting."""
        self.runs = {name: [] for name in self.names}
        self.base = []
        for orders in self._orders:
            command = [sys.executable, "-m", "tests.support.simulated_devices", msgspec.json.encode(orders).decode()]
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
        """Have all say goodbye, and wait for their end."""
        for process in self._processes:
            process.terminate()
        self._reap()

    def held(self) -> list[Held]:
        """What each process holds."""
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
