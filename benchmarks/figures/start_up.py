"""From the start of a process to its first published result, and its memory.

Run as `python -m benchmarks.figures.start_up BUNDLE`.

`edge-sdk run` on a bundle that this machine has tried before, and benchmarks/rivals/bare_start.py on the same .ort
and picture, in turn; a subscriber of a real broker stops the clock. Both are processes with compiled modules, as
installed ones are.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
import cv2
import msgspec
import paho.mqtt.client as mqtt

from benchmarks.figures.peak import peak_mb
from edge_sdk.bundle.bundle import Bundle
from tests.support.broker import Broker

RATIO_LIMIT = 1.15
MEMORY_LIMIT_MB = 20.0
_BUDGET_MS = 1000  # that the model keeps by far; what a board does that may not keep its budget is another thing


class _Listener:
    """Hears the first message of each process, whichever program sends it."""

    def __init__(self, port: int) -> None:
        self._heard = threading.Event()
        self._at = 0.0
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        for topic in ("bare/result", "edge/v1/+/+/result/#"):
            self._client.subscribe(topic)
        self._client.loop_start()

    def first_after(self, command: Sequence[object]) -> tuple[float, float, float]:
        """Run a process; seconds until its first message, its peak memory in MiB, and its seconds of CPU to its end."""
        self._heard.clear()
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *map(str, command)], env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if not self._heard.wait(60):
            process.kill()
            sys.exit(f"no message: {process.communicate()[1].decode()}")
        seconds = self._at - start
        most_mb = peak_mb(process.pid)  # by then all is loaded, and has run
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.stderr is not None
        process.stderr.close()
        return seconds, most_mb, usage.ru_utime + usage.ru_stime

    def _on_message(self, _client: object, _data: object, _message: object) -> None:
        if not self._heard.is_set():
            self._at = time.perf_counter()
            self._heard.set()


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _row(name: str, ours: Sequence[float], bare: Sequence[float], unit: str) -> str:
    a, b = statistics.median(ours), statistics.median(bare)
    return f"{name}: edge-sdk {a:.3f} {unit}, bare {b:.3f} {unit}: {a / b:.3f}x, {a - b:+.3f} {unit}"


class Start(msgspec.Struct, frozen=True):
    """One start: seconds to the first message, peak memory in MiB, and seconds of CPU to the end."""

    seconds: float
    peak_mb: float
    cpu_s: float


def measure(bundle: Path, rounds: int) -> list[tuple[Start, Start]]:
    """Starts of `edge-sdk run` and of the bare script in turn, after one of each."""
    opened = Bundle.open(bundle)
    with tempfile.TemporaryDirectory() as work, Broker(Path(work)) as broker:
        picture = Path(work) / "picture.jpg"
        cv2.imwrite(str(picture), cv2.resize(opened.golden()[0][0], (1280, 720)))
        url = f"mqtt://127.0.0.1:{broker.port}"
        ours = ("-m", "edge_sdk", "run", bundle, "--source", picture, "--mqtt", url, "-q", "--device", "bench")
        ours = (*ours, "--latency-ms", _BUDGET_MS)
        promise = opened.manifest
        model = bundle / promise.variants[0].file
        bare = ("-m", "benchmarks.rivals.bare_start", model, picture, broker.port, promise.intra_op_num_threads)
        listener = _Listener(broker.port)
        for command in (ours, bare):
            listener.first_after(command)  # tried, compiled, in the file cache
        return [(Start(*listener.first_after(ours)), Start(*listener.first_after(bare))) for _ in range(rounds)]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
def main(bundle: Path, rounds: int) -> None:
    """Print the rows; exit code 4 where a limit is missed."""
    found = measure(bundle, rounds)
    ours, bare = zip(*found, strict=True)
    print(_row("first result", [s.seconds for s in ours], [s.seconds for s in bare], "s"))
    print(_row("peak memory", [s.peak_mb for s in ours], [s.peak_mb for s in bare], "MiB"))
    print(_row("CPU", [s.cpu_s for s in ours], [s.cpu_s for s in bare], "s"))
    over = statistics.median(a.seconds / b.seconds for a, b in found) > RATIO_LIMIT
    large = statistics.median(a.peak_mb - b.peak_mb for a, b in found) > MEMORY_LIMIT_MB
    sys.exit(4 if over or large else 0)


if __name__ == "__main__":
    main()
