"""Plan: a request that was found possible before anything slow is done.

Request: which further models a bundle is to carry beside the one that model.toml describes.

resize: the checked model with another input size, or the reason why it cannot have one.

Owns what is set free and the words of the refusal. That the result is a model, and that its outputs are still what the
decoder reads, is for the export gate to say: inference of all shapes and a run, in its limited process.

dynamic: INT8 weights of matrix products, the ranges of activations taken from each frame.

Owns for which models that is of use: those that spend most of their work in products with weights, such as vision
transformers. A convolution quantized that way takes 2.8 times as long as in float.

half: float32 weights stored as float16, and cast back where they are used.

Owns the graph and its conversion: ONNX Runtime's constant folding would compute the casts and write float32 again.

Made: one model that a bundle may carry, with all that was measured of it.

The row of one model, for reports.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from edge_sdk.bundle.manifest import (
    Agreement,
    BoardEstimate,
    Difference,
    Golden,
    InputTensor,
    Precision,
    Quality,
    Variant,
)
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, UsageError, first_line
from edge_sdk.inference.session import Session
from edge_sdk_tools.bundle_folder import raise_if_full
from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.check.gate import CheckedModel, check_model, examine
from edge_sdk_tools.check.values import graph_values
from edge_sdk_tools.evaluate.evaluation import Evaluation, OnProgress
from edge_sdk_tools.evaluate.statistics import Figure, Interval
from edge_sdk_tools.graph.profile import register_extensions
from edge_sdk_tools.prove.golden import Proof
from edge_sdk_tools.quantize.convert import Converted, operators_config, operators_of
from edge_sdk_tools.quantize.simplified import simplify
from edge_sdk_tools.quiet import silenced
from edge_sdk_tools.report.schema import VariantRow

_SMALLEST, _LARGEST = 8, 8192  # sides that model.toml takes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one further variant.

    Attributes:
        sizes: other input sizes, width and height in pixels.
        fp32: the float model.
        fp16: the float model with its weights stored in half.
        dynamic: INT8 weights, the ranges of activations taken from each frame.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    fp32: bool = False
    fp16: bool = False
    dynamic: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not (self.sizes or self.fp32 or self.fp16 or self.dynamic)


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Sizes such as `640x384,416`: width x height, or one number for a square; each once.

    Raises:
        UsageError: something else is written there.
    """
    return tuple(dict.fromkeys(_size(part.strip(), text) for part in text.split(",")))


def size_text(size_wh: tuple[int, int]) -> str:
    """`640x384`."""
    return f"{size_wh[0]}x{size_wh[1]}"


def _size(part: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", part, re.ASCII)
    if found is None:
        raise UsageError(f"--sizes {text}: {part!r} is no size, expected such as 416 or 640x384, separated by commas")
    width, height = int(found[1]), int(found[2] or found[1])
    if not (_SMALLEST <= width <= _LARGEST and _SMALLEST <= height <= _LARGEST):
        raise UsageError(f"--sizes {text}: {part} is outside of {_SMALLEST} to {_LARGEST} pixels a side")
    return width, height


_SPATIAL = ("AveragePool", "Conv", "MaxPool")


class Resized(msgspec.Struct, frozen=True, eq=False):
    """The model at another size.

    Attributes:
        spec: model.toml with that size.
        checked: passed the export gate at that size.
    """

    spec: ModelSpec
    checked: CheckedModel


def resize(spec: ModelSpec, checked: CheckedModel, target: Target, size_wh: tuple[int, int], path: Path) -> Resized:
    """Give a checked model another input size.

    Args:
        spec: says how its outputs are read.
        checked: the model at the size of `spec`.
        target: what must run it.
        size_wh: the new size, pixels.
        path: of a file to write.

    Raises:
        UsageError: cells of its outputs would not lie evenly on the input.
        ModelError: it is made for one size only, or its outputs at this size are not what the decoder reads.
    """
    _refuse_uneven(spec, checked, size_wh)
    onnx.save(_set_free(checked.proto, spec), path)
    sized = msgspec.structs.replace(
        spec, model=str(path), input=msgspec.structs.replace(spec.input, size_wh=size_wh), teacher=None
    )
    try:
        return Resized(sized, check_model(sized, target))
    except ModelError as cause:
        raise ModelError(_refusal(spec, sized, target)) from cause


def stride_of(checked: CheckedModel, size_wh: tuple[int, int]) -> int:
    """Return the largest factor by which layers divide the input's sides; 1 where none divides both evenly."""
    values = graph_values(checked.proto.graph)
    names = [name for node in checked.proto.graph.node if node.op_type in _SPATIAL for name in node.output]
    shapes = [values[name].shape for name in names if name in values]
    return max((_stride(shape, size_wh) for shape in shapes if shape is not None), default=1)


def _stride(shape: tuple[int | str | None, ...], size_wh: tuple[int, int]) -> int:
    """Return the stride of one feature map; 1 where it has a single cell or unequal strides."""
    rows, columns = shape[2:] if len(shape) == 4 else (None, None)
    width, height = size_wh
    if not isinstance(rows, int) or not isinstance(columns, int) or min(rows, columns) < 2:
        return 1
    even = width % columns == 0 and height % rows == 0 and width // columns == height // rows
    return width // columns if even else 1


def _refuse_uneven(spec: ModelSpec, checked: CheckedModel, size_wh: tuple[int, int]) -> None:
    """A box or a class map of such a size would be off by parts of a cell, without any error."""
    stride = stride_of(checked, spec.input.size_wh)
    if spec.task == "classification" or not any(side % stride for side in size_wh):
        return
    width, height = (max(1, round(side / stride)) * stride for side in size_wh)
    raise UsageError(
        f"--sizes {size_text(size_wh)}: the model's layers divide its input by {stride}, expected a multiple of that: "
        f"try {size_text((width, height))}"
    )


def _set_free(proto: onnx.ModelProto, spec: ModelSpec) -> onnx.ModelProto:
    """Forget the sides of input and outputs, and all shapes between them."""
    free = onnx.ModelProto()
    free.CopyFrom(proto)
    weights = {w.name for w in free.graph.initializer}
    [image] = [i for i in free.graph.input if i.name not in weights]
    rows = 2 if spec.input.layout == "NCHW" else 1
    for axis in (rows, rows + 1):
        image.type.tensor_type.shape.dim[axis].Clear()
    for output in free.graph.output:
        for side in output.type.tensor_type.shape.dim:
            side.Clear()
    del free.graph.value_info[:]
    return free


def _refusal(spec: ModelSpec, sized: ModelSpec, target: Target) -> str:
    size = size_text(sized.input.size_wh)
    errors = examine(sized, target).of("error")
    why = errors[0].what.removeprefix(f"{sized.model}: ") if errors else "it does not pass the export gate"
    return (
        f"{spec.model}: --sizes {size}: the model cannot have this input size: {why}; it is made for "
        f"{size_text(spec.input.size_wh)}: export it with dynamic height and width, or leave {size} out"
    )


_PRODUCTS = ("Gemm", "MatMul")
_LEAST_SHARE = 0.5


class ProductWork(msgspec.Struct, frozen=True):
    """Multiply-accumulates of a model.

    Attributes:
        macs: of each product with weights, by node name.
        total: of all nodes.
    """

    macs: dict[str, int]
    total: int

    @property
    def share(self) -> float:
        """Of the products in all work, 0-1."""
        return sum(self.macs.values()) / self.total if self.total else 0.0


def product_work(proto: onnx.ModelProto) -> ProductWork:
    """Count a simplified model's multiply-accumulates."""
    values = graph_values(proto.graph)
    weights = {w.name for w in proto.graph.initializer}
    counts = [(node, node_macs(node, values) or 0) for node in proto.graph.node]
    products = {n.name: count for n, count in counts if n.op_type in _PRODUCTS and n.input[1] in weights}
    return ProductWork(products, sum(count for _, count in counts))


def refuse_without_products(proto: onnx.ModelProto) -> None:
    """Refuse a model that would only become slower.

    Raises:
        UsageError: less than half of its work is in products with weights.
    """
    share = product_work(proto).share
    if share < _LEAST_SHARE:
        raise UsageError(
            f"--with-dynamic: {share:.0%} of the model's multiply-accumulates are matrix products with weights, "
            f"expected {_LEAST_SHARE:.0%} or more: convolutions quantized dynamically are slower than in float; leave "
            "it out"
        )


def quantize_products(source: Path, path: Path, *, reduce_range: bool) -> None:
    """Quantize every product with weights, per channel.

    Args:
        source: a simplified model.
        path: of the file to write.
        reduce_range: 7-bit weights, for CPUs that would saturate.

    Raises:
        ModelError: the quantizer cannot handle the model.
        OSError: the disk is full.
    """
    try:
        with silenced():  # the quantizer narrates
            quantize_dynamic(
                source,
                path,
                op_types_to_quantize=list(_PRODUCTS),
                per_channel=True,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
            )
    except Exception as cause:  # the quantizer raises whatever its parts raise
        raise_if_full(path.parent, cause)
        raise ModelError(f"dynamic quantization failed: {first_line(cause)}") from cause


_FEWEST = 256  # elements: what is smaller saves less than its Cast costs
_LARGEST_FP16 = float(np.finfo(np.float16).max)
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
        if np.abs(values).max() > _LARGEST_FP16:
            raise ModelError(
                f"--with-fp16: weight {name!r} holds values beyond {_LARGEST_FP16:g}, float16's largest; leave it out"
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


class Plan(msgspec.Struct, frozen=True, eq=False):
    """The variants that a build will make.

    Attributes:
        request: what was asked for.
        resized: the model at each of the request's sizes but model.toml's own, in their order.
    """

    request: Request
    resized: tuple[Resized, ...] = ()


def plan_variants(spec: ModelSpec, target: Target, request: Request, work: Path, on_progress: OnProgress) -> Plan:
    """Try every size, and look at whether half weights and dynamic quantization fit.

    Args:
        spec: describes the model.
        target: what must run it.
        request: what is asked for.
        work: a folder for files.
        on_progress: for a progress bar.

    Raises:
        ModelError: the model does not pass the export gate, cannot have one of the sizes, or has weights too large
            for half.
        UsageError: dynamic quantization would only make it slower.
    """
    sizes = [size for size in request.sizes if size != spec.input.size_wh]
    if not (sizes or request.fp16 or request.dynamic):
        return Plan(request)
    on_progress("try sizes", 0, len(sizes))
    checked = check_model(spec, target)
    folder = work / "plan"
    folder.mkdir()
    if request.fp16:
        with_half_weights(checked.proto)
    if request.dynamic:
        refuse_without_products(simplify(checked.proto, folder).proto)
    resized = []
    for done, size_wh in enumerate(sizes, start=1):
        resized.append(resize(spec, checked, target, size_wh, folder / f"{size_text(size_wh)}.onnx"))
        on_progress("try sizes", done, len(sizes))
    return Plan(request, tuple(resized))


class Made(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """One variant that was made.

    Attributes:
        precision: of what it computes with.
        spec: model.toml, with this model's input size.
        is_resized: whether that is another size than model.toml's own.
        onnx: the model before conversion, by which golden outputs are computed.
        converted: the file that ships.
        tensor: what it takes; None where that is what `spec` says, in float32.
        timed: the file whose time is taken here: the same, unless that is written for another core.
        fp32: of the same size, loaded.
        proof: what was measured beside that.
        evaluation: beside FP32 of model.toml's own size.
        agreement: with the same.
        latency_ms: median on this machine, one thread, in turn with the others.
        latency_ratio: of that to FP32 of model.toml's own size.
        estimate: of its time on the target; None where nothing counted it.
        problem: why the bundle does not carry it; None when it does.
        doubt: what to know before believing it; None where there is nothing.
    """

    precision: Precision
    spec: ModelSpec
    is_resized: bool = False
    onnx: Path
    converted: Converted
    tensor: InputTensor | None = None
    timed: Path
    fp32: Session
    proof: Proof
    evaluation: Evaluation
    agreement: Agreement
    latency_ms: float
    latency_ratio: float
    estimate: BoardEstimate | None = None
    problem: str | None = None
    doubt: str | None = None

    @property
    def name(self) -> str:
        """The variant's name, such as `int8` or `int8.320x320`."""
        return f"{self.precision}.{size_text(self.spec.input.size_wh)}" if self.is_resized else self.precision

    @property
    def figure(self) -> Figure:
        """What it is judged by: quality by labels, and without them agreement."""
        return next(iter((*self.evaluation.quality, *self.evaluation.agreement)))

    def promised(self, golden: Golden) -> Variant:
        """The variant's entry in the manifest."""
        is_reference = self.precision == "fp32" and not self.is_resized
        return Variant(
            file=f"model.{self.name}{self.converted.model.suffix}",
            precision=self.precision,
            size_wh=self.spec.input.size_wh,
            golden=golden,
            operators=self.converted.operators,
            host_latency_ms=self.latency_ms,
            quality=self._quality(),
            agreement=None if is_reference else self.agreement,
            integer_mac_share=self.proof.integer_mac_share if self.precision.startswith("int8") else None,
            estimate=self.estimate,
            tensor=self.tensor,
        )

    def _quality(self) -> Quality | None:
        figure = next(iter(self.evaluation.quality), None)
        if figure is None or figure.reference is None:
            return None
        value = figure.value
        images = self.evaluation.images
        paired = figure.difference
        difference = None if paired is None else Difference("fp32", paired.value, paired.low, paired.high)
        return Quality(figure.name, value.value, value.low, value.high, figure.reference.value, images, difference)


def row_of(made: Made) -> VariantRow:
    """The row of one model."""
    figure = made.figure
    value = figure.value
    return VariantRow(
        name=made.name,
        precision=made.precision,
        size_wh=made.spec.input.size_wh,
        model_mb=made.proof.model_mb,
        latency_ms=made.latency_ms,
        latency_ratio=made.latency_ratio,
        metric=figure.name,
        value=value.value,
        change=figure.difference or Interval(*(x - 1 for x in (value.value, value.low, value.high))),
        integer_mac_share=made.proof.integer_mac_share if made.precision.startswith("int8") else None,
        estimate=made.estimate,
        problem=made.problem,
        doubt=made.doubt,
    )
