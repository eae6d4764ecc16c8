"""The files of all models that a bundle carries: each model, its golden inputs, and the operators of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sdk.bundle.manifest import Variant
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.bundle_folder import BundleFolder
from edge_sdk_tools.convert import operators_config
from edge_sdk_tools.prove import Reference, make_golden
from edge_sdk_tools.variants.made import Made

OPERATORS_FILE = "required_operators_and_types.config"
_ORT_SUFFIX = ".ort"


def add_variants(folder: BundleFolder, made: Sequence[Made]) -> tuple[Variant, ...]:
    """Write the models that have no problem.

    Returns:
        What the manifest says of them, in the same order.
    """
    carried = [one for one in made if one.problem is None]
    variants = tuple(_add(folder, one, is_first=index == 0) for index, one in enumerate(carried))
    folder.add(OPERATORS_FILE, _operators([one.converted.model for one in carried], variants, folder.work).encode())
    return variants


def _operators(models: Sequence[Path], variants: Sequence[Variant], work: Path) -> str:
    """What a reduced ONNX Runtime needs; it reads ORT format alone, and so for ONNX files there is nothing to say."""
    whole = [v.file for v, model in zip(variants, models, strict=True) if model.suffix != _ORT_SUFFIX]
    notes = "".join(f"# {file} is ONNX, which no reduced ONNX Runtime reads: a whole one runs it\n" for file in whole)
    return notes + operators_config([model for model in models if model.suffix == _ORT_SUFFIX], work)


def _add(folder: BundleFolder, one: Made, *, is_first: bool) -> Variant:
    prepare = Prepare(one.spec.input, one.tensor)
    file = "golden.npz" if is_first else _golden_file(one)
    reference = _reference(one) if one.precision.startswith("int8") else None
    data, golden = make_golden(prepare, one.onnx, one.proof.images, file, reference)
    variant = one.promised(golden)
    folder.add(variant.file, one.converted.model.read_bytes())
    folder.add(golden.file, data)
    return variant


def _reference(one: Made) -> Reference:
    """What FP32 of the same size says of a picture."""
    session, prepare = one.fp32.clone(), Prepare(one.spec.input)
    return lambda resized: session.run(prepare.normalise(resized))


def _golden_file(one: Made) -> str:
    return f"golden.{one.name}.npz"
