"""Attempt: one model made and measured, all but its time; a job that may be done anywhere.

The search for a recipe: full INT8 first, and only what that loses is bought back.

Owns the order of the trials: other ranges cost no time and come before float layers; float layers come in the order of
what they are worth. Where nothing holds, or FP32 is faster, the choice is FP32.

Whether INT8 takes longer than FP32.

By the board's counted instructions where something counts them, else by this machine's clock.

Trial: one recipe, built and measured.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import onnx

from edge_sdk.core.errors import OutputError
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.bundle_folder import is_full
from edge_sdk_tools.datasets.split import ImageSplit
from edge_sdk_tools.jobs.runner import Workshop
from edge_sdk_tools.jobs.store import key_of
from edge_sdk_tools.prove.golden import Measured, Proof, measure, prove
from edge_sdk_tools.quantize.calibration import CALIBRATIONS, Activations, doubts_about_calibration
from edge_sdk_tools.quantize.convert import Converted, convert, float_file
from edge_sdk_tools.quantize.quantize import Quantized, quantize
from edge_sdk_tools.quantize.recipe import Recipe
from edge_sdk_tools.search.context import (
    BoardTimes,
    Setting,
    Shortfall,
    nothing_in_integers,
    relative_drop,
    shortfall_of,
)
from edge_sdk_tools.search.sensitivity import Ranking, Sensitivity, rank_layers


class Attempt(msgspec.Struct, frozen=True):
    """A candidate that is to be made.

    Attributes:
        recipe: how to quantize; None for the float model as it is.
        ranges: low and high of every activation, by its name.
    """

    recipe: Recipe | None
    ranges: dict[str, tuple[float, float]] = {}

    def key(self, setting: Setting) -> str:
        """Names it by all that decides what comes of it."""
        return key_of("attempt", setting.digest, self)


class Made(msgspec.Struct, frozen=True):
    """A candidate that was made.

    Attributes:
        onnx: the model before conversion.
        file, suffix: what a bundle would carry, and how its name ends.
        operators: as `Converted` has them.
        float_nodes, macs, has_integers: as `Quantized` has them.
        measured: all but its time.
    """

    onnx: bytes
    file: bytes
    suffix: str
    operators: tuple[str, ...]
    float_nodes: tuple[str, ...]
    macs: dict[str, int]
    has_integers: bool
    measured: Measured

    def unpack(self, folder: Path) -> tuple[Path, Converted]:
        """Write the files into a folder, which must exist: the model before conversion and after it.

        Raises:
            OSError: the disk is full.
        """
        model, carried = folder / "model.onnx", folder / f"carried{self.suffix}"
        model.write_bytes(self.onnx)
        carried.write_bytes(self.file)
        return model, Converted(carried, self.operators)


def make(attempt: Attempt, setting: Setting) -> Made:
    """Quantize, convert and measure.

    Raises:
        EdgeError: as these do.
        OutputError: the disk is full, or refuses.
    """
    setting.check_here(attempt.recipe)
    try:
        with tempfile.TemporaryDirectory(prefix="attempt-", dir=setting.folder) as name:
            return _make(attempt, setting, Path(name))
    except OSError as cause:
        why = "no space left on the disk" if is_full(cause) else cause.strerror or str(cause)
        where = setting.folder or tempfile.gettempdir() if is_full(cause) else cause.filename
        raise OutputError(f"{where}: {why}; nothing was changed") from cause


def _make(attempt: Attempt, setting: Setting, folder: Path) -> Made:
    path = folder / "model.onnx"
    float_nodes: tuple[str, ...] = ()
    macs: dict[str, int] = {}
    has_integers = False
    if attempt.recipe is None:
        onnx.save(setting.simplified.proto, path)
        converted = float_file(path, setting.target, folder)
    else:
        quantized = quantize(setting.simplified, attempt.ranges, attempt.recipe, path)
        float_nodes, macs, has_integers = quantized.float_nodes, quantized.macs, quantized.has_integers
        converted = convert(path, setting.target, folder)
    measured = measure(
        setting.spec, setting.fp32, macs, converted, setting.evaluation, setting.on_progress, setting.threads
    )
    return Made(
        path.read_bytes(),
        converted.model.read_bytes(),
        converted.model.suffix,
        converted.operators,
        float_nodes,
        macs,
        has_integers,
        measured,
    )


class TimeJudge:
    """Judges the trials of one search; the board's times of a model without float layers are counted once.

    Args:
        setting: of the search.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._whole: BoardTimes | None = None
        self._is_counted = False

    def judge(self, proof: Proof, recipe: Recipe, converted: Converted) -> tuple[Shortfall | None, BoardTimes | None]:
        """What keeps a model from its gates, and its times on the board; None where nothing counted them.

        Args:
            proof: of the model.
            recipe: how it was quantized.
            converted: its file.
        """
        gates = self._setting.spec.gates
        elsewhere = self._setting.target.machine != platform.machine()
        if not recipe.float_nodes:
            board = self._of_whole(converted)
            return shortfall_of(proof, gates, board=board, elsewhere=elsewhere), board
        shortfall = shortfall_of(proof, gates, elsewhere=elsewhere)
        if self._whole is None or not (shortfall is None or shortfall.kind == "slow"):
            return shortfall, None
        # Counting takes its time, so that only a model that may be carried is worth it.
        board = self._counted(converted, self._whole.fp32_ms)
        return shortfall_of(proof, gates, board=board, elsewhere=elsewhere), board

    def _of_whole(self, converted: Converted) -> BoardTimes | None:
        """Other ranges take the same time."""
        if not self._is_counted:
            self._is_counted = True
            fp32 = self._setting.board(self._setting.simplified.path)
            self._whole = self._counted(converted, fp32.latency_ms) if fp32 else None
        return self._whole

    def _counted(self, converted: Converted, fp32_ms: float) -> BoardTimes | None:
        int8 = self._setting.board(converted.model)
        return BoardTimes(int8.core, int8.latency_ms, fp32_ms, int8.million_instructions) if int8 else None


class Trial(msgspec.Struct, frozen=True, eq=False):
    """The outcome of one recipe.

    Attributes:
        quantized: the QDQ model.
        converted: in ORT format.
        proof: what was measured of that.
        shortfall: why it does not hold; None when it does.
        board: its times on the target's core; None where nothing counted them.
    """

    quantized: Quantized
    converted: Converted
    proof: Proof
    shortfall: Shortfall | None
    board: BoardTimes | None = None

    @property
    def row(self) -> Tried:
        """The recipe's row in the report."""
        evaluation = self.proof.evaluation
        figure = next(iter((*evaluation.quality, *evaluation.agreement)))
        return Tried(
            recipe=self.quantized.recipe.text,
            metric=figure.name,
            value=figure.value.value,
            drop_relative=relative_drop(self.proof),
            latency_ratio=self.proof.latency_ms / self.proof.fp32_latency_ms,
            problem=self.shortfall.line if self.shortfall else None,
        )


class Tried(msgspec.Struct, frozen=True):
    """A trial, for people.

    Attributes:
        recipe: in words.
        metric, value: what was judged, 0-1.
        drop_relative: the share of FP32's value that is lost, below 0 where INT8 is better; 1 - value without labels.
        latency_ratio: to FP32 on this machine, one thread.
        problem: why it does not hold; None when it does.
        carried: the bundle has it; where it does not hold all the same, that may be noise.
    """

    recipe: str
    metric: str
    value: float
    drop_relative: float
    latency_ratio: float
    problem: str | None
    carried: bool = False


T = TypeVar("T")

_JUDGED_IMAGES = 4  # by which layers are ranked
_TIMES = 2  # that INT8 must be slower before it is called so: a machine that is busy for a moment is not asked again
_MOST_FLOAT = 0.6  # of all work: with more in float there is no INT8 model left


class Search(msgspec.Struct, frozen=True, eq=False):
    """The outcome of a search: everything that was tried.

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
    """A running search for a recipe.

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
        """Yield batches of as many candidates as run at once, so that no model is made in vain."""
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
    """Return the candidate that agrees most with FP32, among those whose loss may be noise.

    Their figures on labels differ by noise alone; agreement has less of it, because every detection counts.
    """
    noisy = [trial for trial in trials if trial.shortfall is not None and trial.shortfall.may_be_noise]
    return max(noisy, key=lambda trial: trial.proof.agreement.value)


def _float(recipe: Recipe, ranked: list[Sensitivity]) -> Recipe:
    return msgspec.structs.replace(recipe, float_nodes=tuple(name for one in ranked for name in one.nodes))
