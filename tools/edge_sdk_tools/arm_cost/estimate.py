"""What counted instructions may take on a board, with the error that such a figure has; the build's gate of latency.

Cycles per instruction stand in a table of the cores that have been compared with real boards; docs/arm-cost.md tells
how each figure came about, and compares sums of kernels with counted networks.

Where a build has no counter (no setup, another core), `kernels_ms` adds up what each of ONNX Runtime's kernels takes:
one run of the file here names its kernels and the shapes that they make, and tables say how many instructions that
takes on a Cortex-A72, without dot products of bytes, and on a Cortex-A76, with them. Any other core counts as one of
these two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError, LatencyGateError, ModelError
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, Counts, find_counter
from edge_sdk_tools.graph.profile import ProfiledSession, extension_nodes
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


class Estimate(BoardEstimate, frozen=True):
    """Estimated time of one inference on one thread of a board, with what it was computed from.

    Cycles are those of that core and mix of integer and floating-point multiplications, the clock is the board's
    highest: a hot board has less. By `worst_error` such an estimate was off at worst where a board's time was known.
    """

    cycles_per_instruction: float
    clock_mhz: int
    worst_error: float = WORST_ERROR
    method: str = (
        "counted instructions x cycles per instruction / clock, one thread; estimated, not measured on a board"
    )


def estimate(counts: Counts, target: Target) -> Estimate | None:
    """Estimate the time of one inference, without preparation and decoding.

    Return None where the target has another core or an unknown clock, or its core was never compared with a board.
    """
    cycles = CYCLES.get(target.cpu) if counts.cpu == target.cpu else None
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


def estimate_board(
    job_runner: JobRunner, model: Path, target: Target, counter: Counter | None, on_progress: OnProgress
) -> BoardEstimate | None:
    """Estimate the latency of one inference on the target, once for each file; None where it cannot be counted.

    A ModelError says that the emulated core cannot run the model, so that no device could.
    """
    if counter is None:
        return None

    def counted() -> BoardEstimate:
        with one_step(on_progress, "count for the board"):
            found = estimate(counter.count(model, target.cpu, time_limit_s=_TIME_LIMIT_S), target)
        if found is None:
            raise EdgeError(f"the time of {target.cpu} cannot be estimated")
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


class LayerCost(NamedTuple):
    """Instructions that a convolution takes: for each multiply-accumulate, and for each value that it makes.

    `tap` counts for each pixel and tap of a kernel larger than 1x1, where the input is copied before the products,
    `depthwise` in place of `mac` where every channel is a group of its own.
    """

    mac: float
    value: float
    tap: float
    depthwise: float


# Kernels of ONNX Runtime 1.31.1, counted one by one in MobileNetV2 and YOLOv8n.
_INTEGER_LAYERS = {
    "cortex-a72": LayerCost(mac=0.25, value=6.0, tap=33.0, depthwise=0.75),
    "cortex-a76": LayerCost(mac=0.093, value=3.2, tap=33.0, depthwise=0.7),
}
_FLOAT_LAYERS = LayerCost(mac=0.36, value=3.0, tap=20.0, depthwise=1.5)
_STRIDED_DEPTHWISE = 8.0  # in float with a stride: a matrix product of one row for each channel
_DEPTHWISE_CHANNEL = 1500  # in float, in addition, for each channel
_DEEP = 64  # channels from which integer kernels read through pointers and copy nothing
_VALUES = {
    "QLinearSigmoid": 4.1,
    "QLinearLeakyRelu": 4.1,
    "QLinearMul": 2.9,
    "QLinearAdd": 3.1,
    "QLinearConcat": 1.2,
    "QuantizeLinear": 2.8,
    "DequantizeLinear": 1.5,
    "Split": 2.0,
    "Softmax": 18.6,
    "QuickGelu": 9.0,
    "Sigmoid": 8.1,
    "Concat": 0.6,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), 0.0),
}
"""Instructions for each value that a kernel makes, the same on both cores."""
_OTHER = 2.0
_SCATTERED = 48.0  # of a Transpose of five axes that moves the last one, as a shuffle of channels does
_PRODUCTS = ("Gemm", "MatMul", "QGemm", "QLinearMatMul")

_WITHOUT_DOT = ("cortex-a35", "cortex-a53", "cortex-a57", "cortex-a72", "cortex-a73")
_CLOCK_MHZ = 1500  # for a family of cores, or a board whose clock is not known: only ratios count there


def cores_of(target: Target) -> tuple[str, ...]:
    """Return the counted cores that stand for the target's core; both of them for a family of cores."""
    if not target.cpu:
        return tuple(CYCLES)
    return ("cortex-a72",) if target.cpu in _WITHOUT_DOT else ("cortex-a76",)


def kernels_ms(model: Path, floats: onnx.ModelProto, target: Target, core: str) -> float:
    """Return the milliseconds that one inference takes on one thread, if the target's core is like `core`.

    `floats` is the simplified float model from which the file was made; it has the shapes of the weights, which a
    profile does not show once they are packed.
    """
    session = ProfiledSession(model, model.parent)
    session.run(np.zeros(session.input_shape, session.input_dtype))
    shapes = {weight.name: tuple(weight.dims) for weight in floats.graph.initializer}
    weights = {n.name: shapes[n.input[1]] for n in floats.graph.node if n.op_type == "Conv" and n.input[1] in shapes}
    cycles = sum(_cycles(event, weights, core) for event in session.stop_profile() if event.is_kernel)
    return cycles / 1e3 / (target.clock_mhz or _CLOCK_MHZ)


def _cycles(kernel: ProfileEvent, weights: Mapping[str, tuple[int, ...]], core: str) -> float:
    operator = str(kernel.args["op_name"])
    is_integer = operator.startswith(("QLinear", "QGemm"))
    each = CYCLES[core].integer if is_integer else CYCLES[core].floating
    cost = _INTEGER_LAYERS[core] if is_integer else _FLOAT_LAYERS
    read, made = (_shape(kernel, side) for side in ("input_type_shape", "output_type_shape"))
    # Fusions append to a node's name, so that the longest name wins.
    layer = max((name for name in weights if kernel.name.startswith(f"{name}_")), key=len, default="")
    if "Conv" in operator and layer:
        instructions = _instructions(cost, weights[layer], math.prod(read), math.prod(made), is_integer=is_integer)
    elif operator in _PRODUCTS:
        instructions = cost.mac * read[-1] * math.prod(made)
    elif operator == "Transpose" and len(made) > 4 and read[-1] != made[-1]:
        instructions = _SCATTERED * math.prod(made)
    else:
        instructions = _VALUES.get(operator, _OTHER) * math.prod(made)
    return each * instructions


def _instructions(cost: LayerCost, weight: tuple[int, ...], read: int, made: int, *, is_integer: bool) -> float:
    filters, channels, *kernel = weight
    taps, pixels = math.prod(kernel), made / filters
    if channels == 1 and filters > 1:
        if is_integer:
            return made * taps * cost.depthwise
        return made * taps * (_STRIDED_DEPTHWISE if read > made else cost.depthwise) + filters * _DEPTHWISE_CHANNEL
    copied = taps if taps > 1 and not (is_integer and channels >= _DEEP) else 0
    return cost.mac * made * channels * taps + cost.value * made + cost.tap * copied * pixels


def _shape(kernel: ProfileEvent, side: str) -> tuple[int, ...]:
    """Return the shape of the first tensor with axes that a kernel reads or makes; (0,) if there is none."""
    shapes = [tuple(shape) for types in kernel.args.get(side, []) for shape in types.values() if shape]
    return shapes[0] if shapes else (0,)
