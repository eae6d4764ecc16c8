"""Device form: of a chosen INT8 model, the file that computes the same and that the target's core runs with less work.

Owns when that file ships: only where its outputs are those of the chosen model, bit for bit, and its convolutions run
in integers no less.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx

from edge_sdk.model_spec import ModelSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings
from edge_sdk.target import Target
from edge_sdk_tools.convert import convert, integer_mac_share
from edge_sdk_tools.quantize import core_form
from edge_sdk_tools.search import Choice

_COMPARED_IMAGES = 2  # signed activations take a workstation ten times as long


def fit_to_core(choice: Choice, spec: ModelSpec, target: Target, macs: Mapping[str, int], folder: Path) -> Choice:
    """Write a chosen model as its target's core likes it.

    Args:
        choice: with the images that proved it.
        spec: how they are prepared.
        target: names the core.
        macs: multiply-accumulates by name of each convolution that should run in integers.
        folder: for the file; must exist.

    Returns:
        The choice with another .ort file, whose outputs are the same; or as it was, where there is no such file.

    Raises:
        ModelError: ONNX Runtime cannot convert it.
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
    converted = convert(path, target, work)
    share = integer_mac_share(converted.model, dict(macs), work)
    if share < choice.proof.integer_mac_share or not _computes_the_same(converted.model, choice, spec):
        return choice
    recipe = msgspec.structs.replace(choice.recipe, core_form=target.cpu)
    return msgspec.structs.replace(choice, converted=converted, recipe=recipe, timed=choice.converted.model)


def _computes_the_same(model: Path, choice: Choice, spec: ModelSpec) -> bool:
    """Whether two files give the same outputs, to the last bit."""
    one, other = (Session(file.read_bytes(), SessionSettings(), file.name) for file in (model, choice.converted.model))
    prepare = Prepare(spec.input)
    for file in choice.proof.images.spread(_COMPARED_IMAGES).images:
        tensor = prepare.normalise(prepare.resize(file.read()))
        if not all(np.array_equal(a, b) for a, b in zip(one.run(tensor), other.run(tensor), strict=True)):
            return False
    return True
