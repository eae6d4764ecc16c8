"""Rewrite the chosen INT8 model into a form that computes the same with less work on the target's core.

The rewritten model is used only if its outputs equal those of the chosen model, except for integers that are rounded to
the other side of a tie, and if at least the same share of its convolutions runs in integers.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.bundle import NOISE_SHARE, energies_of, largest_difference, noise_of
from edge_sdk.bundle.manifest import Golden
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, SessionError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.quantize.convert import convert, integer_mac_share
from edge_sdk_tools.quantize.target_form import core_form, has_core_form
from edge_sdk_tools.search.variant import ModelVariant

_TOLERANCE = Golden(file="", count=1, absolute=0.0, relative=1e-6, noise_share=NOISE_SHARE)
_COMPARED_IMAGES = 2  # few, because a workstation takes ten times as long with signed activations


def fit_to_core(variant: ModelVariant, target: Target, folder: Path) -> ModelVariant:
    """Write an INT8 model in the form that its target's core runs fastest, in `folder`, which must exist.

    Returns:
        The variant with another .ort file that has the same outputs, or the same variant if there is no such form.
    """
    if variant.precision != "int8" or not has_core_form(target.cpu):
        return variant
    proto = core_form(onnx.load(variant.onnx), target.cpu)
    if proto is None:
        return variant
    work = folder / "core"
    work.mkdir()
    path = work / "int8.onnx"
    onnx.save(proto, path)
    try:
        converted = convert(path, target, work)
        share = integer_mac_share(converted.model, variant.macs, work)
        if share < variant.proof.integer_mac_share or not _computes_the_same(converted.model, variant):
            return variant
    except (ModelError, SessionError):
        return variant  # the chosen model runs everywhere
    size_mb = converted.model.stat().st_size / 1e6
    return msgspec.structs.replace(
        variant,
        converted=converted,
        proof=msgspec.structs.replace(variant.proof, integer_mac_share=share, model_mb=size_mb),
        recipe=msgspec.structs.replace(variant.recipe, core_form=target.cpu),
        timed=variant.converted.model,
    )


def _computes_the_same(model: Path, variant: ModelVariant) -> bool:
    """Tell whether a model gives the same outputs as a variant, compared as a device compares golden outputs."""
    one, other = (Session(f.read_bytes(), SessionSettings(), f.name) for f in (model, variant.converted.model))
    reference, spec = variant.fp32.clone(), variant.spec.input
    floats, taken = Prepare(spec), Prepare(spec, variant.tensor)
    for file in variant.proof.images.spread(_COMPARED_IMAGES).images:
        image = file.read()
        tensor = taken.normalise(taken.resize(image))
        expected, unquantized = other.run(tensor), reference.run(floats.normalise(floats.resize(image)))
        noise = noise_of([[energies_of(a, b) for a, b in zip(expected, unquantized, strict=True)]])
        if isinstance(largest_difference(one.run(tensor), expected, _TOLERANCE, noise), str):
            return False
    return True
