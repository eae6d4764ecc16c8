"""Compute the time of each kernel in a session's runs from ONNX Runtime's JSON profile.

The time of a kernel excludes the kernels that ran inside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

_KERNEL = "_kernel_time"
_RUN = "model_run"


class ProfileEvent(msgspec.Struct):
    """One line of ONNX Runtime's profile.

    Attributes:
        name: `model_run`, or `NODE_kernel_time` with the kernel's operator as args.op_name.
        ts, dur: start and duration, in microseconds.
    """

    name: str
    ts: int = 0
    dur: int = 0
    tid: int = 0
    args: dict[str, Any] = {}

    @property
    def is_kernel(self) -> bool:
        """Whether a kernel ran."""
        return self.name.endswith(_KERNEL) and "op_name" in self.args


class NodeTime(msgspec.Struct, frozen=True):
    """The time that one node takes.

    Attributes:
        node: name in the optimized graph; ONNX Runtime names fused nodes.
        ms: median milliseconds of one run, without the nodes inside it.
    """

    node: str
    operator: str
    provider: str
    ms: float
    share: float


class OperatorTime(msgspec.Struct, frozen=True):
    """The time that all nodes of one operator take on one provider."""

    operator: str
    provider: str
    nodes: int
    ms: float
    share: float


class Profile(msgspec.Struct, frozen=True):
    """The times of a session's runs, by node and by operator.

    Attributes:
        run_ms: median milliseconds of a whole run; a run without a profile is faster.
    """

    runs: int
    run_ms: float
    nodes: tuple[NodeTime, ...]
    operators: tuple[OperatorTime, ...]


def profile_of(events: Sequence[ProfileEvent], warm_up: int = 0) -> Profile:
    """Make a profile of a session's events; raise a ValueError where no run is left after the warm-up."""
    runs = sorted((event for event in events if event.name == _RUN), key=lambda event: event.ts)[warm_up:]
    if not runs:
        raise ValueError("expected one run or more")
    kernels = sorted((event for event in events if event.is_kernel), key=lambda event: (event.ts, -event.dur))
    took_us: dict[tuple[str, str, str], list[int]] = {}
    for index, run in enumerate(runs):
        inside = [kernel for kernel in kernels if run.ts <= kernel.ts < run.ts + run.dur]
        for kernel, own_us in _own_times(inside):
            key = (kernel.name.removesuffix(_KERNEL), kernel.args["op_name"], kernel.args.get("provider", ""))
            took_us.setdefault(key, [0] * len(runs))[index] += own_us
    ms = {key: float(np.median(times)) / 1e3 for key, times in took_us.items()}
    total = sum(ms.values()) or 1.0
    nodes = [NodeTime(*key, round(took, 4), took / total) for key, took in ms.items()]
    return Profile(
        runs=len(runs),
        run_ms=round(float(np.median([run.dur for run in runs])) / 1e3, 4),
        nodes=tuple(sorted(nodes, key=lambda node: -node.ms)),
        operators=_operators(nodes),
    )


def _operators(nodes: Sequence[NodeTime]) -> tuple[OperatorTime, ...]:
    of_each: dict[tuple[str, str], list[NodeTime]] = {}
    for node in nodes:
        of_each.setdefault((node.operator, node.provider), []).append(node)
    found = [
        OperatorTime(*key, len(some), round(sum(n.ms for n in some), 4), sum(n.share for n in some))
        for key, some in of_each.items()
    ]
    return tuple(sorted(found, key=lambda operator: -operator.ms))


def _own_times(kernels: Sequence[ProfileEvent]) -> Iterator[tuple[ProfileEvent, int]]:
    """Yield each kernel with its duration minus that of kernels inside it on the same thread, as in a loop's body.

    Args:
        kernels: kernels sorted by start; of those with the same start the longest first.
    """
    own_us = [kernel.dur for kernel in kernels]
    around: dict[int, list[tuple[int, int]]] = {}  # by thread: end and index of kernels that may still run
    for place, kernel in enumerate(kernels):
        end = kernel.ts + kernel.dur
        open_ones = around.setdefault(kernel.tid, [])
        while open_ones and open_ones[-1][0] < end:
            open_ones.pop()
        if open_ones and open_ones[-1][0] > kernel.ts:
            own_us[open_ones[-1][1]] -= kernel.dur
        open_ones.append((end, place))
    return zip(kernels, own_us, strict=True)
