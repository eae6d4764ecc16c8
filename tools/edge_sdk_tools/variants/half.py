"""half: float32 weights stored as float16, and cast back where they are used.

Owns the graph and its conversion: ONNX Runtime's constant folding would compute the casts and write float32 again.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.convert import Converted, operators_config, operators_of
from edge_sdk_tools.disk import raise_if_full
from edge_sdk_tools.extensions import register_extensions

_FEWEST = 256  # elements: what is smaller saves less than its Cast costs
_LARGEST = float(np.finfo(np.float16).max)
# Constant folding off; and the level below "all", which since ONNX Runtime 1.31 folds casts of weights once more.
_LEVELS = ort.GraphOptimizationLevel
_LEVEL = getattr(_LEVELS, "ORT_ENABLE_LAYOUT", _LEVELS.ORT_ENABLE_ALL)  # which older ones do not have, nor need
_LEFT_OUT = ["ConstantFolding", "NchwcTransformer"]


def with_half_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with float16 weights, each with a Cast to float32 behind it.

    Raises:
        ModelError: a weight is too large for float16.
    """
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    casts = []
    for weight in result.graph.initializer:
        if weight.data_type != TensorProto.FLOAT or math.prod(weight.dims) < _FEWEST:
            continue
        values, name = numpy_helper.to_array(weight), weight.name
        if np.abs(values).max() > _LARGEST:
            raise ModelError(
                f"--with-fp16: weight {name!r} holds values beyond {_LARGEST:g}, which float16 cannot; leave it out"
            )
        stored = f"{name}_float16"
        weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), stored))
        casts.append(helper.make_node("Cast", [stored], [name], name=f"{name}_float32", to=TensorProto.FLOAT))
    nodes = [*casts, *result.graph.node]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def convert_half(source: Path, folder: Path) -> Converted:
    """Convert to ORT format so that the weights stay float16.

    Raises:
        ModelError: when ONNX Runtime cannot convert it.
        OSError: when the disk is full.
    """
    model = folder / "model.ort"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = _LEVEL
    options.optimized_model_filepath = str(model)
    options.add_session_config_entry("session.save_model_format", "ORT")
    register_extensions(options, source.read_bytes())
    try:
        ort.InferenceSession(str(source), options, ["CPUExecutionProvider"], disabled_optimizers=_LEFT_OUT)
        return Converted(model, operators_of(operators_config([model], folder)))
    except Exception as cause:  # onnxruntime's exceptions share no root of their own, and it may write half a file
        raise_if_full(folder, cause)
        raise ModelError(f"conversion to ORT format failed: {first_line(cause)}") from cause
