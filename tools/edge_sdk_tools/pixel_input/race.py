"""The race: a frame the float way and the levels' way, in turn, on this machine.

What differs between the two is a part of a millisecond in an inference of ten; the noise of a whole inference would
hide it. So preparation is timed whole, and of the inference those operators of which the two run different numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.frame import Frame, Image
from edge_sdk.prepare import Prepare
from edge_sdk_tools.pixel_input.kernels import KernelClock, KernelRun

_WARM_UPS = 2
_LEAST_ROUNDS = 5
_MOST_ROUNDS = 40
_SECONDS = 0.25
_CLEARLY = 0.25  # the quantile of the rounds' gains that must be a gain


class Way(msgspec.Struct, frozen=True):
    """Medians on this machine, one thread, in milliseconds.

    Attributes:
        prepare_ms: from a frame to the tensor.
        kernels_ms: in the inference, those operators of which the two ways run different numbers.
        run_ms: one whole inference, profiled.
    """

    prepare_ms: float
    kernels_ms: float
    run_ms: float


class Race(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        floats, levels: the two ways.
        saved_ms: median over the rounds of what a frame takes less with levels: preparation and the operators that
            differ.
        clear: levels were faster in three of four rounds.
        more: operators of which levels run more than floats; they should run fewer only.
        rounds: how many there were.
    """

    floats: Way
    levels: Way
    saved_ms: float
    clear: bool
    more: tuple[str, ...]
    rounds: int


def race(
    floats: tuple[Path, Prepare], levels: tuple[Path, Prepare], image: Image, folder: Path, seconds: float = _SECONDS
) -> Race:
    """Let both have the same frame in turn.

    Args:
        floats: the file that takes normalised floats, and what prepares them.
        levels: the same for levels.
        image: uint8 (H, W, 3), BGR, of a camera's size.
        folder: for the profiles.
        seconds: after which no round begins, but for the first five.
    """
    frame = Frame(image, 0, 0.0, 0, "race")
    clocks = [KernelClock(model, folder) for model, _ in (floats, levels)]
    steps = [_step(prepare, clock, frame) for (_, prepare), clock in zip((floats, levels), clocks, strict=True)]
    for _ in range(_WARM_UPS):
        for step in steps:
            step()
    taken: list[list[tuple[float, float]]] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < _LEAST_ROUNDS or (len(taken) < _MOST_ROUNDS and time.perf_counter() < deadline):
        taken.append([step() for step in steps])
    float_runs, level_runs = (clock.stop()[_WARM_UPS:] for clock in clocks)
    return judged(np.array(taken), float_runs, level_runs)


def judged(taken_ms: NDArray[np.float64], float_runs: Sequence[KernelRun], level_runs: Sequence[KernelRun]) -> Race:
    """What measured rounds say.

    Args:
        taken_ms: float64 (rounds, 2, 2): of floats and of levels, preparation and run.
        float_runs: kernels of each round.
        level_runs: the same of the other way.
    """
    fewer = float_runs[0].counts - level_runs[0].counts
    more = level_runs[0].counts - float_runs[0].counts
    differ = set(fewer) | set(more)
    kernels_ms = np.array([[_ms_of(run, differ) for run in pair] for pair in zip(float_runs, level_runs, strict=True)])
    fronts_ms = taken_ms[:, :, 0] + kernels_ms
    gains_ms = fronts_ms[:, 0] - fronts_ms[:, 1]
    medians_ms = np.median(np.stack([taken_ms[:, :, 0], kernels_ms, taken_ms[:, :, 1]], axis=-1), axis=0)
    floats, levels = (Way(*(round(float(ms), 3) for ms in way)) for way in medians_ms)
    return Race(
        floats,
        levels,
        round(float(np.median(gains_ms)), 3),
        bool(np.quantile(gains_ms, _CLEARLY) > 0),
        tuple(sorted(more)),
        len(taken_ms),
    )


def _step(prepare: Prepare, clock: KernelClock, frame: Frame) -> Callable[[], tuple[float, float]]:
    def step() -> tuple[float, float]:
        start = time.perf_counter()
        tensor = prepare(frame).tensor
        middle = time.perf_counter()
        clock.run(tensor)
        return (middle - start) * 1e3, (time.perf_counter() - middle) * 1e3

    return step


def _ms_of(run: KernelRun, operators: set[str]) -> float:
    return sum(run.ms.get(name, 0.0) for name in operators)
