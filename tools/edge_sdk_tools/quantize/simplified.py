"""Simplified: the float model as the quantizer wants it, constants folded and batch normalizations gone."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import msgspec
import onnx
import onnxruntime as ort
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.check.functions import nodes_of
from edge_sdk_tools.disk import raise_if_full
from edge_sdk_tools.extensions import extension_nodes, register_extensions
from edge_sdk_tools.quantize.macs import convolution_macs
from edge_sdk_tools.quantize.tail import decoding_tail

QUANTIZED_TYPES = tuple(sorted({*QLinearOpsRegistry, *QDQRegistry}))
"""Operators that ONNX Runtime's quantizer takes."""


_INTEGER_TYPES = (
    "ConvInteger",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
)
_NAMED = 3


class Simplified(msgspec.Struct, frozen=True, eq=False):
    """A float model, ready to be quantized.

    Attributes:
        proto: simplified, with the shapes of all tensors.
        path: the same as a file.
        given: the file of the checked model, as it was before.
        tail: names of the nodes of its decoding tail.
        macs: multiply-accumulates of every convolution outside of that, by node name.
    """

    proto: onnx.ModelProto
    path: Path
    given: Path
    tail: tuple[str, ...]
    macs: dict[str, int]


def simplify(proto: onnx.ModelProto, folder: Path) -> Simplified:
    """Simplify a checked model.

    Args:
        proto: with fixed shapes, float.
        folder: for the file; must exist.

    Raises:
        ModelError: ONNX Runtime cannot.
        OSError: the disk is full.
    """
    source, result = folder / "fp32.onnx", folder / "simplified.onnx"
    onnx.save(proto, source)
    try:
        # Symbolic shape inference is for dynamic shapes, which the export gate has fixed.
        with_extensions = _optimized(proto, folder) if extension_nodes(proto) else None
        quant_pre_process(
            str(with_extensions or source),
            str(result),
            skip_symbolic_shape=True,
            skip_optimization=with_extensions is not None,
        )
        simplified = onnx.load(result)
        if not simplified.graph.output:  # ONNX Runtime says nothing where it cannot write
            raise ValueError("nothing was written")
        _forget_unused_domains(simplified)
        onnx.save(simplified, result)
    except Exception as cause:  # it raises whatever its parts raise
        raise_if_full(folder, cause)
        raise ModelError(f"quantization failed: {first_line(cause)}") from cause
    tail = decoding_tail(simplified)
    macs = {name: count for name, count in convolution_macs(simplified).items() if name not in tail}
    return Simplified(simplified, result, source, tail, macs)


def _optimized(proto: onnx.ModelProto, folder: Path) -> Path:
    """What `quant_pre_process` does first, and cannot where there are operators that ONNX Runtime itself lacks."""
    path, model = folder / "optimized.onnx", proto.SerializeToString()
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    register_extensions(options, model)
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return path


def _forget_unused_domains(proto: onnx.ModelProto) -> None:
    """ONNX Runtime writes down every domain that this process has ever heard of, such as those of custom operators."""
    used = {node.domain for node in nodes_of(proto.graph.node)} | {"", "ai.onnx"}
    kept = [(one.domain, one.version) for one in proto.opset_import if one.domain in used]
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(*one) for one in kept)


def refuse_quantized(proto: onnx.ModelProto, path: str) -> None:
    """Refuse a model that has integers already, before anything else is said of it: it rounds in ways of its own.

    Args:
        proto: the model.
        path: of it.

    Raises:
        ModelError: with the operators that show it.
    """
    found = Counter(node.op_type for node in proto.graph.node if node.op_type in _INTEGER_TYPES)
    if found:
        named = ", ".join(f"{count} {kind}" for kind, count in found.most_common(_NAMED))
        raise ModelError(f"{path}: is quantized already ({named}), expected float: build from what it was made of")


# Of its own accord ONNX Runtime remarks on standard error on every weight that nobody reads.
ort.set_default_logger_severity(3)
# What goes wrong in the pre-processing goes wrong in the next step too, and is said there in one line.
logging.getLogger("onnxruntime.quantization.shape_inference").setLevel(logging.CRITICAL)
