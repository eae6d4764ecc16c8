"""Frames a second through a 720p H.264 file, ours beside what a user would use.

Run as `python -m benchmarks.figures.throughput`.

A classifier of 224 pixels in INT8, beside a serial loop of OpenCV and ONNX Runtime, each with one inference thread; a
detector of YOLOv8n's shape in FP32, beside `ultralytics` on the same ONNX file, each with all cores. Every program is
a process that prints one line of JSON a frame; rounds alternate. Programs of the rivals' environment see no network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.figures.bench_models import CONFIDENCE, BenchModels, bench_models
from benchmarks.figures.figure import Figure, print_figures
from benchmarks.figures.paced_cpu import with_one_thread
from benchmarks.figures.peak import peak_until_end
from edge_sdk_tools.packages import cache_folder

CLASSIFIER_LIMIT, DETECTOR_LIMIT, MEMORY_LIMIT = 1.3, 1.05, 0.5
_RIVALS = Path(__file__).parents[2] / ".venv-rivals" / "bin" / "python"
_ALONE = ("unshare", "--map-root-user", "--net")


class Pass(msgspec.Struct, frozen=True):
    """One program's way through the file: frames a second, and its peak resident memory in MB."""

    fps: float
    peak_mb: float


def measure(models: BenchModels, rounds: int, frames: int, rivals: Path = _RIVALS) -> list[Figure]:
    """Ratios of every round.

    Args:
        models: what runs.
        rounds: of all programs in turn.
        frames: of the file, for the detectors; classifiers see all.
        rivals: Python of the rivals' environment.
    """
    classifier: list[tuple[Pass, Pass]] = []
    detector: list[tuple[Pass, Pass, Pass]] = []
    serial = (sys.executable, "-m", "benchmarks.rivals.serial_loop", models.classifier_onnx, models.video, 10_000)
    stream = Path(__file__).parents[1] / "rivals" / "ultralytics_stream.py"
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as work:
            alone = with_one_thread(models.classifier, Path(work))
            classifier.append((_ours(models, "run", alone, "--variant", "int8"), _passed(*serial)))
        if rivals.exists():
            ours = [
                _ours(models, "run", models.detector, "--variant", variant, "--frames", frames)
                for variant in ("fp32", "int8")
            ]
            rival = _passed(*_ALONE, rivals, stream, models.detector_onnx, models.video, frames, CONFIDENCE)
            detector.append((ours[0], ours[1], rival))
    figures = [
        Figure(
            "224 classifier, INT8, one thread: throughput over a serial loop",
            tuple(ours.fps / serial_loop.fps for ours, serial_loop in classifier),
            at_least=CLASSIFIER_LIMIT,
        )
    ]
    if detector:
        figures += [
            Figure(
                "640 detector, FP32: throughput over ultralytics, same ONNX",
                tuple(fp32.fps / rival.fps for fp32, _, rival in detector),
                at_least=DETECTOR_LIMIT,
            ),
            Figure(
                "640 detector, FP32: peak memory over ultralytics",
                tuple(fp32.peak_mb / rival.peak_mb for fp32, _, rival in detector),
                at_most=MEMORY_LIMIT,
            ),
            Figure(
                "640 detector, INT8: throughput over ultralytics in FP32",
                tuple(int8.fps / rival.fps for _, int8, rival in detector),
            ),
        ]
    return figures


def _ours(models: BenchModels, *arguments: object) -> Pass:
    return _passed(
        *(sys.executable, "-m", "edge_sdk", *arguments, "--source", models.video, "--every-frame"),
        *("--best-effort", "--json", "--quiet"),
    )


def _passed(*command: object) -> Pass:
    with tempfile.TemporaryFile("w+") as output:
        environment = {**os.environ, "YOLO_CONFIG_DIR": tempfile.gettempdir()}
        process = subprocess.Popen([str(c) for c in command], stdout=output, env=environment)
        most_mb = peak_until_end(process)
        if process.returncode:
            raise RuntimeError(f"{command}: exit code {process.returncode}")
        output.seek(0)
        *_, last = output
    return Pass(json.loads(last)["fps"], most_mb)


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--frames", default=60, show_default=True, help="Of the detectors.")
def main(rounds: int, frames: int) -> None:
    """Measure and print."""
    models = bench_models(cache_folder(), lambda line: print(line, file=sys.stderr))
    print_figures(measure(models, rounds, frames))


if __name__ == "__main__":
    main()
