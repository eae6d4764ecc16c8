"""Choice: the model that a bundle carries, INT8 where it holds and FP32 where it does not.

All forms of a model that a build has, when it has made its choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from edge_sdk.bundle.manifest import InputTensor
from edge_sdk.bundle.model_spec import Gates
from edge_sdk.core.errors import AccuracyGateError, SizeGateError
from edge_sdk_tools.distillation.step import Distilled
from edge_sdk_tools.evaluate.evaluation import ENOUGH_IMAGES
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.jobs.runner import Workshop
from edge_sdk_tools.prove.golden import Proof, Sample, prove
from edge_sdk_tools.prove.output_change import StepKind
from edge_sdk_tools.prove.parity import Forms
from edge_sdk_tools.quantize.convert import Converted
from edge_sdk_tools.quantize.recipe import Recipe
from edge_sdk_tools.quantize.simplified import Simplified
from edge_sdk_tools.search.context import Setting
from edge_sdk_tools.search.search import Attempt, Made, Search, Trial, make


class Choice(msgspec.Struct, frozen=True, eq=False):
    """The candidate that the search chose.

    Attributes:
        precision: of the model.
        onnx: the model before conversion, by which golden outputs are computed.
        converted: the file that ships.
        proof: what was measured of it.
        recipe: how it was quantized; None for FP32.
        float_nodes: nodes left float on purpose; none for FP32, which has no others.
        fallback_reason: why it is FP32; None for INT8.
        tensor: what it takes; None where that is what model.toml says, in float32.
        timed: the file whose time was taken here, where the one that ships is written for another core; else None.
    """

    precision: Literal["int8", "fp32"]
    onnx: Path
    converted: Converted
    proof: Proof
    recipe: Recipe | None = None
    float_nodes: tuple[str, ...] = ()
    fallback_reason: str | None = None
    tensor: InputTensor | None = None
    timed: Path | None = None


def choose_int8(trial: Trial) -> Choice:
    """The model of a trial that holds."""
    quantized = trial.quantized
    return Choice("int8", quantized.path, trial.converted, trial.proof, quantized.recipe, quantized.float_nodes)


def choose_fp32(search: Search, setting: Setting, workshop: Workshop, folder: Path) -> Choice:
    """The float model, converted and measured like the others.

    Args:
        search: in which nothing held.
        setting: in which.
        workshop: makes it.
        folder: for the files; must exist.
    """
    [made] = workshop.run(make, [Attempt(None)], shared=setting, key=lambda one: one.key(setting), result=Made)
    work = folder / "float"
    work.mkdir()
    path, converted = made.unpack(work)
    proof = prove(made.measured, setting.spec, setting.fp32, converted, setting.on_progress)
    return Choice("fp32", path, converted, proof, fallback_reason=_reason(search))


def refuse_without_int8(search: Search) -> None:
    """Refuse a build whose INT8 does not hold.

    Raises:
        AccuracyGateError: nothing was chosen.
    """
    if search.chosen is not None:
        return
    proof = search.best.proof
    few = f" (so few images judge nothing: give {ENOUGH_IMAGES})" if proof.agreement.images < ENOUGH_IMAGES else ""
    raise AccuracyGateError(
        f"{_reason(search)}{few}. {_example(proof.samples)}Check input.mean, std, color and resize first, then "
        "calibrate with more images like those the camera sees, or lower gates.int8_max_drop_relative and "
        "int8_min_agreement, or leave out --require-int8 and carry FP32"
    )


def check_size(gates: Gates, size_mb: float) -> None:
    """Refuse a model that is too large.

    Raises:
        SizeGateError: exit code 5.
    """
    if gates.max_size_mb is not None and size_mb > gates.max_size_mb:
        raise SizeGateError(f"the model has {size_mb:.2f} MB, gates.max_size_mb allows {gates.max_size_mb}")


def _reason(search: Search) -> str:
    shortfall = search.best.shortfall
    tried = f"none of {len(search.trials)} INT8 recipes holds; of the best: " if len(search.trials) > 1 else ""
    return f"{tried}{shortfall.line}" if shortfall else ""


def _example(samples: Sequence[Sample]) -> str:
    """What a wrong description of the input looks like is plain from what FP32 itself sees."""
    return "".join(f"In {s.image} FP32 sees {s.fp32} and INT8 {s.int8}. " for s in samples[:1])


def forms_of(
    fp32: Subject, distilled: Distilled | None, simplified: Simplified, search: Search, choice: Choice
) -> Forms:
    """The files of all steps, and the float model, loaded.

    Args:
        fp32: the checked model, loaded.
        distilled: names its teacher; None without one.
        simplified: what was quantized.
        search: whose best INT8 model is shown where none was chosen.
        choice: what ships.
    """
    files: dict[StepKind, Path] = {"teacher": distilled.teacher_file} if distilled else {}
    int8 = (search.chosen or search.best).quantized.path
    files |= {"fp32": simplified.given, "simplified": simplified.path, "int8": int8, "ort": choice.converted.model}
    return Forms(fp32.session, files, choice.precision == "int8", choice.tensor)
