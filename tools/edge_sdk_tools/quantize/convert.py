"""A model file in each precision: how its graph is written, and how that becomes the file that a bundle carries.

`MAKERS` is the one table of them; what people are told of a precision is in `PRECISIONS` of `bundle/manifest.py`. INT8
with calibrated ranges is in `quantize.py`, the other precisions are here. Files are in ORT format for the target's
platform, with a list of the operators that they require.

Models for x86_64 with float convolutions stay ONNX: on this platform ONNX Runtime runs these in blocks as wide as the
CPU's vectors, a layout that it creates when it loads ONNX but not when it loads ORT format. ONNX Runtime's converter is
imported without its package, which would import PyTorch where that is installed.

Dynamic INT8 is of use for models that spend most of their work in products with weights, such as vision transformers: a
convolution quantized that way takes 2.8 times as long as in float. Half precision stores weights as float16 and casts
them back where they are used; ONNX Runtime's constant folding would compute the casts and write float32 again.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edge_sdk.bundle.manifest import Precision
from edge_sdk.bundle.target import OPENVINO, Target
from edge_sdk.core.errors import ModelError, UsageError, raising
from edge_sdk.inference.runtime import extension_libraries
from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.graph.index import GraphIndex, copy_of, graph_values, keep_used_domains, nodes_of, replace_all
from edge_sdk_tools.graph.profile import ProfiledSession, register_extensions, silenced
from edge_sdk_tools.quantize.quantize import Quantized, Recipe, quantize, shapes_of, softmax_along_last_axis
from edge_sdk_tools.quantize.simplified import Simplified, failing_as, simplify, weighted_macs

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
        # Fusions append to a node's name, so that the longest name wins.
        max((name for name in macs if event.name.startswith(f"{name}_")), key=len, default="")
        for event in session.stop_profile()
        if event.is_kernel and event.args["op_name"] in _INTEGER_KERNELS
    }
    return sum(macs.get(name, 0) for name in in_integers) / sum(macs.values())


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
    with raising(ModelError, "not a model in ORT format", kinds=Exception):  # flatbuffers and struct raise several
        session = _SESSION.GetRootAs(model, 0)
        version = int(session.OrtVersion())
        optimizations = session.Model().Graph().RuntimeOptimizations()
        return OrtFormat(version, optimizations is not None and not optimizations.RecordsIsNone())


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
    keep_used_domains(result)
    needed = helper.find_min_ir_version_for(result.opset_import, ignore_unknown=True)
    result.ir_version = min(result.ir_version, needed)
    return result


Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""Low and high of every activation, by its name."""
_PRODUCTS = ("Gemm", "MatMul")
_LEAST_SHARE = 0.5
_FEWEST = 256  # elements: what is smaller saves less than its Cast costs
_LARGEST_HALF_SHARE = 0.75  # with less saved, half weights are not worth a Cast each
_LARGEST_FP16 = float(np.finfo(np.float16).max)
# Constant folding off; and the level below "all", which since ONNX Runtime 1.31 folds casts of weights once more.
_LEVELS = ort.GraphOptimizationLevel
_LEVEL = getattr(_LEVELS, "ORT_ENABLE_LAYOUT", _LEVELS.ORT_ENABLE_ALL)  # which older ones do not have, nor need
_LEFT_OUT = ["ConstantFolding", "NchwcTransformer"]


def _refuse_without_products(proto: onnx.ModelProto, folder: Path) -> None:
    """Refuse a model that dynamic quantization would only make slower."""
    simplified = simplify(proto, folder).proto
    values = graph_values(simplified.graph)
    total = sum(node_macs(node, values) or 0 for node in simplified.graph.node)
    share = sum(weighted_macs(simplified, *_PRODUCTS).values()) / max(1, total)
    if share < _LEAST_SHARE:
        raise UsageError(
            f"--with-dynamic: {share:.0%} of the model's multiply-accumulates are matrix products with weights, "
            f"expected {_LEAST_SHARE:.0%} or more: convolutions quantized dynamically are slower than in float; leave "
            "it out"
        )


def _quantize_products(model: Simplified, _ranges: Ranges, recipe: Recipe, path: Path) -> Quantized:
    with failing_as("dynamic quantization failed", path.parent), silenced():  # the quantizer narrates
        quantize_dynamic(
            model.proto,
            path,
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=True,
            reduce_range=recipe.reduce_range,
            weight_type=QuantType.QInt8,
        )
    return Quantized(path, macs=weighted_macs(model.proto, *_PRODUCTS), has_integers=True)


def with_half_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float16 weights, each cast to float32; a ModelError says that one is too large."""
    result = copy_of(proto)
    casts = []
    for weight in result.graph.initializer:
        if weight.data_type != TensorProto.FLOAT or math.prod(weight.dims) < _FEWEST:
            continue
        values, name = numpy_helper.to_array(weight), weight.name
        if np.abs(values).max() > _LARGEST_FP16:
            raise ModelError(
                f"--with-fp16: weight {name!r} holds values beyond {_LARGEST_FP16:g}, float16's largest; leave it out"
            )
        stored = f"{name}_float16"
        weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), stored))
        casts.append(helper.make_node("Cast", [stored], [name], name=f"{name}_float32", to=TensorProto.FLOAT))
    replace_all(result.graph.node, [*casts, *result.graph.node])
    return result


def _write_half(model: Simplified, _ranges: Ranges, _recipe: Recipe, path: Path) -> Quantized:
    onnx.save(with_half_weights(model.proto), path)
    return Quantized(path)


def _convert_half(source: Path, target: Target, folder: Path) -> Converted:
    """Write ONNX, or ORT format in which the weights stay float16."""
    if travels_as_onnx(target):
        return carried_onnx(source, folder)
    model = folder / "model.ort"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = _LEVEL
    options.optimized_model_filepath = str(model)
    options.add_session_config_entry("session.save_model_format", "ORT")
    register_extensions(options, source.read_bytes())
    with failing_as("conversion to ORT format failed", folder):  # it may write half a file
        ort.InferenceSession(str(source), options, ["CPUExecutionProvider"], disabled_optimizers=_LEFT_OUT)
        return Converted(model, operators_of(operators_config([model], folder)))


def _write_float(model: Simplified, _ranges: Ranges, _recipe: Recipe, path: Path) -> Quantized:
    proto = copy_of(model.proto)
    softmax_along_last_axis(proto, shapes_of(proto))
    onnx.save(proto, path)
    return Quantized(path)


class PrecisionMaker(NamedTuple):
    """How a model file of one precision is made: ONNX of a simplified model, and of that the file of a bundle.

    `refuse` raises an EdgeError for a checked model that the precision does not suit, before anything is calibrated; it
    takes a folder for files. `largest_share` is of the float model's file, for a precision that is there to save space
    and need not be fast.
    """

    write: Callable[[Simplified, Ranges, Recipe, Path], Quantized]
    convert: Callable[[Path, Target, Path], Converted]
    refuse: Callable[[onnx.ModelProto, Path], object] | None = None
    largest_share: float | None = None


MAKERS: dict[Precision, PrecisionMaker] = {
    "int8": PrecisionMaker(quantize, convert),
    "fp32": PrecisionMaker(_write_float, float_file),
    "fp16": PrecisionMaker(_write_half, _convert_half, lambda proto, _: with_half_weights(proto), _LARGEST_HALF_SHARE),
    "int8_dynamic": PrecisionMaker(_quantize_products, convert, _refuse_without_products),
}
