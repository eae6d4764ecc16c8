"""The gates of INT8: find the reasons why a bundle must not contain a measured model.

The gates judge the figures themselves, all that the task's table says are gated. A small loss that may be chance is
said to be. Times on the target's core, counted or by the cost of each kernel, decide whether a model is slower than
FP32; where this machine is of the target's kind, its own do. `loss_of` says for people how bad a loss is, whatever the
gates allow.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.bundle.model_spec import Gates
from edge_sdk.core.errors import SizeGateError
from edge_sdk_tools.evaluate.evaluation import Evaluation
from edge_sdk_tools.evaluate.statistics import SHARE
from edge_sdk_tools.evaluate.tasks import AGREEMENTS
from edge_sdk_tools.prove.parity import Proof

MIN_INTEGER_MAC_SHARE = 0.9
NOTICEABLE_MS = 0.5
"""A model so small that INT8 costs it less than this is not called slower: its time is that of the calls."""
NEVER_NOISE = 2.0
"""A loss of more than so many gates is real, whatever its interval: on few images every interval holds zero."""
_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it
_SLOWER = 1.02  # what noise makes of two equal times
_SLOWER_ELSEWHERE = 1.5
"""What a time on this machine must show before it says something of a core whose kernels are others: ShuffleNet's INT8
takes 2.1x FP32's time on x86; counted, it takes 1.35x on a Cortex-A76 and 1.05x on an A72 (docs/arm-cost.md)."""
TIME_LIMITS = (_SLOWER, _SLOWER_ELSEWHERE)
"""Ratios of times on this machine by which something is decided."""
_NOTICEABLE_ON_BOARD_MS = 0.05  # the call itself is 25 thousand instructions
Band: TypeAlias = Literal["ok", "worse", "bad"]
_WORSE_LOSS, _BAD_LOSS = 0.01, 0.05
"""Shares of FP32's quality: one right answer of a hundred is what nobody sees, one of twenty what everybody does."""
_WORSE_AGREEMENT, _BAD_AGREEMENT = 0.95, 0.85
"""Without labels: of the answers that changed, some are better now. YOLOv4-tiny's INT8 finds 89.8 % of FP32's objects
again, and by labels it loses 1.4 % of the mAP50-95 and nothing of the mAP50 (64 COCO images)."""


class BoardTimes(msgspec.Struct, frozen=True):
    """One inference on the target's core, estimated in milliseconds on one thread.

    `int8_millions` are its counted instructions; None where the times come from the cost of its kernels.
    """

    core: str
    int8_ms: float
    fp32_ms: float
    int8_millions: float | None = None

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
        noise: why the drop may be chance, and what would tell; empty where it is real.
        remedy: what to do to carry INT8 all the same; empty where FP32 is the better choice.
    """

    kind: Literal["float", "agreement", "drop", "slow"]
    line: str
    noise: str = ""
    remedy: str = ""


def gate_failure_of(
    proof: Proof,
    gates: Gates,
    name: str = "INT8",
    *,
    board: BoardTimes | None = None,
    elsewhere: bool = False,
    quality_first: bool = False,
) -> GateFailure | None:
    """Return what keeps a model from its gates, the gravest first; None when nothing does.

    A model that is slow for its kernels cannot be mended, one with `quality_first` is slow for its float layers. `name`
    is what the messages call its precision. `board` has estimated times on the target's core, which decide then.
    `elsewhere` says that the target's core is of another kind than this machine's.
    """
    slow = _board_time(board, name) if board else _time(proof, name, _SLOWER_ELSEWHERE if elsewhere else _SLOWER)
    quality = _agreement(proof, gates, name) or _drop(proof, gates)
    if proof.integer_mac_share < MIN_INTEGER_MAC_SHARE:
        what = f"only {proof.integer_mac_share:.1%} of the convolutions' multiply-accumulates run in integer kernels"
        expected = f"expected {MIN_INTEGER_MAC_SHARE:.0%} or more; this bundle would run in float without saying so"
        return GateFailure("float", f"{what}, {expected}")
    return quality or slow if quality_first else slow or quality


def claim_failure_of(proof: Proof, gates: Gates, where: str) -> GateFailure | None:
    """Return what takes a choice back on images that chose nothing, or a doubt, which has `noise`; else None.

    `where` says for people which images these are. They judge one model once. It is therefore refused for a loss that
    is proved, or bad, and not for one that a search would rather avoid: of good models that would refuse one of six.
    """
    most = max(NEVER_NOISE * gates.int8_max_drop_relative, _BAD_LOSS)
    found = _agreement(proof, gates, "INT8") or _drop(proof, gates, most)
    return msgspec.structs.replace(found, line=f"{where}, {found.line}") if found else None


def check_size(gates: Gates, size_mb: float) -> None:
    """Raise SizeGateError (exit code 5) for a model that is too large."""
    if gates.max_size_mb is not None and size_mb > gates.max_size_mb:
        raise SizeGateError(f"the model has {size_mb:.2f} MB, gates.max_size_mb allows {gates.max_size_mb}")


def relative_drop(proof: Proof) -> float:
    """Return the largest share of a gated figure, or without labels of agreement, that is lost; below 0 for a gain."""
    return max((figure.drop for figure in proof.evaluation.gated), default=1 - proof.agreement.value)


def loss_of(evaluation: Evaluation) -> tuple[Band, str]:
    """Judge a model beside FP32, and name the figure that suffers most; these limits do not move with the gates.

    All figures by labels count, gated or not; without labels the agreement does. A model that loses a class is bad,
    whatever the figures of all classes say.
    """
    figures = [figure for figure in evaluation.quality if figure.unit == SHARE and figure.reference is not None]
    if figures:
        worst = max(figures, key=lambda figure: figure.drop)
        band = _band(worst.drop, _WORSE_LOSS, _BAD_LOSS)
        said = f"{worst.name} lost {worst.drop:.1%} of what FP32 has" if worst.drop > 0 else "no figure fell"
        limits = f"ok up to {_WORSE_LOSS:.0%}, bad above {_BAD_LOSS:.0%}"
        more = "; that may be chance" if band != "ok" and worst.may_be_noise else ""
    else:
        agreement = evaluation.agreement[0]
        band = _band(1 - agreement.value.value, 1 - _WORSE_AGREEMENT, 1 - _BAD_AGREEMENT)
        said = f"{agreement.name} {agreement.value.value:.1%}"
        limits = f"ok from {_WORSE_AGREEMENT:.0%}, bad below {_BAD_AGREEMENT:.0%}"
        low = agreement.value.on_other_images((0.0, 1.0)).low
        chance = "" if low >= _BAD_AGREEMENT else f"; that may be chance: as many other images may give {low:.0%}"
        more = chance if band == "ok" else "; labelled images would tell whether its answers are worse or only others"
    words = f"{said} ({limits}){more}"
    return ("bad", f"{evaluation.lost_class}; {words}") if evaluation.lost_class else (band, words)


def _band(lost: float, worse: float, bad: float) -> Band:
    return "ok" if lost <= worse + _ROUNDING else "worse" if lost <= bad + _ROUNDING else "bad"


def _agreement(proof: Proof, gates: Gates, name: str) -> GateFailure | None:
    agreement = proof.agreement
    if agreement.value >= gates.int8_min_agreement - _ROUNDING:
        return None
    found = f"{agreement.value:.1%} of {agreement.reference_count} {AGREEMENTS[agreement.metric].noun}"
    return GateFailure(
        "agreement",
        f"{name} agrees with FP32 on {found} in {agreement.images} images, expected "
        f"{gates.int8_min_agreement:.1%} or more",
        remedy="label the images, which tells whether its answers are worse or only others (docs/data.md), or set "
        f"gates.int8_min_agreement = {math.floor(agreement.value * 100) / 100:g} in model.toml",
    )


def _drop(proof: Proof, gates: Gates, most: float | None = None) -> GateFailure | None:
    """`most` is the largest relative loss that may be noise."""
    limit, images, noise = gates.int8_max_drop_relative, proof.evaluation.images, ""
    most = NEVER_NOISE * limit if most is None else most
    fallen = [figure for figure in proof.evaluation.gated if figure.drop > limit + _ROUNDING]
    worst = max(fallen, key=lambda figure: figure.drop, default=None)
    if worst is None or worst.reference is None:
        return None
    needed = images * (worst.detectable / (max(limit, 0.001) * worst.reference.value)) ** 2
    give = f"give about {float(f'{needed:.2g}'):,.0f} labelled images, which would show a loss of {limit:.1%}"
    is_noisy = all(figure.may_be_noise for figure in fallen)
    if worst.drop <= most + _ROUNDING and is_noisy:
        noise = (
            f"that may be noise: {images} images show a loss in four of five cases from {100 * worst.detectable:.1f} "
            f"points on; {give}"
        )
    return GateFailure(
        "drop",
        f"{worst.name} fell from {worst.reference.value:.1%} to {worst.value.value:.1%}, by {worst.drop:.1%} of what "
        f"FP32 has, expected {limit:.1%} or less",
        noise,
        (give if is_noisy else "calibrate with more images like those that the camera sees")
        + f", or set gates.int8_max_drop_relative = {math.ceil(worst.drop * 100) / 100:g} in model.toml",
    )


def _board_time(board: BoardTimes, name: str) -> GateFailure | None:
    if board.int8_ms - board.fp32_ms < _NOTICEABLE_ON_BOARD_MS:
        return None
    source = "the cost of its kernels, not counted" if board.int8_millions is None else "counted instructions"
    return GateFailure(
        "slow",
        f"{name} takes an estimated {board.int8_ms:.1f} ms and FP32 {board.fp32_ms:.1f} ms on one thread of "
        f"{board.core}, {board.int8_ms / board.fp32_ms:.2f} times as long, by {source}: it gains nothing",
    )


def _time(proof: Proof, name: str, slower: float) -> GateFailure | None:
    int8, fp32 = proof.latency_ms, proof.fp32_latency_ms
    if int8 <= fp32 * slower or int8 - fp32 < NOTICEABLE_MS:
        return None
    return GateFailure("slow", f"{name} takes {int8:.2f} ms and FP32 {fp32:.2f} ms here, one thread: it gains nothing")
