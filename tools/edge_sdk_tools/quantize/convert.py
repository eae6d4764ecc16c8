"""Convert ONNX to ORT format for the target's platform, list required operators, and measure the share of integers.

Models for x86_64 with float convolutions stay ONNX: on this platform ONNX Runtime runs these in blocks as wide as the
CPU's vectors, a layout that it creates when it loads ONNX but not when it loads ORT format. ONNX Runtime's converter is
imported without its package, which would import PyTorch where that is installed.
"""

from __future__ import annotations

import importlib
import logging
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from edge_sdk.bundle.target import OPENVINO, Target
from edge_sdk.core.errors import ModelError, typed_line
from edge_sdk.inference.runtime import extension_libraries
from edge_sdk_tools.graph.index import GraphIndex, copy_of, keep_used_domains, nodes_of
from edge_sdk_tools.graph.profile import ProfiledSession, silenced
from edge_sdk_tools.quantize.simplified import failing_as

_PACKAGE = "onnxruntime.tools"


def _import(name: str) -> ModuleType:
    """Import a module of the package without running the package's own `__init__`, unless that has been done."""
    known = sys.modules.get(_PACKAGE)
    if known is None:
        package = ModuleType(_PACKAGE)
        package.__path__ = [str(Path(ort.__file__).parent / "tools")]
        sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.{name}")
    finally:
        if known is None:
            # A later import of the package gets the real one.
            del sys.modules[_PACKAGE]


_CONVERTER = _import("convert_onnx_models_to_ort")
OptimizationStyle = _CONVERTER.OptimizationStyle
convert_onnx_models_to_ort = _CONVERTER.convert_onnx_models_to_ort
create_config_from_models = _import("ort_format_model").create_config_from_models
logging.getLogger("ort_format_model.utils").setLevel(logging.WARNING)  # it tells the path of each file
_SESSION = _import("ort_format_model.ort_flatbuffers_py.fbs.InferenceSession").InferenceSession


_INTEGER_KERNELS = (
    *("QLinearConv", "ConvInteger", "NhwcQLinearConv", "QLinearConvTranspose"),
    *("DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"),
)


class Converted(msgspec.Struct, frozen=True):
    """A model file as bundles hold it, .ort or .onnx, and `domain:name` of each of its operators, sorted."""

    model: Path
    operators: tuple[str, ...]


def convert(onnx_path: Path, target: Target, folder: Path) -> Converted:
    """Convert one model into `folder`, which must exist.

    The optimisation style is "Fixed", because INT8 convolutions of the "Runtime" style run in float. For ARM the
    platform is given, so that signed activations stay signed. For x86_64 it is not given: the converter would then use
    the block layout of the converting machine, and the file would not run on a CPU with another vector width.

    For OpenVINO the model stays ONNX, because that takes QuantizeLinear and DequantizeLinear and no fused operators; so
    does a model for x86_64 that has convolutions of floats. A ModelError says that ONNX Runtime cannot convert it.
    """
    if OPENVINO in target.providers or (travels_as_onnx(target) and _has_float_convolutions(onnx_path)):
        return carried_onnx(onnx_path, folder)
    work = folder / "convert"
    work.mkdir()
    source = work / "model.onnx"
    shutil.copyfile(onnx_path, source)
    ort.set_default_logger_severity(4)
    libraries = extension_libraries(source.read_bytes())
    platform = "arm" if target.machine == "aarch64" else None
    with failing_as("conversion to ORT format failed", folder), silenced():
        convert_onnx_models_to_ort(
            source,
            output_dir=work,
            optimization_styles=[OptimizationStyle.Fixed],
            custom_op_library_path=libraries[0] if libraries else None,
            target_platform=platform,
            enable_type_reduction=True,
        )
    [model] = work.glob("*.ort")
    [config] = work.glob("*required_operators_and_types*.config")
    return Converted(model, operators_of(config.read_text(encoding="utf-8")))


def _has_float_convolutions(path: Path) -> bool:
    graph = onnx.load(path).graph
    links = GraphIndex(graph)
    return any(n.op_type == "Conv" and links.maker(n.input[0], "DequantizeLinear") is None for n in graph.node)


def integer_mac_share(model: Path, macs: dict[str, int], folder: Path) -> float:
    """Profile a model file and return the share of multiply-accumulates that run in integer kernels, 0-1.

    `macs` has multiply-accumulates by name of the node; other nodes do not count. Without any the share is 1.
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
    """Return the node that a kernel came from; fusions append to its name, so that the longest name wins."""
    return max((name for name in macs if event_name.startswith(f"{name}_")), key=len, default=None)


def operators_config(models: Sequence[Path], work: Path) -> str:
    """Return the operators and types that a reduced build of ONNX Runtime must have for all of these models."""
    if not models:
        return ""
    path = work / "operators.config"
    create_config_from_models(models, path, enable_type_reduction=True)
    lines = path.read_text(encoding="utf-8").splitlines()
    # Comments hold paths of this machine, and are left out.
    return "".join(f"{line}\n" for line in lines if not line.startswith("#"))


class OrtFormat(NamedTuple):
    """The version of a file in ORT format, and whether its optimisations are left to the device (style Runtime)."""

    version: int
    is_runtime_style: bool


def ort_format_of(model: bytes) -> OrtFormat:
    """Read the head of a file in ORT format; raise ModelError for other bytes."""
    try:
        session = _SESSION.GetRootAs(model, 0)
        version = int(session.OrtVersion())
        optimizations = session.Model().Graph().RuntimeOptimizations()
        return OrtFormat(version, optimizations is not None and not optimizations.RecordsIsNone())
    except Exception as cause:  # flatbuffers and struct raise errors of several types for other bytes
        raise ModelError(f"not a model in ORT format: {typed_line(cause)}") from cause


def operators_of(config: str) -> tuple[str, ...]:
    """Return `domain:name` of every operator in lines of `domain;opset;Op{types},Op…`, sorted."""
    found: set[str] = set()
    for line in config.splitlines():
        if line.startswith("#") or line.count(";") != 2:
            continue
        domain, _, operators = line.split(";")
        while "{" in operators:  # types are JSON, in which braces lie in braces
            operators = re.sub(r"\{[^{}]*\}", "", operators)
        found.update(f"{domain}:{name.strip()}" for name in operators.split(",") if name.strip())
    return tuple(sorted(found))


def travels_as_onnx(target: Target) -> bool:
    """Tell whether bundles for this target hold models with float convolutions as ONNX instead of ORT format."""
    return target.machine == "x86_64"


def float_file(source: Path, target: Target, folder: Path) -> Converted:
    """Write a simplified float model in the format that its target runs fastest."""
    return carried_onnx(source, folder) if travels_as_onnx(target) else convert(source, target, folder)


def carried_onnx(source: Path, folder: Path) -> Converted:
    """Write a simplified model as ONNX without what does not affect its results; the bytes are always the same."""
    proto = bare(onnx.load(source, load_external_data=False))
    path = folder / "carried.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    found = {f"{node.domain or 'ai.onnx'}:{node.op_type}" for node in nodes_of(proto.graph.node)}
    return Converted(path, tuple(sorted(found)))


def bare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without documentation, shapes of inner tensors, training data and unused operator sets.

    Exporters store lines of the training code, with its paths, at every node. An older ONNX Runtime may refuse a newer
    version of an operator set even if no node uses it, or a newer version of the format.
    """
    result = copy_of(proto)
    for name in ("doc_string", "metadata_props", "training_info"):
        result.ClearField(name)
    graph = result.graph
    for name in ("doc_string", "metadata_props", "value_info", "quantization_annotation"):
        graph.ClearField(name)
    for part in (*nodes_of(graph.node), *graph.initializer, *graph.input, *graph.output):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    keep_used_domains(result, nodes_of(graph.node))
    needed = helper.find_min_ir_version_for(result.opset_import, ignore_unknown=True)
    result.ir_version = min(result.ir_version, needed)
    return result
