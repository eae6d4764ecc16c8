"""A fleet at one broker.

Run as `python -m benchmarks.experiments.fleet [--processes 8] [--devices-each 25] [--seconds 60] [--tls]`.

Each device is a publisher with a client id, status, state, telemetry, results of one camera and events on disk of its
own; one subscriber to all keeps count. In turn: all start; they publish; all are killed, and start again; the broker
is restarted, soon and late; it is frozen while all are killed and start; all end. Delays and processor time
are of one machine that is broker, devices and subscriber in one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from benchmarks.experiments.simulated_fleet import FleetWitness, Held, SimulatedFleet, held_by
from edge_sdk.core.machine import CpuTime
from tests.support.broker import Broker, TlsBroker, wait_until

WILL_DELAY_S = 5
"""The product's own."""

_PATIENCE_S = 180.0
_SHORT_S, _LONG_S = 1.0, 30.0  # that a broker is away
_FROZEN_S = 3.0
_SETTLING_S = 5.0
_Row = tuple[str, str]


@click.command()
@click.option("--processes", default=8, show_default=True, help="All are killed at once.")
@click.option("--devices-each", default=25, show_default=True, help="Devices in each.")
@click.option("--seconds", default=60.0, show_default=True, help="How long it publishes undisturbed.")
@click.option("--results-per-s", default=1.5, show_default=True, help="Of each device, five objects each.")
@click.option("--event-every-s", default=5.0, show_default=True, help="Of each device.")
@click.option("--tls", is_flag=True, help="Devices connect encrypted.")
@click.option("--broker-line", "lines", multiple=True, help="Of mosquitto.conf, such as `set_tcp_nodelay true`.")
@click.option("--only-publish", is_flag=True, help="Nobody is killed.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    processes: int,
    devices_each: int,
    seconds: float,
    results_per_s: float,
    event_every_s: float,
    tls: bool,
    lines: tuple[str, ...],
    only_publish: bool,
    json_file: Path | None,
) -> None:
    """Measure, and print what came of it."""
    rows: list[_Row] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "broker").mkdir()
        # As Mosquitto has it where it keeps things over a restart: written at its end and every 30 min.
        config = ["persistence true", f"persistence_location {folder / 'broker'}/", "autosave_interval 1800", *lines]
        place = folder / "broker"
        broker = TlsBroker(place, more=config) if tls else Broker(place, config=config)
        with (
            broker,
            FleetWitness(broker) as witness,
            SimulatedFleet(
                broker.tls_port if isinstance(broker, TlsBroker) else broker.port,
                folder / "outboxes",
                processes=processes,
                devices_each=devices_each,
                results_per_s=results_per_s,
                event_every_s=event_every_s,
                will_delay_s=WILL_DELAY_S,
                ca_file=str(broker.authority.file) if isinstance(broker, TlsBroker) else "",
            ) as fleet,
        ):
            trial = _Trial(broker, witness, fleet, rows)
            trial.start("start of all")
            trial.publish(seconds)
            if not only_publish:
                trial.kill()
                trial.start("start of all after the kill")
                trial.restart_broker(_SHORT_S)
                trial.restart_broker(_LONG_S)
                trial.freeze()
            trial.stop()
    if json_file:
        json_file.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


class _Trial:
    def __init__(self, broker: Broker, witness: FleetWitness, fleet: SimulatedFleet, rows: list[_Row]) -> None:
        self._broker, self._witness, self._fleet, self._rows = broker, witness, fleet, rows
        self._size = len(fleet.names)

    def start(self, what: str) -> None:
        """All at once."""
        began = time.monotonic()
        self._fleet.start()
        self._wait_online(began)
        # From the first that has a connection: before it there is the start of Python.
        self._say(f"{what}: online after the first, s", self._spread(began, of_first=True))
        self._say(f"{what}: the last online after, s", f"{max(self._fleet.online_since(began).values()) - began:.2f}")
        time.sleep(WILL_DELAY_S + 2)  # a will of before that came in spite of it would be here by now
        self._check_online(what, began)

    def publish(self, seconds: float) -> None:
        """Undisturbed."""
        witness, fleet = self._witness, self._fleet
        kinds, missing, first = Counter(witness.kinds), self._missing(), len(witness.delays_ms)
        began, devices, broker, cpu = time.monotonic(), fleet.held(), held_by(self._broker.pid), CpuTime.read()
        time.sleep(seconds)
        others = CpuTime.read().others_since(cpu)
        lasted, devices_after, broker_after = time.monotonic() - began, fleet.held(), held_by(self._broker.pid)
        came = witness.kinds - kinds
        delays = sorted(witness.delays_ms[first:])
        self._say("messages a second", f"{came.total() / lasted:.0f}, of it {_rates(came, lasted)}")
        self._say("results missing", f"{self._missing() - missing} of {came['result']}")
        self._say("capture to subscriber, p50, p99, largest, ms", _percentiles(delays))
        cpu_s = sum(after.cpu_s - before.cpu_s for after, before in zip(devices_after, devices, strict=True))
        broker_s = broker_after.cpu_s - broker.cpu_s
        if others is not None:
            others -= (cpu_s + broker_s) / lasted / len(os.sched_getaffinity(0))
            self._say("other programs beside all this, % of the processors", f"{100 * others:.0f}")
        self._say("CPU of a device, % of a core", f"{100 * cpu_s / lasted / self._size:.2f}")
        self._say("CPU of the broker, % of a core", f"{100 * broker_s / lasted:.1f}")
        self._say("a device: memory MiB, descriptors, threads", self._each(devices_after))
        base = fleet.base[0]
        self._say("a process before its devices: memory MiB, descriptors", f"{base.memory_mb:.0f}, {base.last}")
        self._say("broker: memory MiB, descriptors", f"{broker_after.memory_mb:.1f}, {broker_after.files}")

    def kill(self) -> None:
        """All, at once."""
        before = self._witness.latest()
        killed_at = time.monotonic()
        self._fleet.kill()
        _wait(lambda: self._witness.count("offline") == self._size, "the wills")
        time.sleep(2.0)
        wills = self._witness.since(killed_at, "offline")
        each = Counter(device for device, _ in wills)
        self._say("wills", f"{len(wills)} of {len(each)} devices, {sum(n > 1 for n in each.values())} more than once")
        right = sum(
            will.reason == "lost" and (will.boot_id, will.run_id) == (before[device].boot_id, before[device].run_id)
            for device, will in wills
        )
        self._say("wills that say `lost`, of the boot and run that were killed", str(right))
        self._say("will after the kill: first, median, last, s", _three(will.at - killed_at for _, will in wills))
        watched = subprocess.run(
            [sys.executable, "-m", "edge_sdk", "watch", "--mqtt", self._broker.url, "--duration", "4", "--quiet"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        self._say("`edge-sdk watch` then says offline (lost)", f"{watched.count(': offline (lost)')} times")

    def restart_broker(self, away_s: float) -> None:
        """Stop it, and start it later."""
        self._broker.stop()
        time.sleep(away_s)
        began = time.monotonic()  # a device may be back before `start` returns
        self._broker.start()
        self._wait_online(began)
        what = f"broker away for {away_s:.0f} s"
        self._say(f"{what}: online again, s", self._spread(began))
        time.sleep(_SETTLING_S)
        self._check_online(what, began)

    def freeze(self) -> None:
        """Events wait on disk only, everybody is killed, and starts while the broker has not noticed yet."""
        self._broker.freeze()
        time.sleep(_FROZEN_S)
        began = time.monotonic()
        self._fleet.kill()
        waiting = len(self._witness.lacking(self._fleet.acknowledged))
        self._fleet.start()
        time.sleep(_FROZEN_S)
        self._broker.thaw()
        self._wait_online(began)
        what = "killed and started while the broker is frozen"
        self._say(f"{what}: events on disk only", str(waiting))
        time.sleep(WILL_DELAY_S + 2)
        self._check_online(what, began)

    def stop(self) -> None:
        """In order."""
        began = time.monotonic()
        self._fleet.stop()
        _wait(lambda: self._witness.count("offline") == self._size, "the offline messages")
        said = self._witness.since(began, "offline")
        right = sum(status.reason == "shutdown" and status.run_id in self._fleet.put for _, status in said)
        self._say("offline messages, of the runs that ended", f"{right} of {len(said)}")
        runs = {run: results.count for (_, run), results in self._witness.results.items()}
        lost = sum(put - runs.get(run, 0) for run, put in self._fleet.put.items())
        self._say("results of the last run that did not come", f"{lost} of {sum(self._fleet.put.values())}")
        log = self._broker.log
        self._say("broker's log: took over, dropped", f"{log.count('already connected')}, {log.count('dropped')}")
        acknowledged = sum(map(len, self._fleet.acknowledged.values()))
        again = sum(count - 1 for count in self._witness.events.values())
        lost_events = len(self._witness.lacking(self._fleet.acknowledged))
        self._say("events lost, of those acknowledged; that came twice", f"{lost_events} of {acknowledged}; {again}")
        self._say("numbers of events with two contents", str(len(self._witness.conflicts)))

    def _wait_online(self, began: float) -> None:
        _wait(lambda: len(self._fleet.online_since(began)) == self._size, "all to be online")
        _wait(lambda: self._witness.count("online") == self._size, "all to say online")

    def _check_online(self, what: str, began: float) -> None:
        """What stands at the broker, and that all events arrive."""
        _wait(lambda: not self._witness.lacking(self._fleet.acknowledged), "all events")
        online = self._witness.count("online")
        lost = len(self._witness.since(began, "offline"))
        states = [said.state for run in self._fleet.runs.values() for said in run if said.at > began]
        connections = states.count("online")
        self._say(
            f"{what}: online, wills, connections, refused",
            f"{online}, {lost}, {connections}, {states.count('refused')}",
        )

    def _missing(self) -> int:
        return sum(results.missing for results in list(self._witness.results.values()))

    def _spread(self, began: float, *, of_first: bool = False) -> str:
        times = sorted(self._fleet.online_since(began).values())
        return _three(at - (times[0] if of_first else began) for at in times)

    def _each(self, held: Sequence[Held]) -> str:
        """What is there more than before the devices were made, of one."""
        memory = sum(h.memory_mb for h in held) - sum(b.memory_mb for b in self._fleet.base)
        files = sum(h.files for h in held) - sum(b.last for b in self._fleet.base)
        threads = sum(h.threads for h in held) - len(held)
        return ", ".join(f"{total / self._size:.2f}" for total in (memory, files, threads))

    def _say(self, name: str, value: str) -> None:
        self._rows.append((name, value))
        print(f"| {name} | {value} |", flush=True)


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, _PATIENCE_S)


def _rates(came: Counter[str], seconds: float) -> str:
    return ", ".join(f"{kind} {count / seconds:.1f}" for kind, count in came.most_common())


def _percentiles(ordered: Sequence[float]) -> str:
    return f"{ordered[len(ordered) // 2]:.1f}, {ordered[int(len(ordered) * 0.99)]:.1f}, {ordered[-1]:.0f}"


def _three(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[0]:.2f}, {ordered[len(ordered) // 2]:.2f}, {ordered[-1]:.2f}"


if __name__ == "__main__":
    main()
