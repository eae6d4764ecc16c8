"""The build step `board`: estimate the latency of the final model on the target's core, and apply the latency gate.

The estimate has a range for its error. It needs a counter of instructions; without one there is no estimate.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError, LatencyGateError, ModelError
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, Cpu, find_counter
from edge_sdk_tools.arm_cost.estimate import estimate
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.graph.profile import extension_nodes
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.jobs.store import key_of

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
        on_progress("count for the board", 0, 1)
        found = estimate(counter.count(model, cpu, time_limit_s=_TIME_LIMIT_S), target)
        on_progress("count for the board", 1, 1)
        if found is None:
            raise EdgeError(f"the time of {cpu} cannot be estimated")
        return BoardEstimate(
            core=found.core,
            million_instructions=found.million_instructions,
            latency_ms=found.latency_ms,
            low_ms=found.low_ms,
            high_ms=found.high_ms,
        )

    try:
        key = key_of("board", model.read_bytes(), target, counter.key)
        return job_runner.once(counted, key=key, result=BoardEstimate)
    except ModelError:
        raise
    except EdgeError:
        return None  # a failure of the emulator says nothing about the model


def check_latency(estimated: BoardEstimate | None, target: Target, budget_ms: float) -> None:
    """Raise LatencyGateError where even the low end of the estimate, over all threads, exceeds the budget."""
    if estimated is None or estimated.low_ms / target.intra_op_num_threads <= budget_ms:
        return
    threads = target.intra_op_num_threads
    raise LatencyGateError(
        f"one inference takes an estimated {estimated.low_ms:.0f} to {estimated.high_ms:.0f} ms on one thread of "
        f"{estimated.core} ({estimated.million_instructions:.0f} million instructions), so {threads} threads cannot "
        f"keep the budget of {budget_ms:g} ms; take a smaller model or input, or raise [budget] latency_ms"
    )
