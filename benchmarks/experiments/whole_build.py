"""A build beside a quantization by hand.

Run as `python -m benchmarks.experiments.whole_build --model MODEL.toml --data IMAGES`.

`edge-sdk build` checks, quantizes, converts, proves, measures and packs; the other side
(benchmarks/rivals/by_hand.py) only quantizes and converts, by smallest and largest values or by percentiles, unsigned
activations and signed weights per channel. Each is a process with the same cores and the same images; rounds
alternate. The limit is 1.5 times min-max.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from benchmarks.rivals.by_hand import ByHand
from edge_sdk_tools.datasets.dataset import find_images

LIMIT = 1.5
_OURS = "edge-sdk build"


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path), help="A model.toml.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="A folder of images.")
@click.option("--evaluation", type=click.Path(exists=True, path_type=Path), help="Images that measure the build.")
@click.option("--images", "count", default=100, show_default=True, help="That calibrate.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--method", "methods", multiple=True, default=("MinMax", "Percentile"), show_default=True)
@click.option("--cores", default=2, show_default=True)
@click.option("--target", default="x86_64", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    model: Path,
    data: Path,
    evaluation: Path | None,
    count: int,
    rounds: int,
    methods: tuple[str, ...],
    cores: int,
    target: str,
    json_file: Path | None,
) -> None:
    """Measure and print a table."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    model = model.absolute()
    with tempfile.TemporaryDirectory() as work:
        images, others = _images(Path(work), data, evaluation, count)
        build = ["-m", "edge_sdk", "build", model, "--target", target, "--calibration", images, "--evaluation", others]
        build.append("--fresh")
        commands = {_OURS: [*build, "-o", Path(work, "out", "a.edge"), "--json"]}
        for method in methods:
            settings = msgspec.json.encode(ByHand(method)).decode()
            commands[f"by hand, {method}"] = [
                "-m",
                "benchmarks.rivals.by_hand",
                model,
                images,
                Path(work, "out"),
                settings,
            ]
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                seconds[name].append(_timed(command, Path(work, "out")))
    ratios = {
        name: sorted(a / b for a, b in zip(seconds[_OURS], values, strict=True)) for name, values in seconds.items()
    }
    _show(seconds, ratios, count, cores)
    if json_file is not None:
        found = {"model": str(model), "images": count, "cores": cores, "seconds": seconds, "ratios": ratios}
        json_file.write_text(json.dumps({**found, "limit": LIMIT}, indent=2) + "\n")


def _images(work: Path, data: Path, evaluation: Path | None, count: int) -> tuple[Path, Path]:
    """Folders with `count` images to calibrate with, and with those that measure: others of the same folder."""
    found = find_images([data], decode=False)
    chosen = found.spread(count)
    others = found.without(chosen)
    if len(chosen) < count or (evaluation is None and not len(others)):
        raise click.UsageError(f"{data}: {len(found)} images, expected more than {count}; give --images")
    for name, files in (("calibration", chosen.images), ("evaluation", others.images)):
        (work / name).mkdir()
        for file in files:
            shutil.copy(file.path, work / name)
    return work / "calibration", (evaluation or work / "evaluation").absolute()


def _timed(command: list[object], out: Path) -> float:
    """Seconds of one process, into a folder that is empty again."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{command[1]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return time.perf_counter() - started


def _show(seconds: dict[str, list[float]], ratios: dict[str, list[float]], count: int, cores: int) -> None:
    print(f"{count} images, {cores} cores; medians of alternating rounds, smallest and largest in brackets\n")
    print("| | seconds | edge-sdk build takes |\n|---|---|---|")
    for name, values in seconds.items():
        print(f"| {name} | {_spread(values)} | {_spread(ratios[name])} times |")
    for name, values in ratios.items():
        if name.endswith("MinMax"):
            held = statistics.median(values) <= LIMIT
            print(f"\nlimit: {LIMIT} times {name}: {'held' if held else 'NOT held'}")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


if __name__ == "__main__":
    main()
