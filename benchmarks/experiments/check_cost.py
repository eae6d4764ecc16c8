"""`python -m benchmarks.experiments.check_cost MODEL.toml ...`: what `edge-sdk check` costs, in seconds and memory.

Each round is a process of its own. Memory is the largest resident set of any process that the command starts, above
what an interpreter takes that has imported the same and read no model; the limit is three times the model file.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from edge_sdk_tools.check.sandbox import ENVIRONMENT

ROUNDS = 7
MIB = 2**20
_IMPORTS = ("-c", "import edge_sdk_tools.check.examination")


def main(models: Sequence[str]) -> None:
    """Measure and print one row a model."""
    base = statistics.median(_run(*_IMPORTS)[1] for _ in range(ROUNDS))
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; medians of {ROUNDS} rounds, smallest and largest")
    print(f"imports alone: {base / MIB:.1f} MiB\n")
    print("| model | file, MiB | seconds | memory above imports, MiB | times the file |")
    print("|---|---|---|---|---|")
    for model in models:
        print(_row(Path(model), base), flush=True)


def _row(model: Path, base: float) -> str:
    command = ("-m", "edge_sdk", "check", str(model), "--target", "arm64", "--json")
    report = json.loads(subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True).stdout)
    seconds, peaks = zip(*(_run(*command) for _ in range(ROUNDS)), strict=True)
    above = [(peak - base) / MIB for peak in peaks]
    size = report["size_mb"] * 1e6 / MIB
    cells = (_spread(seconds), _spread(above), f"{statistics.median(above) / size:.2f}")
    return f"| {report['name']} | {size:.1f} | {' | '.join(cells)} |"


def _run(*arguments: str) -> tuple[float, float]:
    """Seconds by the clock and the largest resident set, in bytes, of a process and all that it started."""
    started = time.perf_counter()
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - started, used.ru_maxrss * 1024


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


if __name__ == "__main__":
    main(sys.argv[1:])
