"""Step: one form of the model on its way, and what was measured of it."""

from __future__ import annotations

import msgspec

from edge_sdk_tools.chain import OutputChange, StepKind
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger.sound import check_bounds, settle


class Measure(msgspec.Struct, frozen=True):
    """One figure.

    Attributes:
        name: such as `top-1`, `mAP50-95`, `mIoU`, `top-1 agreement`.
        value: a share, 0-1, with its 95 % interval.
    """

    name: str
    value: Interval

    def __post_init__(self) -> None:
        settle(self)
        check_bounds("Measure.value", self.value.value, 0, 1)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the model on its way.

    Attributes:
        kind: which step it is.
        name: as the report has it: `PyTorch`, `teacher`, `FP32`, `INT8`, `ORT file`.
        what: one line about it: the model's name, the recipe, the optimisation style.
        size_mb: of its file or files, MB of 1e6 bytes.
        quality: against labels.
        agreement: with FP32, where that was compared.
        change: its quality less that of the step before on the same images, paired, -1 to 1: what is below 0 was lost.
            Of the agreement with FP32 where there are no labels.
        against: which step `change` is measured from; None for the one before.
        latency_ratio: median latency over that of FP32, in one run on the machine that built; FP32 itself has 1.
        peak_memory_mb: of a process that loads it and runs it once, at its peak, above what that process had before, MB
            of 1e6 bytes. Code of ONNX Runtime itself does not count.
        outputs: how far its raw outputs lie from those of the step before.
        left_out: why nothing was measured of it; empty where something was, or nobody knows.
        shipped: the bundle carries this step's file; of one step at most.
    """

    kind: StepKind
    name: str
    what: str = ""
    size_mb: float | None = None
    quality: Measure | None = None
    agreement: Measure | None = None
    change: Interval | None = None
    against: StepKind | None = None
    latency_ratio: float | None = None
    peak_memory_mb: float | None = None
    outputs: OutputChange | None = None
    left_out: str = ""
    shipped: bool = False

    def __post_init__(self) -> None:
        settle(self)
