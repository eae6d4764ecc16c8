"""Several cameras of one `edge-sdk run`: how fairly they share two cores, how fresh they stay, what a broken one costs.

usage: python -m benchmarks.experiments.several_cameras BUNDLE [--fps 100] [--seconds 15] [--rounds 3] [--json FILE]

Rounds alternate between one camera, four, and three beside which a broken one comes and goes, by reloads: without,
twice with, without. Its server refuses, it never answers, its bundle is not there. All others are patterns of `--fps`
frames a second, which should be more than the model can take. An independent subscriber counts the results of
`--seconds`, after a second in which they come. Ages are in runs of the model, which take longer on a busy machine,
too. With a small `--latency-ms` the streams step down meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.experiments.device import Device, Keys, Result
from benchmarks.figures.figure import Figure, print_figures
from tests.support.broker import Broker

_CORES = 2
_SETTLING_S, _START_S = 1.0, 30.0
_ALONE = (True, False, False, True)
_BROKEN = ("refuses", "never answers", "has no bundle")


class Measured(msgspec.Struct, frozen=True):
    """Of one run, by camera.

    Attributes:
        results: how many came.
        ages: median, in runs of the model.
        growths: of the last third's age over the first third's.
    """

    results: tuple[int, ...]
    ages: tuple[float, ...]
    growths: tuple[float, ...]

    @property
    def jain(self) -> float:
        """1 where all have the same, 1/n where one has all."""
        return sum(self.results) ** 2 / (len(self.results) * sum(count**2 for count in self.results))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option("--fps", default=100, show_default=True)
@click.option("--latency-ms", default=5000.0, show_default=True, help="Budget of every stream.")
@click.option("--seconds", default=15.0, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(bundle: Path, fps: int, latency_ms: float, seconds: float, rounds: int, json_file: Path | None) -> None:
    """Measure and print a table."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:_CORES]))
    defaults = {"bundle": str(bundle.absolute()), "tune": False, "best_effort": True, "latency_ms": latency_ms}
    measured: dict[str, list[Measured]] = {}
    with _broken_cameras() as broken:
        healthy: Keys = {"source": f"pattern:320x240@{fps}"}
        for number in range(rounds):
            for count in (1, 4):
                print(f"round {number + 1} of {rounds}: {count} healthy", file=sys.stderr)
                windows = _measure({f"camera{n}": healthy for n in range(count)}, defaults, seconds, [None])
                measured.setdefault(f"{count} healthy", []).extend(windows)
            for why, keys in broken.items():
                print(f"round {number + 1} of {rounds}: {why}", file=sys.stderr)
                beside = [{} if is_alone else {"broken": keys} for is_alone in _ALONE]
                windows = _measure({f"camera{n}": healthy for n in range(3)}, defaults, seconds / 2, beside)
                measured.setdefault(why, []).extend(windows)
    print_figures(_figures(measured))
    if json_file:
        json_file.write_text(json.dumps(msgspec.to_builtins(measured), indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _broken_cameras() -> Iterator[dict[str, Keys]]:
    """The keys of each, by what is wrong with it."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refuses, never_answers = (f"rtsp://127.0.0.1:{s.getsockname()[1]}/live" for s in (closed, silent))
        nothing: Keys = {"source": "pattern", "bundle": "none.edge"}
        yield dict(zip(_BROKEN, ({"source": refuses}, {"source": never_answers}, nothing), strict=True))


def _measure(
    cameras: Mapping[str, Keys], defaults: Keys, seconds: float, windows: Sequence[Mapping[str, Keys] | None]
) -> list[Measured]:
    """A window for each of these sets of further cameras; None: nothing is read again before it."""
    measured = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder)) as broker,
        Device(broker, cameras, defaults, keeps=True) as device,
    ):
        until, seen = time.monotonic() + _START_S, set[str]()
        while not seen >= cameras.keys():
            seen |= device.take_results().keys()
            if not device.count and time.monotonic() > until:
                raise SystemExit(f"no result came: {device.said}")
            time.sleep(0.1)
        for beside in windows:
            if beside is not None:
                device.configure(defaults, beside)
                device.reload()
            time.sleep(_SETTLING_S)
            device.take_results()
            time.sleep(seconds)
            results = device.take_results()
            measured.append(_measured([results[camera] for camera in cameras]))
    return measured


def _measured(results: list[list[Result]]) -> Measured:
    ages = [[result.age_ms / result.infer_ms for result in of_camera] for of_camera in results]
    thirds = [len(of_camera) // 3 for of_camera in ages]
    growths = [
        statistics.median(of_camera[-third:]) / statistics.median(of_camera[:third])
        for of_camera, third in zip(ages, thirds, strict=True)
    ]
    return Measured(tuple(map(len, results)), tuple(map(statistics.median, ages)), tuple(growths))


def _figures(measured: dict[str, list[Measured]]) -> list[Figure]:
    four, one = (measured[f"{count} healthy"] for count in (4, 1))
    figures = [
        Figure("four cameras: Jain's index of their results", tuple(m.jain for m in four), at_least=0.95, unit=""),
        Figure(
            "four cameras: age in the last third over the first, largest",
            tuple(max(m.growths) for m in four),
            at_most=1.25,
        ),
        Figure("one camera: age in runs", tuple(max(m.ages) for m in one)),
        Figure("four cameras: age in runs, largest", tuple(max(m.ages) for m in four)),
    ]
    for why in _BROKEN:
        windows = measured[why]
        rounds = [windows[start : start + len(_ALONE)] for start in range(0, len(windows), len(_ALONE))]
        results, ages = zip(*map(_with_over_without, rounds), strict=True)
        figures += [
            Figure(f"three beside one that {why}: results over those of three", results, at_least=0.95),
            Figure(f"three beside one that {why}: age over that of three", ages, at_most=1.1),
        ]
    return figures


def _with_over_without(windows: Sequence[Measured]) -> tuple[float, float]:
    """Results and age of a round's windows with the broken one, over those without."""
    alone = [window for window, is_alone in zip(windows, _ALONE, strict=True) if is_alone]
    beside = [window for window, is_alone in zip(windows, _ALONE, strict=True) if not is_alone]
    results, ages = (
        [sum(sum(getattr(m, name)) for m in some) for some in (beside, alone)] for name in ("results", "ages")
    )
    return results[0] / results[1], ages[0] / ages[1]


if __name__ == "__main__":
    main()
