"""What counted instructions may take on a board, with the error that such a figure has; the build's gate of latency.

Cycles per instruction stand in a table of the cores that have been compared with real boards; docs/arm-cost.md tells
how each figure came about. `floating` was fitted on boards: fourteen ncnn networks, counted like this, against their
published one-thread times on a Raspberry Pi 4 and 5; one factor a core was off by 6-9 % in the median and by 24-35 % at
worst. `integer` was not fitted: it is `floating` times what a scheduling model of the core (llvm-mca) makes of an
instruction in ONNX Runtime's INT8 kernels against one in its FP32 kernels:

    Cortex-A72   FP32 .67 .81 .81   INT8 .52 .49 .48 (U8S8) .46 .45 .47 (S8S8)   ratio of the means .63
    Cortex-A76   FP32 .36 .34 .41 .42   INT8 .41 .39 .39 .39 (U8S8) .42 .40 .38 .39 (S8S8)   ratio of the means 1.03

(MobileNetV2, on A76 also EfficientNet-Lite0, then ResNet50 and YOLOv8n.)
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import onnx

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError, LatencyGateError, ModelError
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, Counts, Cpu, find_counter
from edge_sdk_tools.graph.profile import extension_nodes
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import JobRunner, OnProgress, one_step

WORST_ERROR = 1.35
"""Factor by which the fit was off for the worst of its networks, either way. No bound: the next one may be worse."""


class CyclesPerInstruction(NamedTuple):
    """What an instruction of ONNX Runtime's FP32 and INT8 kernels costs, in cycles."""

    floating: float
    integer: float


CYCLES = {
    "cortex-a72": CyclesPerInstruction(floating=1.33, integer=0.84),
    "cortex-a76": CyclesPerInstruction(floating=0.57, integer=0.59),
}
"""By core, in qemu's spelling. A core that is not here has been compared with no board, and gets no estimate."""


_METHOD = "counted instructions x cycles per instruction / clock, one thread; estimated, not measured on a board"


class Estimate(BoardEstimate, frozen=True):
    """Estimated time of one inference on one thread of a board, with what it was computed from.

    Attributes:
        cycles_per_instruction: of that core and mix of integer and floating-point multiplications.
        clock_mhz: the board's highest clock; a hot board has less.
        worst_error: the factor by which such an estimate was off at worst where a board's time was known.
    """

    cycles_per_instruction: float
    clock_mhz: int
    worst_error: float = WORST_ERROR
    method: str = _METHOD


def estimate(counts: Counts, target: Target) -> Estimate | None:
    """Estimate the time of one inference, without preparation and decoding.

    Returns:
        None where the target's clock is not known, or its core was never compared with a board.

    Raises:
        ValueError: the counts are of another core.
    """
    if counts.cpu != target.cpu:
        raise ValueError(f"counted on {counts.cpu}, but {target.name} has {target.cpu or 'no core of its own'}")
    cycles = CYCLES.get(target.cpu)
    if cycles is None or not target.clock_mhz:
        return None
    each = cycles.floating + (cycles.integer - cycles.floating) * counts.integer_share
    latency_ms = counts.millions * each / target.clock_mhz * 1e3
    return Estimate(
        core=target.cpu,
        million_instructions=counts.millions,
        cycles_per_instruction=each,
        clock_mhz=target.clock_mhz,
        latency_ms=latency_ms,
        low_ms=latency_ms / WORST_ERROR,
        high_ms=latency_ms * WORST_ERROR,
    )


_TIME_LIMIT_S = 300.0


def board_counter(target: Target, model: onnx.ModelProto) -> Counter | None:
    """Return the counter of instructions for the target's core; None where there is none for it.

    A model with operators of onnxruntime-extensions has none: the emulated board does not have these.
    """
    return find_counter() if target.cpu in CPUS and not extension_nodes(model) else None


def core_of(target: Target) -> Cpu | None:
    """Return the target's core, where it can be emulated."""
    return next((cpu for cpu in CPUS if cpu == target.cpu), None)


def estimate_board(
    job_runner: JobRunner, model: Path, target: Target, counter: Counter | None, on_progress: OnProgress
) -> BoardEstimate | None:
    """Estimate the latency of one inference on the target, once for each file; None where it cannot be counted.

    Raises:
        ModelError: the emulated core cannot run the model, so that no device could.
    """
    cpu = core_of(target)
    if counter is None or cpu is None:
        return None

    def counted() -> BoardEstimate:
        with one_step(on_progress, "count for the board"):
            found = estimate(counter.count(model, cpu, time_limit_s=_TIME_LIMIT_S), target)
        if found is None:
            raise EdgeError(f"the time of {cpu} cannot be estimated")
        return msgspec.convert(found, BoardEstimate, from_attributes=True)

    try:
        key = key_of("board", model.read_bytes(), target, counter.key)
        return job_runner.once(counted, key=key, result=BoardEstimate)
    except ModelError:
        raise
    except EdgeError:
        return None  # a failure of the emulator says nothing about the model


def check_latency(estimated: BoardEstimate | None, target: Target, budget_ms: float) -> None:
    """Raise LatencyGateError where even the low end of the estimate, over all threads, exceeds the budget."""
    threads = target.intra_op_num_threads
    if estimated is None or estimated.low_ms / threads <= budget_ms:
        return
    raise LatencyGateError(
        f"one inference takes an estimated {estimated.low_ms:.0f} to {estimated.high_ms:.0f} ms on one thread of "
        f"{estimated.core} ({estimated.million_instructions:.0f} million instructions), so {threads} threads cannot "
        f"keep the budget of {budget_ms:g} ms; take a smaller model or input, or raise [budget] latency_ms"
    )
