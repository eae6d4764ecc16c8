"""Age and memory of `edge-sdk run` over minutes: both must be flat.

usage: python -m benchmarks.figures.long_run BUNDLE VIDEO [--minutes 3] [--hurry 1] [--json FILE]

ffmpeg sends VIDEO over and over at its own pace as MJPEG over HTTP, which is a camera to the program: live, paced, and
reopened when it is lost. Every second the ages of its results and its resident memory are noted; their slopes are by
least squares, of what comes after the first half minute. `--hurry 4` sends four times as many frames a second as the
file has: more than the model can take.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import click
import cv2
import numpy as np

_Sample: TypeAlias = tuple[float, float, float, float]
_SETTLING_S = 30.0
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


@click.command()
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.argument("video", type=click.Path(exists=True, path_type=Path))
@click.option("--minutes", default=3.0, show_default=True)
@click.option("--hurry", default=1.0, show_default=True, help="Frames, times those that the file has.")
@click.option("--latency-ms", type=float, help="Budget instead of the bundle's.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    bundle: Path, video: Path, minutes: float, hurry: float, latency_ms: float | None, json_file: Path | None
) -> None:
    """Run, sample, and print what came of it."""
    fps = cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FPS) * hurry
    with live_camera(video, fps, hurry) as url:
        budget = ("--latency-ms", str(latency_ms)) if latency_ms else ()
        samples, summary = run_live(bundle, url, minutes * 60, budget)
    measured = _measured(samples, summary, fps)
    for name, value in measured.items():
        print(f"| {name} | {value} |")
    if json_file:
        json_file.write_text(json.dumps({"measured": measured, "samples": samples, "summary": summary}, indent=2))


@contextlib.contextmanager
def live_camera(video: Path, fps: float, hurry: float) -> Iterator[str]:
    """The URL of a live stream of the video."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/live"
    filters = ["-vf", f"setpts=PTS/{hurry}", "-r", f"{fps}"] if hurry != 1 else []
    command = ["ffmpeg", "-v", "error", "-readrate", f"{hurry}", "-stream_loop", "-1", "-i", str(video), *filters]
    command += ["-an", "-q:v", "5", "-f", "mpjpeg", "-listen", "1", url]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            time.sleep(2)
            yield url
        finally:
            process.kill()


def run_live(bundle: Path, url: str, seconds: float, options: Sequence[str]) -> tuple[list[_Sample], dict[str, Any]]:
    """A second's end, medians of age and of age less inference in milliseconds, resident MiB; the program's summary."""
    command = [sys.executable, "-m", "edge_sdk", "run", str(bundle), "--source", url, *options]
    command += ["--duration", str(seconds), "--json", "--best-effort"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines: list[dict[str, Any]] = []
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        samples: list[_Sample] = []
        start, seen = time.monotonic(), 0
        while process.poll() is None:
            time.sleep(1)
            fresh = [(r["age_ms"], r["age_ms"] - r["infer_ms"]) for r in lines[seen:] if r["stream"] == "result"]
            seen += len(fresh)
            resident = _resident_mb(process.pid)
            if fresh and resident is not None:
                age, waiting = np.median(fresh, axis=0).tolist()
                samples.append((time.monotonic() - start, age, waiting, resident))
        reader.join()
    return samples, lines[-1]


def _read(stdout: IO[str], lines: list[dict[str, Any]]) -> None:
    lines.extend(json.loads(line) for line in stdout)


def _resident_mb(pid: int) -> float | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return None
    return pages * _PAGE_MB or None  # none where it has just ended


def _measured(samples: list[_Sample], summary: dict[str, Any], fps: float) -> dict[str, str]:
    taken_s, ages_ms, waiting_ms, resident_mb = np.array([s for s in samples if s[0] > _SETTLING_S]).T
    period_ms = 1000 / fps
    age, serial = summary["age"], summary["serial"]
    limit_ms = period_ms + serial["p99_ms"]
    return {
        "seconds": f"{taken_s[-1]:.0f}",
        "frames a second of the source": f"{fps:.3g}",
        "results, overtaken, too old, late": (
            f"{summary['results']}, {summary['source']['dropped']}, {summary['stale']}, {summary['late']}"
        ),
        "age p50, p99, ms": f"{age['p50_ms']:.3g}, {age['p99_ms']:.3g}",
        "of that the loop itself p50, p99, ms": f"{serial['p50_ms']:.3g}, {serial['p99_ms']:.3g}",
        "p99 of age over one frame period + p99 of the loop": f"{age['p99_ms'] / limit_ms:.3f}",
        "age, ms a minute": _slope(taken_s, ages_ms),
        "age less inference, ms a minute": _slope(taken_s, waiting_ms),
        "resident memory, MiB": f"{np.median(resident_mb):.1f}",
        "resident memory, MiB a minute": _slope(taken_s, resident_mb),
    }


def _slope(taken_s: np.ndarray, values: np.ndarray) -> str:
    """Of a line by least squares, a minute, with twice its standard error."""
    (slope, _), covariance = np.polyfit(taken_s / 60, values, 1, cov=True)
    return f"{slope:+.3f} +- {2 * np.sqrt(covariance[0, 0]):.3f}"


if __name__ == "__main__":
    main()
