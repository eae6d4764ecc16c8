"""ONNX -> ORT format for the target's platform, its required operators, and the proof that it computes in integers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort

from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, first_line
from edge_sdk.inference.runtime import extension_libraries
from edge_sdk_tools.disk import raise_if_full
from edge_sdk_tools.ort_format import OptimizationStyle, convert_onnx_models_to_ort, create_config_from_models
from edge_sdk_tools.profiled import ProfiledSession
from edge_sdk_tools.silenced import silenced

_INTEGER_CONVOLUTIONS = ("QLinearConv", "ConvInteger", "NhwcQLinearConv", "QLinearConvTranspose")
_INTEGER_PRODUCTS = ("DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat")
_INTEGER_KERNELS = (*_INTEGER_CONVOLUTIONS, *_INTEGER_PRODUCTS)


class Converted(msgspec.Struct, frozen=True):
    """A model as a bundle carries it.

    Attributes:
        model: the file, in ORT format; a float model may be ONNX.
        operators: `domain:name` of each of its operators, sorted.
    """

    model: Path
    operators: tuple[str, ...]


def convert(onnx_path: Path, target: Target, folder: Path) -> Converted:
    """Convert one model into `folder`, which must exist.

    Optimisation style "Fixed": the "Runtime" style's INT8 convolutions run in float. For ARM the platform is named,
    which lets signed activations stay signed. For x86_64 it is not: that would bake in a block layout of the machine
    that converts, and the file would not run on a CPU with another vector width.

    Raises:
        ModelError: when ONNX Runtime cannot convert it.
        OSError: when the disk is full.
    """
    work = folder / "convert"
    work.mkdir()
    source = work / "model.onnx"
    shutil.copyfile(onnx_path, source)
    ort.set_default_logger_severity(4)
    logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)
    libraries = extension_libraries(source.read_bytes())
    platform = "arm" if target.machine == "aarch64" else None
    try:
        with silenced():
            convert_onnx_models_to_ort(
                source,
                output_dir=work,
                optimization_styles=[OptimizationStyle.Fixed],
                custom_op_library_path=libraries[0] if libraries else None,
                target_platform=platform,
                enable_type_reduction=True,
            )
    except Exception as cause:  # onnxruntime's exceptions share no root of their own
        raise_if_full(folder, cause)
        raise ModelError(f"conversion to ORT format failed: {first_line(cause)}") from cause
    [model] = work.glob("*.ort")
    [config] = work.glob("*required_operators_and_types*.config")
    return Converted(model, operators_of(config.read_text(encoding="utf-8")))


def integer_mac_share(model: Path, macs: dict[str, int], folder: Path) -> float:
    """Share of multiply-accumulates that run in integer kernels, by a profile of this very file.

    Args:
        model: the file that a bundle carries.
        macs: multiply-accumulates by name of each node that should run in integers.
        folder: for the profile.

    Returns:
        0-1; 1.0 when there is no such node.
    """
    if not macs:
        return 1.0
    session = ProfiledSession(model, folder)
    session.run(np.zeros(session.input_shape, session.input_dtype))
    in_integers = {
        _source_node(event.name, macs)
        for event in session.stop_profile()
        if event.is_kernel and event.args["op_name"] in _INTEGER_KERNELS
    }
    return sum(macs[name] for name in in_integers if name) / sum(macs.values())


def _source_node(event_name: str, macs: dict[str, int]) -> str | None:
    """The node that a kernel came from: fusions and layout changes append to its name; the longest wins."""
    return max((name for name in macs if event_name.startswith(f"{name}_")), key=len, default=None)


def operators_config(models: Sequence[Path], work: Path) -> str:
    """The operators and types that a reduced ONNX Runtime must have for all of these models.

    Args:
        models: in ORT format, the only one that a reduced ONNX Runtime reads.
        work: a folder for a file.

    Returns:
        Lines of `domain;opset;Op{types},Op…`; none without models.
    """
    if not models:
        return ""
    path = work / "operators.config"
    create_config_from_models(models, path, enable_type_reduction=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    # What stands in comments are the paths of this machine.
    return "".join(f"{line}\n" for line in lines if not line.startswith("#"))


def operators_of(config: str) -> tuple[str, ...]:
    """`domain:name` of every operator that lines of `domain;opset;Op{types},Op…` name, sorted."""
    found: set[str] = set()
    for line in config.splitlines():
        if line.startswith("#") or line.count(";") != 2:
            continue
        domain, _, operators = line.split(";")
        found.update(f"{domain}:{name}" for name in _operator_names(operators))
    return tuple(sorted(found))


def _operator_names(text: str) -> list[str]:
    """Names out of `Add{"inputs": {"0": ["float"]}},Conv`: what stands outside all braces."""
    names, depth, name = [], 0, ""
    for character in text + ",":
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            names.append(name)
            name = ""
        elif depth == 0 and character != "}":
            name += character
    return [n.strip() for n in names if n.strip()]
