"""Setting: what all attempts of a search share, here and on other machines.

Shortfall: why a measured INT8 model is not what a bundle should carry.

Owns the gates of INT8. The figure itself is judged; where its interval holds zero the shortfall may be noise, and is
said to be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.model_spec import Gates, ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import UsageError
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.datasets.dataset import Dataset, carried
from edge_sdk_tools.evaluate.evaluation import OnProgress
from edge_sdk_tools.evaluate.model import OutputMemory, Subject
from edge_sdk_tools.graph.profile import host_saturates
from edge_sdk_tools.jobs.store import key_of
from edge_sdk_tools.prove.golden import NOUNS, Proof
from edge_sdk_tools.quantize.quantize import Quantized
from edge_sdk_tools.quantize.recipe import Recipe
from edge_sdk_tools.quantize.simplified import Simplified

Board: TypeAlias = Callable[[Path], BoardEstimate | None]


class Setting:
    """Pickled it leaves the loaded model and the progress behind: who needs the model loads it again, once.

    Args:
        spec: says how outputs are read.
        target: what is built for.
        fp32: the float model, loaded.
        fp32_model: the same, as bytes.
        simplified: the same, as the quantizer wants it.
        evaluation: images that measure.
        threads: for each attempt.
        elsewhere: images are sent along, as other machines have not got them.
        folder: of the build, for the attempts' files, where they run on this machine; must exist.
        board: estimates the time of a model file on the target's core, in this process; None where nothing counts.
        on_progress: for progress bars, in this process.
    """

    def __init__(
        self,
        spec: ModelSpec,
        target: Target,
        fp32: Subject,
        fp32_model: bytes,
        simplified: Simplified,
        evaluation: Dataset,
        *,
        threads: int | None = None,
        elsewhere: bool = False,
        folder: Path | None = None,
        board: Board = lambda _model: None,
        on_progress: OnProgress = lambda _step, _done, _total: None,
    ) -> None:
        self.spec, self.target, self.simplified, self.threads = spec, target, simplified, threads
        self.evaluation = carried(evaluation) if elsewhere else evaluation
        self.folder = None if elsewhere else folder
        # All that decides what an attempt gives, but for the attempt itself.
        self.digest = key_of(
            "setting",
            [spec, target, fp32.labels, fp32.digest, simplified.tail, evaluation],
            fp32_model,
            simplified.proto.SerializeToString(deterministic=True),
            *evaluation.mask_contents(),
        )
        self._labels, self._model, self._model_digest = fp32.labels, fp32_model, fp32.digest
        self._saturates = host_saturates()
        self._loading = threading.Lock()
        self._fp32: Subject | None = _remembering(fp32)
        self.on_progress, self.board = on_progress, board

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loading": None, "_fp32": None, "on_progress": None, "board": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _loading=threading.Lock(), on_progress=_silent, board=_uncounted)

    @property
    def fp32(self) -> Subject:
        """The float model; what it answered once it is not asked again."""
        with self._loading:
            if self._fp32 is None:
                session = Session(self._model, SessionSettings(), "the FP32 model")
                self._fp32 = _remembering(
                    Subject("the FP32 model", self.spec, self._labels, session, self._model_digest)
                )
            return self._fp32

    def check_here(self, recipe: Recipe | None) -> None:
        """Refuse a machine whose integers are not those of the machine that builds.

        Raises:
            UsageError: its CPU would saturate where that one does not.
        """
        if recipe is not None and not recipe.reduce_range and host_saturates() and not self._saturates:
            raise UsageError(
                "a worker's CPU saturates sums of INT8 (x86 without VNNI), and this machine's does not: their figures "
                "are not comparable; take such workers out of the cluster"
            )


def _remembering(fp32: Subject) -> Subject:
    return Subject(fp32.name, fp32.spec, fp32.labels, fp32.session, fp32.digest, fp32.calibration, OutputMemory())


def _uncounted(_model: Path) -> None:
    """Nothing counts on a worker."""


def _silent(_step: str, _done: int, _total: int) -> None:
    """Nobody looks."""


MIN_INTEGER_MAC_SHARE = 0.9
NOTICEABLE_MS = 0.5
"""A model so small that INT8 costs it less than this is not called slower: its time is that of the calls."""

_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it
_SLOWER = 1.02  # what noise makes of two equal times
_SLOWER_ELSEWHERE = 1.5
"""What a time on this machine must show before it says something of a core whose kernels are others: ShuffleNet's INT8
takes 2.1x FP32's time on x86; counted, it takes 1.35x on a Cortex-A76 and 1.05x on an A72 (docs/arm-cost.md)."""


_SLOWER_ON_BOARD = 1.1  # the estimates' error is mostly the same for both, but not all of it


class BoardTimes(msgspec.Struct, frozen=True):
    """One inference on the target's core, estimated from counted instructions, in milliseconds on one thread."""

    core: str
    int8_ms: float
    fp32_ms: float
    int8_millions: float


class Shortfall(msgspec.Struct, frozen=True):
    """One reason why a candidate fails.

    Attributes:
        kind: `float` work that should be in integers, too little `agreement`, too large a `drop` of quality, or `slow`.
        line: with what was expected and got.
        may_be_noise: the interval of the drop holds zero: on these images nobody can tell.
    """

    kind: Literal["float", "agreement", "drop", "slow"]
    line: str
    may_be_noise: bool = False


def shortfall_of(
    proof: Proof, gates: Gates, name: str = "INT8", *, board: BoardTimes | None = None, elsewhere: bool = False
) -> Shortfall | None:
    """What keeps a model from its gates, the gravest first; None when nothing does.

    Args:
        proof: of a model beside FP32.
        gates: of model.toml.
        name: what the lines call the model's precision.
        board: estimated times on the target's core, which decide then; None where nothing counted them.
        elsewhere: whether the target's core is of another kind than this machine's.
    """
    slow = _board_time(board, name) if board else _time(proof, name, _SLOWER_ELSEWHERE if elsewhere else _SLOWER)
    return _float_work(proof) or slow or _agreement(proof, gates, name) or _drop(proof, gates)


def nothing_in_integers(quantized: Quantized) -> Shortfall | None:
    """What keeps a model from INT8 in which the quantizer found nothing to do."""
    if quantized.has_integers:
        return None
    return Shortfall("float", "nothing before its decoding tail has weights, so that nothing of it can be in integers")


def relative_drop(proof: Proof) -> float:
    """The share of FP32's quality that is lost, 0-1, below 0 where INT8 is better; of agreement without labels."""
    if not proof.evaluation.quality:
        return 1 - proof.agreement.value
    figure = proof.evaluation.quality[0]
    if figure.reference is None or figure.reference.value <= 0:
        return 0.0
    return (figure.reference.value - figure.value.value) / figure.reference.value


def _float_work(proof: Proof) -> Shortfall | None:
    if proof.integer_mac_share >= MIN_INTEGER_MAC_SHARE:
        return None
    return Shortfall(
        "float",
        f"only {proof.integer_mac_share:.1%} of the convolutions' multiply-accumulates run in integer kernels, "
        f"expected {MIN_INTEGER_MAC_SHARE:.0%} or more; this bundle would run in float without saying so",
    )


def _agreement(proof: Proof, gates: Gates, name: str) -> Shortfall | None:
    agreement = proof.agreement
    if agreement.value >= gates.int8_min_agreement - _ROUNDING:
        return None
    found = f"{agreement.value:.1%} of {agreement.reference_count} {NOUNS[agreement.metric]}"
    return Shortfall(
        "agreement",
        f"{name} agrees with FP32 on {found} in {agreement.images} images, expected "
        f"{gates.int8_min_agreement:.1%} or more",
    )


def _drop(proof: Proof, gates: Gates) -> Shortfall | None:
    drop = relative_drop(proof)
    if not proof.evaluation.quality or drop <= gates.int8_max_drop_relative + _ROUNDING:
        return None
    figure = proof.evaluation.quality[0]
    if figure.reference is None or figure.difference is None:
        return None
    return Shortfall(
        "drop",
        f"{figure.name} fell from {figure.reference.value:.1%} to {figure.value.value:.1%}, by {drop:.1%} of what FP32 "
        f"has, expected {gates.int8_max_drop_relative:.1%} or less",
        figure.difference.contains_zero,
    )


def _board_time(board: BoardTimes, name: str) -> Shortfall | None:
    if board.int8_ms <= board.fp32_ms * _SLOWER_ON_BOARD or board.int8_ms - board.fp32_ms < NOTICEABLE_MS:
        return None
    return Shortfall(
        "slow",
        f"{name} takes an estimated {board.int8_ms:.1f} ms and FP32 {board.fp32_ms:.1f} ms on one thread of "
        f"{board.core}, by counted instructions: it gains nothing",
    )


def _time(proof: Proof, name: str, slower: float) -> Shortfall | None:
    int8, fp32 = proof.latency_ms, proof.fp32_latency_ms
    if int8 <= fp32 * slower or int8 - fp32 < NOTICEABLE_MS:
        return None
    return Shortfall("slow", f"{name} takes {int8:.2f} ms and FP32 {fp32:.2f} ms here, one thread: it gains nothing")
