"""`python -m benchmarks.first_start`: what tuning costs the first start of a run, beside a run that does not tune.

The video is played in real time, its own pace; rounds alternate, and each begins without any record.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

_RUN = [sys.executable, "-m", "edge_sdk", "run"]


def main() -> None:
    """Measure and print one row a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="with several models, for this machine")
    parser.add_argument("--video", type=Path, required=True, help="longer than --seconds")
    parser.add_argument("--seconds", type=float, default=22)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| run | results | late | too old | overtaken | age p99, ms | peak memory, MB | CPU s | candidates | runs |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for _ in range(arguments.rounds):
        for name, flags in (("as promised", ["--no-tune"]), ("first start", list[str]())):
            print(f"| {name} | {_row(arguments, flags)} |", flush=True)


def _row(arguments: argparse.Namespace, flags: list[str]) -> str:
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryFile() as output:
        command = [*_RUN, arguments.bundle, "--source", arguments.video, "--duration", arguments.seconds, "--json"]
        process = subprocess.Popen(
            [*map(str, command), *flags],
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "STATE_DIRECTORY": state},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"edge-sdk run ended with exit code {process.returncode}")
        output.seek(0)
        summary = msgspec.json.decode(output.readlines()[-1])
        [*records] = (Path(state) / "tuning").glob("*.json")
        tuned = msgspec.json.decode(records[0].read_bytes())["tuned"] if records else None
    chosen = tuned["chosen"]["candidate"] if tuned else None
    figures = (
        summary["results"],
        summary["late"],
        summary["stale"],
        summary["source"]["dropped"],
        f"{summary['age']['p99_ms']:.1f}",
        round(usage.ru_maxrss / 1024),
        f"{usage.ru_utime + usage.ru_stime:.1f}",
        len(tuned["measured"]) if tuned else "",
        f"{chosen['variant']}, {chosen['intra_op_num_threads']} threads" if chosen else "",
    )
    return " | ".join(str(figure) for figure in figures)


if __name__ == "__main__":
    main()
