"""The float model as the quantizer wants it: constants folded, batch normalizations gone, its decoding tail known.

The tail only turns the last layers' numbers into boxes and scores and must not lose a digit; what of the other
convolutions' work runs in integers is counted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.bundle_folder import raise_if_full
from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.graph.index import (
    GraphIndex,
    attribute,
    constants_of,
    graph_values,
    keep_used_domains,
    pool_means,
    replace_all,
)
from edge_sdk_tools.graph.profile import extension_nodes, register_extensions

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
_CORNERS = (4, 4)
_THREE, _SIX = 3, 6
_ALL = ort.GraphOptimizationLevel.ORT_ENABLE_ALL


@contextlib.contextmanager
def failing_as(what: str, folder: Path) -> Iterator[None]:
    """Turn whatever a library raises into a ModelError, but for what the disk raises; `folder` tells if it is full."""
    try:
        yield
    except Exception as cause:
        raise_if_full(folder, cause)
        raise ModelError(f"{what}: {first_line(cause)}") from cause


def open_session(
    model: bytes, level: ort.GraphOptimizationLevel = _ALL, optimized: Path | None = None
) -> ort.InferenceSession:
    """Open a model that runs on one thread and logs nothing: several images at once keep the cores busier.

    What ONNX Runtime makes of it is written to `optimized`, where one is given.
    """
    options = ort.SessionOptions()
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = level
    register_extensions(options, model)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def weighted_macs(proto: onnx.ModelProto, *kinds: str) -> dict[str, int]:
    """Return the multiply-accumulates of nodes of these types with constant weights by name, batch 1.

    Shapes must have been inferred.
    """
    values, weights = graph_values(proto.graph), {weight.name for weight in proto.graph.initializer}
    found = [node for node in proto.graph.node if node.op_type in kinds and node.input[1] in weights]
    return {node.name: count for node in found if (count := node_macs(node, values))}


def decoding_tail(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the nodes between the last layers that learn and the outputs, in graph order.

    Boxes in pixels and scores of 0-1 that share one tensor share one scale, and INT8 turns the scores into zeros. The
    structure alone decides: a node is in the tail when no path from it to an output meets a layer. Two kinds of
    products with constants are arithmetic and no layers: the mean of a distribution (YOLOv8, NanoDet and others that
    learn by generalized focal loss), which follows a softmax and leaves one number of each; and the four sides of a box
    times 4 x 4 numbers (YOLOv7 with suppression), from its middle and size to its corners.
    """
    links = GraphIndex(proto.graph)
    shapes = {name: tuple(constant.dims) for name, constant in constants_of(proto.graph).items()}
    before_layer: set[str] = set()  # tensors from which a weighted layer is reached
    tail: list[str] = []
    for node in reversed(proto.graph.node):
        learns = node.op_type in WEIGHTED and not _is_arithmetic(node, shapes, links)
        reaches = learns or any(name in before_layer for name in node.output)
        if reaches:
            before_layer.update(node.input)
        else:
            tail.append(node.name)
    return tuple(reversed(tail))


def _is_arithmetic(node: onnx.NodeProto, constants: Mapping[str, tuple[int, ...]], links: GraphIndex) -> bool:
    shape = constants.get(node.input[1]) if len(node.input) > 1 else None
    if shape is None:
        return False
    if node.op_type == "Conv":
        leaves_one = shape[0] == 1 and set(shape[2:]) == {1}
    elif node.op_type in ("MatMul", "Gemm"):
        if shape == _CORNERS:
            return True
        leaves_one = len(shape) == 1 or shape[0 if attribute(node, "transB", 0) else -1] == 1
    else:
        return False
    before = links.makers.get(node.input[0])
    while before is not None and before.op_type in _MOVES:
        before = links.makers.get(before.input[0])
    return leaves_one and before is not None and before.op_type == "Softmax"


def join_hard_sigmoids(proto: onnx.ModelProto) -> None:
    """Replace, in place, each HardSigmoid and HardSwish that is written as several nodes by HardSigmoid, and a Mul.

    HardSigmoid is min(max(x + 3, 0), 6) / 6 and HardSwish x times that, where the division may come last or be a
    product with 1/6. Each node of it in integers would round with a scale of its own. Constants must be initializers.
    """
    graph, links = proto.graph, GraphIndex(proto.graph)
    placed: dict[str, list[onnx.NodeProto]] = {}  # what stands in the place of a node, by the tensor that it made
    for clip in graph.node:
        add = links.maker(clip.input[0], "Add") if clip.op_type == "Clip" and _is_clip_to_six(clip, links) else None
        if add is None or links.only_reader(add.output[0], "Clip") is None:
            continue
        read = [one for one, other in (add.input, add.input[::-1]) if _is(other, _THREE, links)]
        made = clip.output[0]
        product = links.only_reader(made, "Mul")
        if product is None or sorted(product.input) != sorted([*read, made]):
            product = None
        value = made if product is None else product.output[0]
        last = links.only_reader(value, "Mul", "Div")
        if not read or last is None or not _is_sixth(last, value, links):
            continue
        result = last.output[0] if product is None else made
        hard = helper.make_node("HardSigmoid", read, [result], clip.name, alpha=1 / _SIX, beta=_THREE / _SIX)
        placed |= {add.output[0]: [], last.output[0]: [], made: [hard]}
        if product is not None:
            placed[value] = [helper.make_node("Mul", [*read, made], last.output, product.name)]
    replace_all(graph.node, [one for node in graph.node for one in placed.get(node.output[0], [node])])


def _is_clip_to_six(node: onnx.NodeProto, links: GraphIndex) -> bool:
    if len(node.input) == 1:  # before opset 11
        return (attribute(node, "min"), attribute(node, "max")) == (0, _SIX)
    return len(node.input) == 3 and _is(node.input[1], 0, links) and _is(node.input[2], _SIX, links)


def _is_sixth(node: onnx.NodeProto, value: str, links: GraphIndex) -> bool:
    """Tell whether a Mul or Div makes a sixth of a value."""
    if node.op_type == "Div":
        return node.input[0] == value and _is(node.input[1], _SIX, links)
    return any(_is(name, 1 / _SIX, links) for name in node.input)


def _is(name: str, number: float, links: GraphIndex) -> bool:
    value = links.value(name)
    if value is None or value.dtype != np.float32 or value.shape not in ((), (1,)):
        return False
    return bool(np.isclose(value.item(), number))


QUANTIZED_TYPES = tuple(sorted({*QLinearOpsRegistry, *QDQRegistry}))
"""Operators that ONNX Runtime's quantizer takes."""


class Simplified(msgspec.Struct, frozen=True, eq=False):
    """A float model, ready to be quantized, with the shapes of all tensors; `path` is the same as a file.

    `given` is the file of the checked model, as it was before, `tail` has the names of the nodes of its decoding tail,
    `macs` the multiply-accumulates of every convolution outside of that, by node name.
    """

    proto: onnx.ModelProto
    path: Path
    given: Path
    tail: tuple[str, ...]
    macs: dict[str, int]


def simplify(proto: onnx.ModelProto, folder: Path) -> Simplified:
    """Simplify a checked float model, in `folder`; a ModelError says that ONNX Runtime cannot."""
    source, result = folder / "fp32.onnx", folder / "simplified.onnx"
    onnx.save(proto, source)
    ort.set_default_logger_severity(3)  # by default it writes a line to standard error for every unused weight
    # Errors of the pre-processing occur in the next step, too, which reports them in one line.
    logger = logging.getLogger("onnxruntime.quantization.shape_inference")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with failing_as("quantization failed", folder):
            given, has_extensions = source, bool(extension_nodes(proto))
            if has_extensions:  # the first step of `quant_pre_process`, which it cannot do with these operators
                given = folder / "optimized.onnx"
                open_session(proto.SerializeToString(), ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, given)
            # Symbolic shape inference is for dynamic shapes, which the check has fixed.
            options = {"skip_symbolic_shape": True, "skip_optimization": has_extensions}
            quant_pre_process(str(given), str(result), **options)
            simplified = onnx.load(result)
            if not simplified.graph.output:  # ONNX Runtime says nothing where it cannot write
                raise ValueError("nothing was written")
            # ONNX Runtime writes down every domain that this process has ever heard of, as of custom operators.
            keep_used_domains(simplified)
            join_hard_sigmoids(simplified)
            pool_means(simplified)
            onnx.save(simplified, result)
    finally:
        logger.setLevel(level)
    tail = decoding_tail(simplified)
    macs = {name: count for name, count in weighted_macs(simplified, "Conv").items() if name not in tail}
    return Simplified(simplified, result, source, tail, macs)
