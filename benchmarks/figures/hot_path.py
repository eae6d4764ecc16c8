"""What the way of a frame costs, beside a bare run, a bare script and other programs.

Run as `python -m benchmarks.figures.hot_path`.

Everything in turn, in processes of their own, with the models of benchmarks/figures/bench_models.py; figures are
ratios of the rounds. `make bench` writes them to docs/benchmarks.md with a plot.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import click
import cv2
import msgspec

from benchmarks.figures import long_run, paced_cpu, prepare_cost, session_cost, start_up, throughput
from benchmarks.figures.bench_models import BenchModels, bench_models
from benchmarks.figures.figure import Figure, print_figures
from edge_sdk_tools.packages import cache_folder

_DETECTOR_LIMIT, _CLASSIFIER_LIMIT = 1.03, 1.12
_LIVE_S = 20.0
_PACED_S = 8.0
_BENCH_ROUNDS = 150
_PREPARE_ROUNDS = 150
_MISSED = 4  # exit code of a part whose own limit is missed: its figures are there all the same

Say = Callable[[str], None]


def measure(models: BenchModels, rounds: int, say: Say, only: Collection[str] = ()) -> list[Figure]:
    """All figures, or those of some parts, one part after the other."""
    figures: list[Figure] = []
    for name, part in PARTS.items():
        if not only or name in only:
            say(f"{name}: {rounds} rounds")
            figures += part(models, rounds)
    return figures


def serial_frame(models: BenchModels, rounds: int) -> list[Figure]:
    """Prepare, run, decode, encode and publish a 720p frame, over a bare run of the same file."""
    ratios: dict[tuple[str, str], list[float]] = {
        (model, how): [] for model in ("detector", "classifier") for how in ("--no-spin", "--spin")
    }
    with tempfile.TemporaryDirectory() as work:
        frame = Path(work) / "frame.png"
        cv2.imwrite(str(frame), cv2.VideoCapture(str(models.video)).read()[1])
        for _ in range(rounds):
            for (name, how), found in ratios.items():
                options = ("--image", frame, "--variant", "int8", "--rounds", _BENCH_ROUNDS, "--json", how)
                found.append(json.loads(_edge_sdk("bench", getattr(models, name), *options))["ratio"])
    names = {"detector": "640 detector, INT8", "classifier": "224 classifier, INT8"}
    limits = {"detector": _DETECTOR_LIMIT, "classifier": _CLASSIFIER_LIMIT}
    hows = {"--no-spin": "", "--spin": ", threads that spin within a run"}
    return [
        Figure(f"{names[model]}: serial frame over bare run{hows[how]}", tuple(found), at_most=limits[model])
        for (model, how), found in ratios.items()
    ]


def live_age(models: BenchModels, rounds: int) -> list[Figure]:
    """Age of results of a live stream, over what a freshest-frame loop may take."""
    capture = cv2.VideoCapture(str(models.video))
    period_ms = 1000 / capture.get(cv2.CAP_PROP_FPS)
    ratios = []
    for _ in range(rounds):
        with long_run.live_camera(models.video, 1000 / period_ms, 1) as url:
            _, summary = long_run.run_live(models.classifier, url, _LIVE_S, ("--no-tune",))
        ratios.append(summary["age"]["p99_ms"] / (period_ms + summary["serial"]["p99_ms"]))
    name = "live 720p, classifier: p99 age over frame period + p99 serial frame"
    return [Figure(name, tuple(ratios), at_most=1.0)]


def cpu_at_pace(models: BenchModels, rounds: int) -> list[Figure]:
    """CPU of a stream at a camera's pace, over a bare loop with one thread."""
    with tempfile.TemporaryDirectory() as work:
        paced = Path(work) / "paced.mp4"
        command = ["ffmpeg", "-v", "error", "-stream_loop", "3", "-i", str(models.video), "-r", "30", "-an"]
        subprocess.run([*command, "-c:v", "libx264", "-pix_fmt", "yuv420p", str(paced)], check=True)
        shares = paced_cpu.measure(paced_cpu.programs(models.classifier, paced, Path(work)), _PACED_S, rounds)
    bare = shares["bare loop, 1 thread"]
    one = shares.get("edge-sdk run, 1 thread", shares["edge-sdk run"])
    return [
        Figure(
            "classifier at 30 FPS, one thread: CPU over a bare loop",
            tuple(a / b for a, b in zip(one, bare, strict=True)),
            at_most=1.1,
        ),
        Figure(
            "the same of a default session",
            tuple(a / b for a, b in zip(shares["default session"], bare, strict=True)),
        ),
    ]


def starts(models: BenchModels, rounds: int) -> list[Figure]:
    """From the start of a process to its first published result, and its memory, over a bare script."""
    figures = []
    for name in ("classifier", "detector"):
        found = start_up.measure(getattr(models, name), rounds)
        seconds = tuple(ours.seconds / bare.seconds for ours, bare in found)
        memory = tuple(ours.peak_mb - bare.peak_mb for ours, bare in found)
        figures += [
            Figure(f"{name}: start to first result over a bare script", seconds, at_most=start_up.RATIO_LIMIT),
            Figure(f"{name}: peak memory above a bare script", memory, at_most=start_up.MEMORY_LIMIT_MB, unit=" MiB"),
        ]
    return figures


def prepares(rounds: int) -> list[Figure]:
    """From a 720p frame to what a model takes, floats or integers, over OpenCV's blobFromImage to floats."""
    found = [_reported(prepare_cost.__name__, "--rounds", _PREPARE_ROUNDS) for _ in range(rounds)]
    kinds = {"ours_ratio": "floats", "integers_ratio": "integers"}
    return [
        Figure(f"720p to {way}, {kind}: prepare over blobFromImage", tuple(r[way][key] for r in found), at_most=limit)
        for key, kind in kinds.items()
        for way, limit in prepare_cost.LIMITS.items()
    ]


def wrappers(rounds: int) -> list[Figure]:
    """What our session costs above a bare `InferenceSession.run` of a model that does next to nothing."""
    found = [_reported(session_cost.__name__) for _ in range(rounds)]
    return [
        Figure(
            f"session, {shape}: above a bare run",
            tuple(r[shape]["wrapper_us"] for r in found),
            at_most=session_cost.LIMIT_US,
            unit=" us",
        )
        for shape in found[0]
    ]


PARTS: dict[str, Callable[[BenchModels, int], list[Figure]]] = {
    "serial": serial_frame,
    "age": live_age,
    "cpu": cpu_at_pace,
    "start": starts,
    "prepare": lambda _models, rounds: [*prepares(rounds), *wrappers(rounds)],
    "throughput": lambda models, rounds: throughput.measure(models, rounds, frames=60),
}


def _reported(module: str, *arguments: object) -> dict[str, dict[str, float]]:
    """What a benchmark writes with `--json`."""
    with tempfile.TemporaryDirectory() as work:
        written = Path(work) / "figures.json"
        command = [sys.executable, "-m", module, *map(str, arguments), "--json", str(written)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode not in (0, _MISSED):
            raise RuntimeError(f"{module}: exit code {done.returncode}")
        return msgspec.json.decode(written.read_bytes(), type=dict[str, dict[str, float]])


def _edge_sdk(*arguments: object) -> str:
    command = [sys.executable, "-m", "edge_sdk", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--only", type=click.Choice([*PARTS]), multiple=True, help="A part; all of them take many minutes.")
def main(rounds: int, only: tuple[str, ...]) -> None:
    """Measure and print."""

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    print_figures(measure(bench_models(cache_folder(), say), rounds, say, only))


if __name__ == "__main__":
    main()
