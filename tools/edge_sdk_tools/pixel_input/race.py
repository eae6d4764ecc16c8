"""The race: a frame two ways in turn, on this machine.

What differs between the two is a part of a millisecond in an inference of ten; the noise of a whole inference would
hide it. So preparation is timed whole, and of the inference those kernels of which the two run different numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Frame, Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.pixel_input.kernels import KernelClock, KernelRun

_LEAST_ROUNDS = 3
_MOST_ROUNDS = 12
_SECONDS = 0.5
_FRAMES = 5  # prepared in each round, for one that is run: they cost little and are noisier
_DOUBT = 0.05  # that the median of a gain lies below its lower bound


class Way(msgspec.Struct, frozen=True):
    """Medians on this machine, one thread, in milliseconds.

    Attributes:
        prepare_ms: from a frame to the tensor.
        kernels_ms: in the inference, those kernels of which the two ways run different numbers.
        run_ms: one whole inference, profiled.
    """

    prepare_ms: float
    kernels_ms: float
    run_ms: float


class Race(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        floats, levels: the two ways.
        saved_ms: what a frame takes less with levels: medians of preparation and of the kernels that differ.
        clear: the lower bounds of both medians, of 95 % confidence, come to a gain.
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
    floats: tuple[KernelClock, Prepare],
    levels: tuple[KernelClock, Prepare],
    image: Image,
    seconds: float = _SECONDS,
) -> Race:
    """Let both have the same frame in turn.

    Args:
        floats: the file that takes normalised floats, or whatever is to be beaten, warmed up, and what prepares it; its
            clock is stopped.
        levels: the same for levels.
        image: uint8 (H, W, 3), BGR, of a camera's size.
        seconds: of CPU time, after which no round begins, but for the first three.
    """
    frame = Frame(image, 0, 0.0, 0, "race")
    prepare_ms: list[list[float]] = []
    run_ms: list[list[float]] = []
    for _, prepare in (floats, levels):
        prepare(frame)  # the first frame of a size paints the padding
    deadline = time.process_time() + seconds  # on a busy machine seconds pass without a round
    while len(run_ms) < _LEAST_ROUNDS or (len(run_ms) < _MOST_ROUNDS and time.process_time() < deadline):
        prepare_ms += [[_prepared_ms(prepare, frame) for _, prepare in (floats, levels)] for _ in range(_FRAMES)]
        run_ms.append([_run_ms(clock, prepare) for clock, prepare in (floats, levels)])
    float_runs, level_runs = (clock.stop()[-len(run_ms) :] for clock, _ in (floats, levels))
    return judged(np.array(prepare_ms), np.array(run_ms), float_runs, level_runs)


def judged(
    prepare_ms: NDArray[np.float64],
    run_ms: NDArray[np.float64],
    float_runs: Sequence[KernelRun],
    level_runs: Sequence[KernelRun],
) -> Race:
    """What measured rounds say.

    Args:
        prepare_ms: float64 (frames, 2): of floats and of levels.
        run_ms: float64 (rounds, 2), likewise.
        float_runs: kernels of each round.
        level_runs: the same of the other way.
    """
    more = level_runs[0].operators - float_runs[0].operators
    of_floats, of_levels = float_runs[0].counts, level_runs[0].counts
    differ = {*(of_levels - of_floats), *(of_floats - of_levels)}
    kernels_ms = np.array(
        [[sum(run.ms.get(name, 0.0) for name in differ) for run in runs] for runs in (float_runs, level_runs)]
    ).T
    parts_ms = (prepare_ms, kernels_ms, run_ms)
    floats, levels = (Way(*(round(float(np.median(part[:, way])), 3) for part in parts_ms)) for way in (0, 1))
    gains_ms = [part[:, 0] - part[:, 1] for part in (prepare_ms, kernels_ms)]
    return Race(
        floats,
        levels,
        round(float(sum(np.median(gains) for gains in gains_ms)), 3),
        sum(_lower_bound(gains) for gains in gains_ms) > 0,
        tuple(sorted(more)),
        len(run_ms),
    )


def _lower_bound(values: NDArray[np.float64]) -> float:
    """Of the median: the order statistic below which it lies in one of twenty cases; of few values the least.

    The number of values below the median is binomial, whatever the noise looks like.
    """
    count = len(values)
    below = np.cumsum([math.comb(count, number) for number in range(count + 1)]) / 2**count
    rank = int(np.searchsorted(below, _DOUBT)) - 1
    return float(np.sort(values)[max(rank, 0)])


def _prepared_ms(prepare: Prepare, frame: Frame) -> float:
    start = time.perf_counter()
    prepare(frame)
    return (time.perf_counter() - start) * 1e3


def _run_ms(clock: KernelClock, prepare: Prepare) -> float:
    start = time.perf_counter()
    clock.run(prepare.tensor)
    return (time.perf_counter() - start) * 1e3
