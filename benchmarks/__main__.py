"""`make bench`: the loop beside a bare run, and the whole program beside a hand-written one.

Rounds alternate between what is compared, each in a process of its own; medians over rounds with their spread. Writes
docs/benchmarks.md and docs/benchmarks.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec

from benchmarks.figures import hot_path
from benchmarks.figures.bench_models import bench_models
from benchmarks.figures.figure import Figure, markdown
from benchmarks.figures.plot import write_plot
from edge_sdk.core.machine import Cpu
from edge_sdk_tools.demo.bundle import DemoBundle, Media, demo_bundle, fetch_media
from edge_sdk_tools.packages import cache_folder
from tests.support.broker import Broker

ROUNDS = 5
_BY_HAND = "## With models and images of your own"
DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    """Measure and write the tables."""
    cache = cache_folder()
    media = fetch_media(cache, lambda line: print(line, file=sys.stderr))
    bundle = demo_bundle(media, cache, lambda _step, _done, _total: None)
    with tempfile.TemporaryDirectory() as work:
        measured = {
            "machine": _machine(),
            "rounds": ROUNDS,
            "build": {k: v for k, v in msgspec.to_builtins(bundle.report).items() if k not in ("bundle", "samples")},
            "stages": _measure_stages(bundle, media, Path(work)),
            "programs": _measure_programs(bundle, media),
        }
    figures = hot_path.measure(bench_models(cache, _say), ROUNDS, _say)
    measured["hot_path"] = [{**msgspec.to_builtins(f), "median": f.median, "reached": f.is_reached} for f in figures]
    write_plot(figures, DOCS / "benchmarks.svg")
    (DOCS / "benchmarks.json").write_text(json.dumps(measured, indent=2) + "\n")
    path = DOCS / "benchmarks.md"
    written = page(measured, figures, path.read_text())
    path.write_text(written)
    print(written.partition(_BY_HAND)[0])


def page(measured: dict[str, Any], figures: Sequence[Figure], before: str) -> str:
    """What was measured, and what was written by hand: it needs models and images that `make bench` does not fetch.

    Args:
        measured: as benchmarks.json has it.
        figures: of the way of a frame.
        before: the page as it was, of which the part by hand is kept.
    """
    kept = before.partition(_BY_HAND)[2]
    return "\n".join([_markdown(measured), *_hot_path(figures), f"{_BY_HAND}{kept}"])


def _measure_stages(bundle: DemoBundle, media: Media, work: Path) -> dict[str, list[float]]:
    """`edge-sdk bench` on a frame of the demo's video, one process a round: p50 of everything, in milliseconds."""
    frame = work / "frame.png"
    capture = cv2.VideoCapture(str(media.street_video))
    capture.set(cv2.CAP_PROP_POS_FRAMES, 119)
    cv2.imwrite(str(frame), capture.read()[1])
    rows: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        _say(f"stages, round {number + 1} of {ROUNDS}")
        report = json.loads(_run("-m", "edge_sdk", "bench", bundle.path, "--image", frame, "--json")[0])
        for name, values in (*report["stages"].items(), ("prepare to publish", report["loop"])):
            rows.setdefault(name, []).append(values["p50_ms"])
        for threads, values in report["bare"].items():
            rows.setdefault(f"bare run, threads: {threads}", []).append(values["p50_ms"])
        rows.setdefault("ratio", []).append(report["ratio"])
        rows.setdefault("peak memory, MiB", []).append(report["peak_rss_mb"])
    return rows


def _measure_programs(bundle: DemoBundle, media: Media) -> dict[str, dict[str, list[float]]]:
    """Both programs on the whole video in real time, publishing to one broker."""
    onnx = bundle.model.parent / "yolov4_tiny.onnx"
    programs: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        for number in range(ROUNDS):
            _say(f"programs, round {number + 1} of {ROUNDS}")
            command = ("run", bundle.path, "--source", media.street_video, "--mqtt", broker.url, "--json", "--quiet")
            output, cpu_s = _run("-m", "edge_sdk", *command)
            summary = json.loads(output)
            _note(programs, "edge-sdk run", summary["age"]["p50_ms"], summary["age"]["p99_ms"], cpu_s)
            output, cpu_s = _run("-m", "benchmarks.rivals.handwritten", onnx, media.street_video, broker.port)
            latencies = sorted(json.loads(output))
            p50, p99 = statistics.median(latencies), latencies[int(len(latencies) * 0.99)]
            _note(programs, "hand-written, FP32", p50, p99, cpu_s)
    return programs


def _note(programs: dict[str, dict[str, list[float]]], name: str, p50: float, p99: float, cpu_s: float) -> None:
    row = programs.setdefault(name, {"p50 ms": [], "p99 ms": [], "CPU seconds": []})
    for value, values in zip((p50, p99, cpu_s), row.values(), strict=True):
        values.append(round(value, 3))


def _run(*arguments: object) -> tuple[str, float]:
    """Standard output of one Python process, and the CPU seconds that it took."""
    before = os.times()
    done = subprocess.run([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return done.stdout, used


def _machine() -> dict[str, str]:
    return {
        "cpu": Cpu.read().name,
        "cores": str(os.cpu_count()),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def _markdown(measured: dict[str, Any]) -> str:
    machine, build = measured["machine"], measured["build"]
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench`. {machine['cpu']}, {machine['cores']} cores, {machine['machine']}, "
        f"Python {machine['python']}. Medians of {measured['rounds']} alternating rounds, smallest and largest in "
        "brackets. YOLOv4-tiny, 416 pixels, on a 640x272 video.",
        "",
        "## INT8 beside FP32",
        "",
        "| | FP32 | INT8 | |",
        "|---|---|---|---|",
        _ratio_row("model file, MB", build["fp32_mb"], build["int8_mb"]),
        _ratio_row("one run, one thread, ms", build["fp32_latency_ms"], build["int8_latency_ms"]),
        f"| detections matched (F1), {build['agreement']['images']} images | 1 | {build['agreement']['value']:.3f} | |",
        "",
        "## A frame through the loop",
        "",
        "`edge-sdk bench`, p50 in milliseconds; the ratio is prepare to publish over the best bare",
        "`InferenceSession.run` of the same file, of one and two threads without spinning.",
        "",
        "| | median |",
        "|---|---|",
        *(f"| {name} | {_median(values)} |" for name, values in measured["stages"].items()),
        "",
        "## The whole program",
        "",
        "Ten seconds of video in real time, results published to a mosquitto: `edge-sdk run`, and",
        "`benchmarks/rivals/handwritten.py`, what many write first (OpenCV, blobFromImage, the FP32 model in a default",
        "session, paho). Latency from the grab to the hand-over for publishing; CPU seconds of the whole process, its",
        "start included.",
        "",
        "| | p50 ms | p99 ms | CPU seconds |",
        "|---|---|---|---|",
        *(
            f"| {name} | {' | '.join(_median(values) for values in row.values())} |"
            for name, row in measured["programs"].items()
        ),
        "",
    ]
    return "\n".join(lines)


def _hot_path(figures: Sequence[Figure]) -> list[str]:
    return [
        "## The way of a frame beside other programs",
        "",
        "EfficientNet-Lite0 in INT8, a detector of YOLOv8n's shape with random weights, a video of 1280x720 in H.264.",
        "The session's model is one Relu, of which hardly anything but the call is left.",
        "",
        "![what was measured over its limit](benchmarks.svg)",
        "",
        *markdown(figures),
        "",
    ]


def _ratio_row(name: str, fp32: float, int8: float) -> str:
    return f"| {name} | {fp32:.4g} | {int8:.4g} | {int8 / fp32:.2f}x |"


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.3g}-{max(values):.3g}]"


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
