"""The search for a recipe: full INT8 first, and only what that loses is bought back.

Other ranges cost no time and come before float layers; float layers come in the order of their noise. Where
nothing holds, or FP32 is faster, nothing is chosen and the bundle carries FP32.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from edge_sdk.bundle.model_spec import Gates
from edge_sdk.core.errors import AccuracyGateError
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.tasks.spec import TRAITS
from edge_sdk_tools.datasets.reading import ImageSplit
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES
from edge_sdk_tools.evaluate.statistics import cross_validated
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, Activations, calibration_warnings
from edge_sdk_tools.quantize.quantize import Recipe
from edge_sdk_tools.search.gates import BoardTimes, GateFailure, claim_failure_of, gate_failure_of, relative_drop
from edge_sdk_tools.search.sensitivity import Ranking, Sensitivity, rank_layers, with_inner_nodes
from edge_sdk_tools.search.variant import ModelVariant, VariantSpec, make_variants

T = TypeVar("T")
_JUDGED_IMAGES = 4  # by which layers are ranked
_MOST_FLOAT = 0.6  # of all work: with more in float there is no INT8 model left
_UNSTABLE = "what all images chose may lose less; give more images"


class Search(msgspec.Struct, frozen=True, eq=False):
    """The outcome of a search: all trials in their order, and the chosen one; None when none is good enough.

    `sensitivities` has the layers, worst first; it is empty if they were not measured. `warnings` say what to know of
    the float model, and of the images that calibrated. `claimed` is the INT8 model that is shown, measured on images
    that chose nothing, or by cross-validation (`is_crossed`); None where neither could be.
    """

    trials: tuple[ModelVariant, ...]
    chosen: ModelVariant | None
    sensitivities: tuple[Sensitivity, ...]
    warnings: tuple[str, ...] = ()
    claimed: ModelVariant | None = None
    is_crossed: bool = False

    @property
    def int8(self) -> ModelVariant:
        """The INT8 model that is shown: the one that was chosen, or else the one that lost least."""
        return self.claimed or self.chosen or min(self.trials, key=lambda trial: relative_drop(trial.proof))

    @property
    def fallback_reason(self) -> str | None:
        """Why nothing was chosen; None where something was."""
        if self.chosen is not None:
            return None
        tried = f"none of {len(self.trials)} INT8 recipes holds; of the best: " if len(self.trials) > 1 else ""
        gate_failure = self.int8.gate_failure
        return tried + "; ".join(filter(None, (gate_failure.line, gate_failure.remedy))) if gate_failure else ""

    @property
    def doubt(self) -> str | None:
        """Why the chosen model falls short, where that may be noise."""
        gate_failure = self.chosen.gate_failure if self.chosen else None
        if gate_failure is None:
            return None
        noisy = 0 if self.claimed else sum(_may_be_noise(trial) for trial in self.trials)
        which = f" (of {noisy} such recipes the one that agrees most with FP32 is carried)" if noisy > 1 else ""
        return f"{gate_failure.line}; {gate_failure.noise}{which}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """All that a reader should know before believing the result."""
        board, is_unproved = self.int8.board, self.chosen is not None and not self.chosen.macs
        unproved = "it has no convolutions, by whose kernels integers are proved" if is_unproved else ""
        return (*self.warnings, *(line for line in (unproved, board.doubt if board else "", self.doubt) if line))

    def require_int8(self) -> None:
        """Raise AccuracyGateError where nothing was chosen."""
        if self.chosen is not None:
            return
        proof = self.int8.proof
        few = f" (so few images judge nothing: give {ENOUGH_IMAGES})" if proof.agreement.images < ENOUGH_IMAGES else ""
        # What a wrong description of the input looks like is plain from what FP32 itself sees.
        seen = "".join(f"In {s.image} FP32 sees {s.fp32} and INT8 {s.int8}. " for s in proof.samples[:1])
        raise AccuracyGateError(
            f"{self.fallback_reason}{few}. {seen}Check input.mean, std, color and resize first, "
            "or leave out --require-int8 and carry FP32"
        )


def claim(search: Search, spec: VariantSpec, activations: Activations) -> Search:
    """Measure what a search found again, on the images of `spec`, which chose nothing: a loss takes the choice back."""
    trial = search.int8
    [again] = make_variants(spec, [trial.recipe], lambda recipe: activations.ranges(recipe.calibration))
    where = f"on {again.proof.evaluation.images} images that chose nothing"
    gate_failure = claim_failure_of(again.proof, spec.spec.gates, where) if search.chosen else trial.gate_failure
    again = msgspec.structs.replace(again, gate_failure=gate_failure, board=trial.board)
    holds = search.chosen is not None and (gate_failure is None or bool(gate_failure.noise))
    return msgspec.structs.replace(search, chosen=again if holds else None, claimed=again)


def cross_validate(search: Search, gates: Gates, *, elsewhere: bool) -> Search:
    """Cross-validate the claimed loss: choose a trial on each half of the images and measure it on the other half.

    The claim is the mean of both measurements. The recipe that ships was chosen on all images and stays; as the halves
    may have chosen another one, a loss beyond a gate becomes a warning. With a single trial nothing is changed.
    """
    chosen, trials = search.chosen, search.trials
    if chosen is None or len(trials) < 2 or not all(trial.proof.halves for trial in trials):
        return search
    quality = []
    for choosing, measuring in ((0, 1), (1, 0)):
        judged = []
        for trial in trials:
            proof = trial.proof.on_half(choosing)
            failure = gate_failure_of(proof, gates, board=trial.board, elsewhere=elsewhere, quality_first=True)
            judged.append(msgspec.structs.replace(trial, proof=proof, gate_failure=failure))
        best = chosen_among(judged) or min(judged, key=lambda one: relative_drop(one.proof))
        quality.append(trials[judged.index(best)].proof.on_half(measuring).evaluation.quality)
    whole = chosen.proof.evaluation
    figures = tuple(cross_validated(*figures) for figures in zip(whole.quality, *quality, strict=True))
    proof = msgspec.structs.replace(chosen.proof, evaluation=msgspec.structs.replace(whole, quality=figures))
    failure = claim_failure_of(proof, gates, f"by cross-validation on {whole.images} images")
    if failure is not None:
        failure = msgspec.structs.replace(failure, noise=failure.noise or _UNSTABLE)
    claimed = msgspec.structs.replace(chosen, proof=proof, gate_failure=failure)
    return msgspec.structs.replace(search, chosen=claimed, claimed=claimed, is_crossed=True)


class RecipeSearch:
    """A running search for a recipe; `warnings` are those about the float model."""

    def __init__(
        self, spec: VariantSpec, activations: Activations, images: ImageSplit, warnings: tuple[str, ...] = ()
    ) -> None:
        self._spec, self._activations, self._images, self._warnings = spec, activations, images, warnings
        self._trials: list[ModelVariant] = []
        self._sensitivities: tuple[Sensitivity, ...] = ()
        self._board: BoardTimes | None = None  # of a model without float layers, whatever its ranges

    def run(self, first: Recipe) -> Search:
        """Search from a first recipe."""
        self._try_all(first)
        is_classifier = TRAITS[self._spec.spec.task].is_of_whole_picture
        labels = self._spec.fp32.labels if is_classifier else ()
        doubts = calibration_warnings(self._activations, labels, self._images.calibration_classes)
        return Search(tuple(self._trials), chosen_among(self._trials), self._sensitivities, (*self._warnings, *doubts))

    def _try_all(self, first: Recipe) -> None:
        """Try recipes until one holds, or none is left that might."""
        [trial] = self._try([first])
        if trial.gate_failure is None or trial.gate_failure.kind in ("slow", "float"):
            return  # other ranges take the same time, and float layers more
        others = [c for c in CALIBRATIONS if c != first.calibration]
        if self._hold([msgspec.structs.replace(first, calibration=c) for c in others]):
            return
        best = min(self._trials, key=lambda one: relative_drop(one.proof))
        if _may_be_noise(best):
            return
        if self._joins() and self._hold([msgspec.structs.replace(_base(self._trials), shared_scales=False)]):
            return
        self._try_float_layers(_base(self._trials))

    def _hold(self, recipes: list[Recipe]) -> bool:
        """Try recipes until one holds; return whether one does."""
        return any(trial.gate_failure is None for batch in self._batches(recipes) for trial in self._try(batch))

    def _joins(self) -> bool:
        return any(node.op_type == "Concat" for node in self._spec.simplified.proto.graph.node)

    def _try_float_layers(self, recipe: Recipe) -> None:
        """Twice as many float layers each time, until quality holds; then as few as do, and without the costly ones."""
        ranges = self._activations.ranges(recipe.calibration)
        ranking = Ranking(self._spec.simplified, recipe, ranges, self._tensors())
        ranked = rank_layers(ranking, self._spec.job_runner, self._spec.on_progress)
        self._sensitivities = tuple(ranked)
        counts = [1]
        while counts[-1] < len(ranked):
            counts.append(min(2 * counts[-1], len(ranked)))
        counts = [n for n in counts if ranked and sum(one.macs_share for one in ranked[:n]) <= _MOST_FLOAT]
        failed = 0
        for batch in self._batches(counts):
            for count, trial in zip(batch, self._try([self._float(recipe, ranked[:n]) for n in batch]), strict=True):
                if _keeps_quality(trial):  # a slow one too: more float layers take more time
                    self._with_fewer(recipe, ranked, failed, count)
                    return
                failed = count
        self._try_other_ranges(ranked, counts)

    def _try_other_ranges(self, ranked: list[Sensitivity], counts: list[int]) -> None:
        """Try the float layers that lost least with other ranges, also of the inputs of a Concat one by one."""
        tried = [trial for trial in self._trials if trial.recipe.float_nodes]
        if not tried:
            return
        least = min(range(len(tried)), key=lambda i: relative_drop(tried[i].proof))
        best = tried[least].recipe
        others = [msgspec.structs.replace(best, calibration=c) for c in CALIBRATIONS if c != best.calibration]
        if self._joins() and best.shared_scales:
            others.insert(0, msgspec.structs.replace(best, shared_scales=False))
        for trial in (one for batch in self._batches(others) for one in self._try(batch) if _keeps_quality(one)):
            for count in reversed(counts[:least]):  # fewer may keep it too, in less time
                [fewer] = self._try([self._float(trial.recipe, ranked[:count])])
                if not _keeps_quality(fewer):
                    break
            if any(one.gate_failure is None for one in self._trials):
                return

    def _with_fewer(self, recipe: Recipe, ranked: list[Sensitivity], failed: int, count: int) -> None:
        while count - failed > 1:
            middle = (count + failed) // 2
            [trial] = self._try([self._float(recipe, ranked[:middle])])
            failed, count = (failed, middle) if _keeps_quality(trial) else (middle, count)
        # A prefix may hold layers that its last one has made needless; without the last, which is needed, it was tried.
        *others, last = ranked[:count]
        if others:
            costliest = max(others, key=lambda one: one.macs_share)
            self._try([self._float(recipe, [one for one in (*others, last) if one is not costliest])])

    def _float(self, recipe: Recipe, layers: Sequence[Sensitivity]) -> Recipe:
        names = [name for one in layers for name in one.nodes]
        return msgspec.structs.replace(recipe, float_nodes=with_inner_nodes(self._spec.simplified.proto, names))

    def _batches(self, items: list[T]) -> Iterator[list[T]]:
        """Yield batches of as many candidates as run at once, so that no model is made in vain."""
        size = self._spec.job_runner.executor.at_once
        for start in range(0, len(items), size):
            yield items[start : start + size]

    def _try(self, recipes: list[Recipe]) -> list[ModelVariant]:
        spec, done, total = self._spec, len(self._trials), len(self._trials) + len(recipes)

        def show(more: int, _total: int) -> None:
            spec.on_progress("try recipes", done + more, total)

        show(0, total)
        made = make_variants(spec, recipes, lambda recipe: self._activations.ranges(recipe.calibration), show)
        judged = [self._judged(one) for one in made]
        self._trials += judged
        return judged

    def _judged(self, variant: ModelVariant) -> ModelVariant:
        """Add what keeps a model from its gates."""
        gate_failure, board = self._gate_failure(variant)
        if not variant.has_integers:
            what = "nothing before its decoding tail has weights, so that nothing of it can be in integers"
            gate_failure = GateFailure("float", what)
        return msgspec.structs.replace(variant, gate_failure=gate_failure, board=board)

    def _gate_failure(self, variant: ModelVariant) -> tuple[GateFailure | None, BoardTimes | None]:
        """Return what keeps a model from its gates, and its times on the board; None where nothing counted them."""
        spec, proof = self._spec, variant.proof
        gates, elsewhere = spec.spec.gates, spec.target.machine != platform.machine()
        if not variant.recipe.float_nodes:
            if not self._trials:  # the first; other ranges take the same time
                self._board = spec.board_times(variant.converted.model)
            board = self._board
        else:
            gate_failure = gate_failure_of(proof, gates, elsewhere=elsewhere, quality_first=True)
            if self._board is None or not (gate_failure is None or gate_failure.kind == "slow"):
                return gate_failure, None
            # Counting takes its time, so that only a model that may be carried is worth it.
            board = spec.board_times(variant.converted.model)
        return gate_failure_of(proof, gates, board=board, elsewhere=elsewhere), board

    def _tensors(self) -> list[Tensor]:
        prepare, images = Prepare(self._spec.spec.input), self._images.calibration.spread(_JUDGED_IMAGES).images
        return [prepare.normalise(prepare.resize(image.read())).copy() for image in images]


def _base(trials: Sequence[ModelVariant]) -> Recipe:
    """Return the first recipe, unless another loses less than half: if one layer ruins all, other gains are chance."""
    best = min(trials, key=lambda one: relative_drop(one.proof))
    return (best if relative_drop(best.proof) < relative_drop(trials[0].proof) / 2 else trials[0]).recipe


def _keeps_quality(trial: ModelVariant) -> bool:
    return trial.gate_failure is None or trial.gate_failure.kind == "slow"


def _may_be_noise(trial: ModelVariant) -> bool:
    return trial.gate_failure is not None and bool(trial.gate_failure.noise)


def chosen_among(trials: Sequence[ModelVariant]) -> ModelVariant | None:
    """Return the candidate that is carried: that with fewest float nodes of those that hold.

    Where none does, it is the one that agrees most with FP32, of those whose loss may be noise; None without any.
    """
    held = [trial for trial in trials if trial.gate_failure is None]
    if held:
        return min(held, key=lambda trial: len(trial.float_nodes))
    # Agreement has less noise than figures on labels, because every detection counts.
    return max(filter(_may_be_noise, trials), key=lambda trial: trial.proof.agreement.value, default=None)
