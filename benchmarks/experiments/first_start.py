"""What tuning costs the first start of a run, beside a run that does not tune.

Run as `python -m benchmarks.experiments.first_start`.

The video is played in real time, its own pace; rounds alternate, and each begins without any record.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import msgspec

_RUN = [sys.executable, "-m", "edge_sdk", "run"]


@click.command()
@click.option(
    "--bundle",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="With several models, for this machine.",
)
@click.option("--video", required=True, type=click.Path(exists=True, path_type=Path), help="Longer than --seconds.")
@click.option("--seconds", default=22.0, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
def main(bundle: Path, video: Path, seconds: float, rounds: int) -> None:
    """Measure and print one row a run."""
    print("| run | results | late | too old | overtaken | age p99, ms | peak memory, MB | CPU s | candidates | runs |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    command = [*_RUN, bundle, "--source", video, "--duration", seconds, "--json"]
    for _ in range(rounds):
        for name, flags in (("as promised", ["--no-tune"]), ("first start", list[str]())):
            print(f"| {name} | {_row([*map(str, command), *flags])} |", flush=True)


def _row(command: list[str]) -> str:
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
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
