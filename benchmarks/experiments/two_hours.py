"""Memory and descriptors of `edge-sdk run` over as many frames as two hours have, flat out: both must be flat.

usage: python -m benchmarks.experiments.two_hours BUNDLE [--frames 180000] [--reload-every 10000] [--json FILE]

Four cameras: two play a file over and over, each of its frames in turn and as fast as they can be worked on, two are
patterns of 240 frames a second. Results go to a broker. Twice a second the resident memory, the open descriptors and
the threads are noted; the slope is by least squares, of what comes after the first tenth. With `--reload-every` the
program reads its configuration again and again, with another budget each time, so that all four pipelines are replaced.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

import click
import cv2
import msgspec
import numpy as np

from benchmarks.experiments.device import Device, Held, Keys
from tests.support.broker import Broker

LIMIT_MB = 1.0
"""Of the slope, in MiB per 100,000 frames."""

_SAMPLE_S = 0.5
_BUDGETS_MS = (50, 51)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option("--frames", default=180_000, show_default=True, help="Results to wait for, of all cameras.")
@click.option("--reload-every", default=0, show_default=True, help="Results between two reloads; 0: none.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(bundle: Path, frames: int, reload_every: int, json_file: Path | None) -> None:
    """Run, sample, and print what came of it."""
    with tempfile.TemporaryDirectory() as work:
        samples, reloads = run(bundle, _write_video(Path(work) / "noise.avi"), frames, reload_every)
    taken = [(count, held) for _, count, held in samples if count > frames / 10]
    counts, resident_mb = np.array([(count, held.resident_mb) for count, held in taken]).T
    (slope, _), covariance = np.polyfit(counts / 1e5, resident_mb, 1, cov=True)
    last_s, last, _ = samples[-1]
    print(f"| results, reloads, results a second | {last}, {reloads}, {last / last_s:.0f} |")
    print(f"| resident memory, MiB | {resident_mb.min():.1f} to {resident_mb.max():.1f} |")
    error = 2 * np.sqrt(covariance[0, 0])
    print(f"| slope, MiB per 100,000 results; below {LIMIT_MB:g} | {slope:+.3f} +- {error:.3f} |")
    for name in ("files", "threads"):
        values = [getattr(held, name) for _, held in taken]
        middle = len(values) // 2
        print(f"| {name}, first and second half | {_span(values[:middle])}, {_span(values[middle:])} |")
    if json_file:
        json_file.write_text(json.dumps(msgspec.to_builtins(samples)) + "\n", encoding="utf-8")


def run(bundle: Path, video: Path, frames: int, reload_every: int) -> tuple[list[tuple[float, int, Held]], int]:
    """Seconds, results so far and what the process held, twice a second; and how many reloads there were."""
    cameras: dict[str, Keys] = {
        **{f"file{n}": {"source": str(video), "every_frame": True, "repeat": True} for n in range(2)},
        **{f"pattern{n}": {"source": "pattern:160x120@240"} for n in range(2)},
    }
    common: Keys = {"bundle": str(bundle.absolute()), "tune": False, "best_effort": True}
    budgets_ms = itertools.cycle(_BUDGETS_MS)
    samples: list[tuple[float, int, Held]] = []
    reloads = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder)) as broker,
        Device(broker, cameras, {**common, "latency_ms": next(budgets_ms)}) as device,
    ):
        start = time.monotonic()
        while (count := device.count) < frames:
            time.sleep(_SAMPLE_S)
            samples.append((time.monotonic() - start, count, device.held()))
            if reload_every and count >= reload_every * (reloads + 1):
                reloads += 1
                device.configure({**common, "latency_ms": next(budgets_ms)})
                device.reload()
            if len(samples) % 60 == 0:
                print(f"{count} results, {samples[-1][2]}", file=sys.stderr)
    return samples, reloads


def _write_video(path: Path) -> Path:
    """Ten seconds of noise."""
    random = np.random.default_rng(1)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (160, 120))
    for _ in range(250):
        writer.write(random.integers(0, 256, (120, 160, 3), np.uint8))
    writer.release()
    return path


def _span(values: list[int]) -> str:
    return f"{min(values)} to {max(values)}"


if __name__ == "__main__":
    main()
