"""A model file in each precision: how its graph is written, and how that becomes the file that a bundle carries.

`MAKERS` is the one table of them; what people are told of a precision is in `PRECISIONS` of `bundle/manifest.py`. INT8
with calibrated ranges is in `quantize.py`, the other precisions are here.

Dynamic INT8 is of use for models that spend most of their work in products with weights, such as vision transformers: a
convolution quantized that way takes 2.8 times as long as in float. Half precision stores weights as float16 and casts
them back where they are used; ONNX Runtime's constant folding would compute the casts and write float32 again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edge_sdk.bundle.manifest import Precision
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.graph.index import copy_of, graph_values, replace_all
from edge_sdk_tools.graph.profile import register_extensions, silenced
from edge_sdk_tools.quantize.convert import (
    Converted,
    carried_onnx,
    convert,
    float_file,
    operators_config,
    operators_of,
    travels_as_onnx,
)
from edge_sdk_tools.quantize.quantize import Quantized, Recipe, quantize, shapes_of, softmax_along_last_axis
from edge_sdk_tools.quantize.simplified import Simplified, failing_as, simplify, weighted_macs

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
    """How a model file of one precision is made.

    Attributes:
        write: makes the ONNX file of a simplified model.
        convert: makes the file that a bundle carries of that.
        refuse: raises an EdgeError for a checked model that the precision does not suit, before anything is calibrated;
            takes a folder for files.
        largest_share: of the float model's file, for a precision that is there to save space and need not be fast.
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
