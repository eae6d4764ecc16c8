"""The search for a recipe: full INT8 first, and only what that loses is bought back.

Owns the order of the trials: other ranges cost no time and come before float layers; float layers come in the order of
what they are worth. Where nothing holds, or FP32 is faster, the choice is FP32.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.frame import Tensor
from edge_sdk.model_spec import ModelSpec
from edge_sdk.prepare import Prepare
from edge_sdk.target import Target
from edge_sdk_tools.convert import convert
from edge_sdk_tools.evaluate import OnProgress, Subject
from edge_sdk_tools.image_split import ImageSplit
from edge_sdk_tools.prove import prove
from edge_sdk_tools.quantize import (
    CALIBRATIONS,
    Activations,
    Recipe,
    Simplified,
    doubts_about_calibration,
    quantize,
)
from edge_sdk_tools.search.sensitivity import Sensitivity, rank_layers
from edge_sdk_tools.search.shortfall import nothing_in_integers, relative_drop, shortfall_of
from edge_sdk_tools.search.trial import Trial

_JUDGED_IMAGES = 4  # by which layers are ranked
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
        return f"{shortfall.line}; that may be noise, as the interval of the difference holds zero: give more images"

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
        spec: says how outputs are read, and what may be lost.
        target: what is built for.
        fp32: the float model, loaded.
        simplified: the same, as the quantizer wants it.
        activations: of the calibration images.
        images: those that measure.
        folder: for the models; must exist.
        on_progress: for progress bars.
    """

    def __init__(
        self,
        spec: ModelSpec,
        target: Target,
        fp32: Subject,
        simplified: Simplified,
        activations: Activations,
        images: ImageSplit,
        folder: Path,
        on_progress: OnProgress,
    ) -> None:
        self._spec, self._target, self._fp32 = spec, target, fp32
        self._simplified, self._activations, self._images = simplified, activations, images
        self._folder, self._on_progress = folder, on_progress
        self._trials: list[Trial] = []
        self._sensitivities: tuple[Sensitivity, ...] = ()

    def run(self, first: Recipe) -> Search:
        """Search from a first recipe.

        Raises:
            EdgeError: as quantizing, converting and proving do.
        """
        chosen = self._chosen(first)
        labels = self._fp32.labels if self._spec.task == "classification" else ()
        doubts = doubts_about_calibration(self._activations, labels, self._images.calibration_classes)
        return Search(tuple(self._trials), chosen, self._sensitivities, doubts)

    def _chosen(self, first: Recipe) -> Trial | None:
        trial = self._try(first)
        if trial.shortfall is None:
            return trial
        if trial.shortfall.kind in ("slow", "float"):
            return None  # other ranges take the same time, and float layers more
        for calibration in CALIBRATIONS:
            if calibration != first.calibration:
                trial = self._try(msgspec.structs.replace(first, calibration=calibration))
                if trial.shortfall is None:
                    return trial
        best = min(self._trials, key=lambda one: relative_drop(one.proof))
        if best.shortfall is not None and best.shortfall.may_be_noise:
            return best
        return self._with_float_layers(best.quantized.recipe)

    def _with_float_layers(self, recipe: Recipe) -> Trial | None:
        """Twice as many each time, until it holds; then as few as do."""
        ranked = rank_layers(
            self._simplified,
            self._activations,
            recipe,
            self._tensors(),
            lambda done, total: self._on_progress("rank layers", done, total),
        )
        self._sensitivities = tuple(ranked)
        held: Trial | None = None
        failed, count = 0, 1
        while ranked and self._is_worth_trying(ranked[: min(count, len(ranked))]):
            trial = self._try(_float(recipe, ranked[:count]))
            if trial.shortfall is None:
                held = trial
                break
            if trial.shortfall.kind == "slow" or count >= len(ranked):
                return None
            failed, count = count, min(2 * count, len(ranked))
        while held is not None and count - failed > 1:
            middle = (count + failed) // 2
            trial = self._try(_float(recipe, ranked[:middle]))
            if trial.shortfall is None:
                held, count = trial, middle
            else:
                failed = middle
        return held

    def _is_worth_trying(self, ranked: list[Sensitivity]) -> bool:
        return sum(one.macs_share for one in ranked) <= _MOST_FLOAT

    def _try(self, recipe: Recipe) -> Trial:
        folder = self._folder / f"trial_{len(self._trials)}"
        folder.mkdir()
        done = len(self._trials)
        self._on_progress("quantize", done, done + 1)
        quantized = quantize(self._simplified, self._activations, recipe, folder / "int8.onnx")
        converted = convert(quantized.path, self._target, folder)
        self._on_progress("quantize", done + 1, done + 1)
        proof = prove(self._spec, self._fp32, quantized.macs, converted, self._images.evaluation, self._on_progress)
        shortfall = nothing_in_integers(quantized) or shortfall_of(proof, self._spec.gates)
        trial = Trial(quantized, converted, proof, shortfall)
        self._trials.append(trial)
        return trial

    def _tensors(self) -> list[Tensor]:
        prepare = Prepare(self._spec.input)
        files = self._images.calibration.spread(_JUDGED_IMAGES).images
        return [prepare.normalise(prepare.resize(file.read())).copy() for file in files]


def _float(recipe: Recipe, ranked: list[Sensitivity]) -> Recipe:
    return msgspec.structs.replace(recipe, float_nodes=tuple(name for one in ranked for name in one.nodes))
