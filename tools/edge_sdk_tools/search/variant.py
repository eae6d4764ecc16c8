"""Build and measure the model file of a recipe, for the search and for every variant of a bundle.

    VariantSpec + Recipe ── build_variant ──▶ BuiltModel ── time beside FP32 ──▶ ModelVariant

`build_variant` is a job: it may run in this process, in another one, or on another machine, and its result is
remembered between builds. Times are compared with each other, so they are measured here, when nothing else runs.
"""

from __future__ import annotations

import functools
import platform
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.bundle.manifest import Agreement, BoardEstimate, InputTensor, Precision
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.arm_cost.counter import Counter
from edge_sdk_tools.arm_cost.estimate import cores_of, estimate_board, kernels_ms
from edge_sdk_tools.bundle_folder import is_full
from edge_sdk_tools.check.gate import CheckedModel
from edge_sdk_tools.datasets.dataset import Dataset, carried
from edge_sdk_tools.evaluate.evaluation import Evaluation
from edge_sdk_tools.evaluate.model import OutputMemory, Subject, from_checked
from edge_sdk_tools.evaluate.statistics import Figure
from edge_sdk_tools.graph.profile import host_saturates, timing_settings
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import JobRunner, OnProgress, silent
from edge_sdk_tools.prove.parity import Proof, measure, timed
from edge_sdk_tools.quantize.convert import MAKERS, Converted, Ranges, float_file
from edge_sdk_tools.quantize.quantize import Quantized, Recipe
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.search.gates import TIME_LIMITS, BoardTimes, GateFailure


class VariantSpec:
    """All that the variants of one input size have in common; a ModelError says that the model cannot be simplified.

    Pickling leaves out the loaded model and the progress; a process that needs the model loads it once.
    """

    def __init__(
        self,
        spec: ModelSpec,
        checked: CheckedModel,
        target: Target,
        evaluation: Dataset,
        job_runner: JobRunner,
        counter: Counter | None,
        folder: Path,
        on_progress: OnProgress,
    ) -> None:
        self.spec, self.target = spec, target
        self.folder: Path | None = folder
        self.job_runner, self.counter, self.on_progress = job_runner, counter, on_progress
        self.threads = job_runner.executor.threads_per_job
        self._is_elsewhere = job_runner.is_elsewhere
        self.evaluation = carried(evaluation) if job_runner.is_elsewhere else evaluation
        fp32 = from_checked("the FP32 model", spec, checked)
        fp32.memory = OutputMemory()
        self.simplified = simplify(checked.proto, folder)
        self._model, self._labels, self._sha256 = checked.proto.SerializeToString(), fp32.labels, fp32.digest
        # All that decides the result of a recipe, except the recipe itself.
        self.digest = key_of(
            "variant-spec",
            checked.labels.data,
            [msgspec.structs.replace(spec, model=""), target, fp32.labels, self.simplified.tail, evaluation],
            self._model,
            self.simplified.proto.SerializeToString(deterministic=True),
            *evaluation.mask_contents(),
        )
        self.saturates = host_saturates()
        self.reduce_range = target.reduce_range or self.saturates
        self._loading = threading.Lock()
        self._fp32: Subject | None = fp32

    def on(self, images: Dataset) -> VariantSpec:
        """Return a copy with other evaluation images."""
        other = object.__new__(VariantSpec)
        vars(other).update(
            vars(self),
            evaluation=carried(images) if self._is_elsewhere else images,
            digest=key_of("variant-spec-on", self.digest, images, *images.mask_contents()),
        )
        return other

    def __getstate__(self) -> dict[str, Any]:
        here = dict.fromkeys(("job_runner", "counter", "on_progress", "_fp32", "timed_fp32", "_loading"))
        # A cluster's workers have disks of their own.
        return {**vars(self), **here, "folder": None if self._is_elsewhere else self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _loading=threading.Lock(), on_progress=silent)

    @property
    def fp32(self) -> Subject:
        """The float model, which keeps its outputs for inputs that come again."""
        with self._loading:
            if self._fp32 is None:
                name = "the FP32 model"
                session, memory = Session(self._model, SessionSettings(), name), OutputMemory()
                self._fp32 = Subject(name, self.spec, self._labels, session, self._sha256, memory=memory)
            return self._fp32

    @functools.cached_property
    def timed_fp32(self) -> Session:
        """The float model beside which others are timed, as a bundle would carry it.

        It is simplified: PicoDet takes 1.5 times as long while each HardSwish is four nodes, as it came. The target's
        provider runs it where it is installed.
        """
        return Session(self.simplified.path.read_bytes(), timing_settings(self.target), "the FP32 model")

    @property
    def latency_budget_ms(self) -> float:
        """The budget from capture to outbox in milliseconds: model.toml's, or else the target's."""
        return self.spec.budget.latency_ms or self.target.latency_budget_ms

    def estimate(self, model: Path) -> BoardEstimate | None:
        """Estimate a model file's time on the target's core; None without a counter for that core."""
        return estimate_board(self.job_runner, model, self.target, self.counter, self.on_progress)

    @functools.cached_property
    def _counted_floats(self) -> BoardEstimate | None:
        return self.estimate(self.simplified.path)

    def board_times(self, int8: Path) -> BoardTimes | None:
        """Compare a converted INT8 file with FP32 on the target's core: counted, or else by the cost of its kernels.

        None if this machine is of the target's kind, so that its own times tell more.
        """
        floats = self._counted_floats
        counted = self.estimate(int8) if floats else None
        if floats and counted:
            return BoardTimes(counted.core, counted.latency_ms, floats.latency_ms, counted.million_instructions)
        if self.target.machine != "aarch64" or platform.machine() == "aarch64":
            return None
        proto, target = self.simplified.proto, self.target
        times = [
            BoardTimes(target.cpu or core, kernels_ms(int8, proto, target, core), fp32_ms)
            for core, fp32_ms in self._floats_ms.items()
        ]
        return max(times, key=lambda one: one.int8_ms / one.fp32_ms)

    @functools.cached_property
    def _floats_ms(self) -> dict[str, float]:
        """The milliseconds that FP32 takes on the target's cores by the cost of its kernels."""
        proto, target = self.simplified.proto, self.target
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            file = float_file(self.simplified.path, target, Path(folder)).model
            return {core: kernels_ms(file, proto, target, core) for core in cores_of(target)}


class BuiltModel(msgspec.Struct, frozen=True):
    """The result of `build_variant`: both files as bytes, what is known of them, and the proof without times.

    The paths in it are gone.
    """

    onnx: bytes
    file: bytes
    made: Quantized
    converted: Converted
    proof: Proof


def build_variant(item: tuple[Recipe, Ranges], spec: VariantSpec) -> BuiltModel:
    """Write the model file of a recipe and measure it beside FP32, all but its time.

    Beside the recipe the item has the range of each activation by its calibration; none where a precision needs none.
    An OutputError says that the disk is full or cannot be written to.
    """
    recipe, ranges = item
    if recipe.is_integer and not recipe.reduce_range and host_saturates() and not spec.saturates:
        raise UsageError(
            "a worker's CPU saturates sums of INT8 (x86 without VNNI), and this machine's does not: their figures "
            "are not comparable; take such workers out of the cluster"
        )
    maker = MAKERS[recipe.precision]
    try:
        with tempfile.TemporaryDirectory(prefix="variant-", dir=spec.folder) as name:
            folder = Path(name)
            made = maker.write(spec.simplified, ranges, recipe, folder / "model.onnx")
            converted = maker.convert(made.path, spec.target, folder)
            proof = measure(spec.spec, spec.fp32, made.macs, converted, spec.evaluation, spec.on_progress, spec.threads)
            return BuiltModel(made.path.read_bytes(), converted.model.read_bytes(), made, converted, proof)
    except OSError as cause:
        why = "no space left on the disk" if is_full(cause) else cause.strerror or str(cause)
        where = spec.folder or tempfile.gettempdir() if is_full(cause) else cause.filename
        raise OutputError(f"{where}: {why}; nothing was changed") from cause


class ModelVariant(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One model that a bundle may carry, with all that was measured of it.

    Attributes:
        spec: model.toml, with this model's input size; `is_resized` says that it is not model.toml's own.
        fp32: the float model of the same size, loaded; the proof was measured beside it.
        onnx: the model before conversion, by which golden outputs are computed.
        tensor: the tensor that it takes; None for float32 as `spec` says.
        timed: the file that was timed here, if the file that ships is written for another core.
        board: its times on the target's core, if the search counted them.
        evaluation, agreement: beside FP32 of model.toml's own size, where that is not the size of the proof.
        reference_ms: latency of FP32 of model.toml's own size, where all were timed in turn.
        problem: why the bundle does not carry it; None if it does.
        doubt: a warning about its figures; None if there is none.
    """

    recipe: Recipe
    spec: ModelSpec
    is_resized: bool = False
    fp32: Session
    onnx: Path
    converted: Converted
    float_nodes: tuple[str, ...] = ()
    macs: dict[str, int] = {}
    has_integers: bool = True
    proof: Proof
    tensor: InputTensor | None = None
    timed: Path | None = None
    gate_failure: GateFailure | None = None
    board: BoardTimes | None = None
    evaluation: Evaluation | None = None
    agreement: Agreement | None = None
    reference_ms: float | None = None
    estimate: BoardEstimate | None = None
    problem: str | None = None
    doubt: str | None = None

    @property
    def precision(self) -> Precision:
        """The recipe's."""
        return self.recipe.precision

    @property
    def name(self) -> str:
        """The variant's name, such as `int8` or `int8.320x320`."""
        width, height = self.spec.input.size_wh
        return f"{self.precision}.{width}x{height}" if self.is_resized else self.precision

    @property
    def beside_first(self) -> Evaluation:
        """The evaluation beside FP32 of model.toml's own size."""
        return self.evaluation or self.proof.evaluation

    @property
    def figure(self) -> Figure:
        """The figure it is judged by: quality by labels, and without them agreement."""
        return self.beside_first.figure

    @property
    def integer_mac_share(self) -> float | None:
        """The share of convolutions in integers, 0-1; None for a float model."""
        return self.proof.integer_mac_share if self.recipe.is_integer else None


def make_variants(
    spec: VariantSpec,
    recipes: Sequence[Recipe],
    ranges: Callable[[Recipe], Ranges],
    on_done: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[ModelVariant]:
    """Build the models of several recipes, as many at once as the job runner allows, then time them one by one."""
    built = spec.job_runner.run(
        build_variant,
        [(recipe, dict(ranges(recipe))) for recipe in recipes],
        shared=spec,
        key=lambda item: key_of("variant", spec.digest, item),
        result=BuiltModel,
        on_done=on_done,
    )
    return [_timed(spec, recipe, one) for recipe, one in zip(recipes, built, strict=True)]


def _timed(spec: VariantSpec, recipe: Recipe, built: BuiltModel) -> ModelVariant:
    folder = Path(tempfile.mkdtemp(prefix="variant-", dir=spec.folder))
    model, file = folder / "model.onnx", folder / f"carried{built.converted.model.suffix}"
    model.write_bytes(built.onnx)
    file.write_bytes(built.file)
    converted = Converted(file, built.converted.operators)
    settings = timing_settings(spec.target)
    proof = timed(built.proof, spec.spec, spec.timed_fp32, converted, spec.on_progress, TIME_LIMITS, settings)
    return ModelVariant(
        recipe=recipe,
        spec=spec.spec,
        fp32=spec.fp32.session,
        onnx=model,
        converted=converted,
        float_nodes=built.made.float_nodes,
        macs=built.made.macs,
        has_integers=built.made.has_integers,
        proof=proof,
    )
