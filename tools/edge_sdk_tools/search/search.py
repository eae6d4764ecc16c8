"""The search for a recipe: full INT8 first, and only what that loses is bought back.

Owns the order of the trials: other ranges cost no time and come before float layers; float layers come in the order of
what they are worth. Where nothing holds, or FP32 is faster, the choice is FP32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.candidates import Workshop
from edge_sdk_tools.image_split import ImageSplit
from edge_sdk_tools.prove import prove
from edge_sdk_tools.quantize import (
    CALIBRATIONS,
    Activations,
    Quantized,
    Recipe,
    doubts_about_calibration,
)
from edge_sdk_tools.search.attempt import Attempt, Made, make
from edge_sdk_tools.search.sensitivity import Ranking, Sensitivity, rank_layers
from edge_sdk_tools.search.setting import Setting
from edge_sdk_tools.search.shortfall import nothing_in_integers, relative_drop
from edge_sdk_tools.search.time_judge import TimeJudge
from edge_sdk_tools.search.trial import Trial

T = TypeVar("T")

_JUDGED_IMAGES = 4  # by which layers are ranked
_TIMES = 2  # that INT8 must be slower before it is called so: a machine that is busy for a moment is not asked again
_MOST_FLOAT = 0.6  # of all work: with more in float there is no INT8 model left


class Search(msgspec.Struct, frozen=True, eq=False):
    """What was tried.

    Attributes:
        trials: in their order.
        chosen: one of them; None when none is good enough.
        sensitivities: of layers, worst first; empty when nobody had to ask.
        calibration_doubts: what to know of the images that calibrated.
    """

    trials: tuple[Trial, ...]
    chosen: Trial | None
    sensitivities: tuple[Sensitivity, ...]
    calibration_doubts: tuple[str, ...] = ()

    @property
    def doubt(self) -> str | None:
        """What was chosen although it falls short, because that may be noise."""
        shortfall = self.chosen.shortfall if self.chosen else None
        if shortfall is None:
            return None
        noisy = sum(trial.shortfall is not None and trial.shortfall.may_be_noise for trial in self.trials)
        which = f" (of {noisy} such recipes the one that agrees most with FP32 is carried)" if noisy > 1 else ""
        noise = "that may be noise, as the interval of the difference holds zero: give more images"
        return f"{shortfall.line}; {noise}{which}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """All that a reader should know before believing."""
        unproved = self.chosen is not None and not self.chosen.quantized.macs
        lines = ("it has no convolutions, by whose kernels integers are proved" if unproved else None, self.doubt)
        return (*self.calibration_doubts, *(line for line in lines if line))

    @property
    def best(self) -> Trial:
        """The trial that lost least."""
        return min(self.trials, key=lambda trial: relative_drop(trial.proof))


class RecipeSearch:
    """One search.

    Args:
        setting: what all attempts share.
        activations: of the calibration images.
        images: those, and the ones that measure.
        workshop: makes and measures the models.
        folder: for the models; must exist.
    """

    def __init__(
        self, setting: Setting, activations: Activations, images: ImageSplit, workshop: Workshop, folder: Path
    ) -> None:
        self._setting, self._activations, self._images = setting, activations, images
        self._workshop, self._folder = workshop, folder
        self._times = TimeJudge(setting)
        self._trials: list[Trial] = []
        self._sensitivities: tuple[Sensitivity, ...] = ()

    def run(self, first: Recipe) -> Search:
        """Search from a first recipe.

        Raises:
            EdgeError: as quantizing, converting and proving do.
        """
        chosen = self._chosen(first)
        setting = self._setting
        labels = setting.fp32.labels if setting.spec.task == "classification" else ()
        doubts = doubts_about_calibration(self._activations, labels, self._images.calibration_classes)
        return Search(tuple(self._trials), chosen, self._sensitivities, doubts)

    def _chosen(self, first: Recipe) -> Trial | None:
        [trial] = self._try([first])
        if trial.shortfall is None:
            return trial
        if trial.shortfall.kind in ("slow", "float"):
            return None  # other ranges take the same time, and float layers more
        others = [c for c in CALIBRATIONS if c != first.calibration]
        for batch in self._batches([msgspec.structs.replace(first, calibration=c) for c in others]):
            for trial in self._try(batch):
                if trial.shortfall is None:
                    return trial
        best = min(self._trials, key=lambda one: relative_drop(one.proof))
        if best.shortfall is not None and best.shortfall.may_be_noise:
            return closest_to_fp32(self._trials)
        apart = msgspec.structs.replace(best.quantized.recipe, shared_scales=False)
        if best.quantized.recipe.shared_scales and self._joins():
            [trial] = self._try([apart])
            if trial.shortfall is None:
                return trial
            best = min((best, trial), key=lambda one: relative_drop(one.proof))
        return self._with_float_layers(best.quantized.recipe)

    def _joins(self) -> bool:
        """Whether there is anything that could share a scale."""
        return any(node.op_type == "Concat" for node in self._setting.simplified.proto.graph.node)

    def _with_float_layers(self, recipe: Recipe) -> Trial | None:
        """Twice as many each time, until it holds; then as few as do."""
        ranges = self._activations.ranges(recipe.calibration)
        ranking = Ranking(self._setting.simplified, recipe, ranges, self._tensors())
        ranked = rank_layers(ranking, self._workshop, self._setting.on_progress)
        self._sensitivities = tuple(ranked)
        counts = [1]
        while counts[-1] < len(ranked):
            counts.append(min(2 * counts[-1], len(ranked)))
        counts = [count for count in counts if ranked and _is_worth_trying(ranked[:count])]
        failed = 0
        for batch in self._batches(counts):
            for count, trial in zip(batch, self._try([_float(recipe, ranked[:n]) for n in batch]), strict=True):
                if trial.shortfall is None:
                    return self._with_fewer(recipe, ranked, failed, count, trial)
                if trial.shortfall.kind == "slow":
                    return None
                failed = count
        return None

    def _with_fewer(self, recipe: Recipe, ranked: list[Sensitivity], failed: int, count: int, held: Trial) -> Trial:
        while count - failed > 1:
            middle = (count + failed) // 2
            [trial] = self._try([_float(recipe, ranked[:middle])])
            if trial.shortfall is None:
                held, count = trial, middle
            else:
                failed = middle
        return held

    def _batches(self, items: list[T]) -> Iterator[list[T]]:
        """As many as are done at once: nobody makes a model that is not needed."""
        size = self._workshop.at_once
        for start in range(0, len(items), size):
            yield items[start : start + size]

    def _try(self, recipes: list[Recipe]) -> list[Trial]:
        setting = self._setting
        done = len(self._trials)
        setting.on_progress("try recipes", done, done + len(recipes))
        attempts = [Attempt(r, self._activations.ranges(r.calibration)) for r in recipes]
        made = self._workshop.run(
            make,
            attempts,
            shared=setting,
            key=lambda attempt: attempt.key(setting),
            result=Made,
            on_done=lambda one: setting.on_progress("try recipes", done + one.done, done + len(recipes)),
        )
        # One after another, when nothing else runs here: their times are compared.
        return [self._proved(recipe, one) for recipe, one in zip(recipes, made, strict=True)]

    def _proved(self, recipe: Recipe, made: Made) -> Trial:
        setting = self._setting
        folder = self._folder / f"trial_{len(self._trials)}"
        folder.mkdir()
        path, converted = made.unpack(folder)
        quantized = Quantized(path, recipe, made.float_nodes, made.macs, made.has_integers)
        for _ in range(_TIMES):
            proof = prove(made.measured, setting.spec, setting.fp32, converted, setting.on_progress)
            shortfall, board = self._times.judge(proof, recipe, converted)
            if board is not None or shortfall is None or shortfall.kind != "slow":
                break
        trial = Trial(quantized, converted, proof, nothing_in_integers(quantized) or shortfall, board)
        self._trials.append(trial)
        return trial

    def _tensors(self) -> list[Tensor]:
        prepare = Prepare(self._setting.spec.input)
        files = self._images.calibration.spread(_JUDGED_IMAGES).images
        return [prepare.normalise(prepare.resize(file.read())).copy() for file in files]


def _is_worth_trying(ranked: list[Sensitivity]) -> bool:
    return sum(one.macs_share for one in ranked) <= _MOST_FLOAT


def closest_to_fp32(trials: Sequence[Trial]) -> Trial:
    """Of those whose loss may be noise the one that agrees most with FP32.

    Their figures on labels differ by noise alone; agreement has less of it, because every detection counts.
    """
    noisy = [trial for trial in trials if trial.shortfall is not None and trial.shortfall.may_be_noise]
    return max(noisy, key=lambda trial: trial.proof.agreement.value)


def _float(recipe: Recipe, ranked: list[Sensitivity]) -> Recipe:
    return msgspec.structs.replace(recipe, float_nodes=tuple(name for one in ranked for name in one.nodes))
