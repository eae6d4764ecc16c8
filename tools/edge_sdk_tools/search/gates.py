"""The gates of INT8: find the reasons why a bundle must not contain a measured model.

The gates judge the figure itself; if its interval contains zero, the message adds that the failure may be noise. The
instructions counted for the board decide whether a model is slower than FP32; without a count, this machine's times do.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from edge_sdk.bundle.model_spec import Gates
from edge_sdk.core.errors import SizeGateError
from edge_sdk_tools.evaluate.tasks import AGREEMENTS
from edge_sdk_tools.prove.golden import Proof

MIN_INTEGER_MAC_SHARE = 0.9
NOTICEABLE_MS = 0.5
"""A model so small that INT8 costs it less than this is not called slower: its time is that of the calls."""

_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it
_SLOWER = 1.02  # what noise makes of two equal times
_SLOWER_ELSEWHERE = 1.5
"""What a time on this machine must show before it says something of a core whose kernels are others: ShuffleNet's INT8
takes 2.1x FP32's time on x86; counted, it takes 1.35x on a Cortex-A76 and 1.05x on an A72 (docs/arm-cost.md)."""


_NOTICEABLE_ON_BOARD_MS = 0.05  # the call itself is 25 thousand instructions


class BoardTimes(msgspec.Struct, frozen=True):
    """One inference on the target's core, estimated in milliseconds on one thread.

    `int8_millions` are its counted instructions; None where the times come from the cost of its kernels.
    """

    core: str
    int8_ms: float
    fp32_ms: float
    int8_millions: float | None = None

    @property
    def source(self) -> str:
        """Say what the times come from."""
        return "the cost of its kernels, not counted" if self.int8_millions is None else "counted instructions"

    @property
    def doubt(self) -> str:
        """Say what to know of times that were not counted; empty for those that were."""
        if self.int8_millions is not None:
            return ""
        return (
            f"nothing was counted on {self.core}: by the cost of its kernels, INT8 takes "
            f"{self.int8_ms / self.fp32_ms:.2f} times as long as FP32 there; `edge-sdk bench` on the board tells"
        )


class GateFailure(msgspec.Struct, frozen=True):
    """One reason why a candidate fails.

    Attributes:
        kind: `float` work that should be in integers, too little `agreement`, too large a `drop` of quality, or `slow`.
        may_be_noise: whether the interval of the drop contains zero, so that these images prove no drop.
    """

    kind: Literal["float", "agreement", "drop", "slow"]
    line: str
    may_be_noise: bool = False


def gate_failure_of(
    proof: Proof, gates: Gates, name: str = "INT8", *, board: BoardTimes | None = None, elsewhere: bool = False
) -> GateFailure | None:
    """Return what keeps a model from its gates, the gravest first; None when nothing does.

    `name` is what the messages call its precision. `board` has estimated times on the target's core, which decide
    then. `elsewhere` says that the target's core is of another kind than this machine's.
    """
    slow = _board_time(board, name) if board else _time(proof, name, _SLOWER_ELSEWHERE if elsewhere else _SLOWER)
    return _float_work(proof) or slow or _agreement(proof, gates, name) or _drop(proof, gates)


def check_size(gates: Gates, size_mb: float) -> None:
    """Raise SizeGateError (exit code 5) for a model that is too large."""
    if gates.max_size_mb is not None and size_mb > gates.max_size_mb:
        raise SizeGateError(f"the model has {size_mb:.2f} MB, gates.max_size_mb allows {gates.max_size_mb}")


NOTHING_IN_INTEGERS = GateFailure(
    "float", "nothing before its decoding tail has weights, so that nothing of it can be in integers"
)
"""Of a model in which the quantizer found nothing to do."""


def relative_drop(proof: Proof) -> float:
    """Return the share of FP32's quality, or without labels of agreement, that is lost; below 0 for a gain."""
    if not proof.evaluation.quality:
        return 1 - proof.agreement.value
    figure = proof.evaluation.quality[0]
    if figure.reference is None or figure.reference.value <= 0:
        return 0.0
    return (figure.reference.value - figure.value.value) / figure.reference.value


def _float_work(proof: Proof) -> GateFailure | None:
    if proof.integer_mac_share >= MIN_INTEGER_MAC_SHARE:
        return None
    return GateFailure(
        "float",
        f"only {proof.integer_mac_share:.1%} of the convolutions' multiply-accumulates run in integer kernels, "
        f"expected {MIN_INTEGER_MAC_SHARE:.0%} or more; this bundle would run in float without saying so",
    )


def _agreement(proof: Proof, gates: Gates, name: str) -> GateFailure | None:
    agreement = proof.agreement
    if agreement.value >= gates.int8_min_agreement - _ROUNDING:
        return None
    found = f"{agreement.value:.1%} of {agreement.reference_count} {AGREEMENTS[agreement.metric].noun}"
    return GateFailure(
        "agreement",
        f"{name} agrees with FP32 on {found} in {agreement.images} images, expected "
        f"{gates.int8_min_agreement:.1%} or more",
    )


def _drop(proof: Proof, gates: Gates) -> GateFailure | None:
    drop = relative_drop(proof)
    if not proof.evaluation.quality or drop <= gates.int8_max_drop_relative + _ROUNDING:
        return None
    figure = proof.evaluation.quality[0]
    if figure.reference is None or figure.difference is None:
        return None
    return GateFailure(
        "drop",
        f"{figure.name} fell from {figure.reference.value:.1%} to {figure.value.value:.1%}, by {drop:.1%} of what FP32 "
        f"has, expected {gates.int8_max_drop_relative:.1%} or less",
        figure.difference.contains_zero,
    )


def _board_time(board: BoardTimes, name: str) -> GateFailure | None:
    if board.int8_ms - board.fp32_ms < _NOTICEABLE_ON_BOARD_MS:
        return None
    return GateFailure(
        "slow",
        f"{name} takes an estimated {board.int8_ms:.1f} ms and FP32 {board.fp32_ms:.1f} ms on one thread of "
        f"{board.core}, {board.int8_ms / board.fp32_ms:.2f} times as long, by {board.source}: it gains nothing",
    )


def _time(proof: Proof, name: str, slower: float) -> GateFailure | None:
    int8, fp32 = proof.latency_ms, proof.fp32_latency_ms
    if int8 <= fp32 * slower or int8 - fp32 < NOTICEABLE_MS:
        return None
    return GateFailure("slow", f"{name} takes {int8:.2f} ms and FP32 {fp32:.2f} ms here, one thread: it gains nothing")
