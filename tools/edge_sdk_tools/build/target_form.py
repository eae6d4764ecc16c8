"""Device form: of a chosen INT8 model, the file that computes the same and that the target's core runs with less work.

Owns when that file ships: only where its outputs are those of the chosen model, but for integers that are rounded to
the other side of a tie, and its convolutions run in integers no less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.golden import NOISE_SHARE, energies_of, largest_difference, noise_of
from edge_sdk.bundle.manifest import Golden
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, SessionError
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.quantize.convert import convert, integer_mac_share
from edge_sdk_tools.quantize.target_form import core_form
from edge_sdk_tools.search.choice import Choice

_TOLERANCE = Golden(file="", count=1, absolute=0.0, relative=1e-6, noise_share=NOISE_SHARE)
_COMPARED_IMAGES = 2  # signed activations take a workstation ten times as long


def fit_to_core(
    choice: Choice, spec: ModelSpec, target: Target, fp32: Session, macs: Mapping[str, int], folder: Path
) -> Choice:
    """Write a chosen model as its target's core likes it.

    Args:
        choice: with the images that proved it.
        spec: how they are prepared.
        target: names the core.
        fp32: the float model, loaded.
        macs: multiply-accumulates by name of each convolution that should run in integers.
        folder: for the file; must exist.

    Returns:
        The choice with another .ort file, whose outputs are the same; or as it was, where there is no such file.

    Raises:
        OSError: the disk is full.
    """
    if choice.precision != "int8" or choice.recipe is None:
        return choice
    proto = core_form(onnx.load(choice.onnx), target.cpu)
    if proto is None:
        return choice
    work = folder / "core"
    work.mkdir()
    path = work / "int8.onnx"
    onnx.save(proto, path)
    try:
        converted = convert(path, target, work)
        share = integer_mac_share(converted.model, dict(macs), work)
        if share < choice.proof.integer_mac_share or not _computes_the_same(converted.model, choice, spec, fp32):
            return choice
    except (ModelError, SessionError):
        return choice  # the one that was chosen runs everywhere
    recipe = msgspec.structs.replace(choice.recipe, core_form=target.cpu)
    size_mb = converted.model.stat().st_size / 1e6
    proof = msgspec.structs.replace(choice.proof, integer_mac_share=share, model_mb=size_mb)
    return msgspec.structs.replace(
        choice, converted=converted, proof=proof, recipe=recipe, timed=choice.converted.model
    )


def _computes_the_same(model: Path, choice: Choice, spec: ModelSpec, fp32: Session) -> bool:
    """Whether two files give the same outputs, as a device compares golden ones."""
    one, other = (Session(file.read_bytes(), SessionSettings(), file.name) for file in (model, choice.converted.model))
    reference, floats, taken = fp32.clone(), Prepare(spec.input), Prepare(spec.input, choice.tensor)
    for file in choice.proof.images.spread(_COMPARED_IMAGES).images:
        image = file.read()
        tensor = taken.normalise(taken.resize(image))
        expected, unquantized = other.run(tensor), reference.run(floats.normalise(floats.resize(image)))
        noise = noise_of([[energies_of(a, b) for a, b in zip(expected, unquantized, strict=True)]])
        if isinstance(largest_difference(one.run(tensor), expected, _TOLERANCE, noise), str):
            return False
    return True
