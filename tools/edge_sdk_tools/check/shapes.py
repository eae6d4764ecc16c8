"""Opset and shapes of a model: what the runtime reads, the input's sides as model.toml says, all behind them inferred.

Works on a skeleton, whose weights are inputs too. What onnx's converter leaves out is added here; `dry_run` compares
the results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import onnx
import onnx.inliner
import onnx.numpy_helper
from onnx import TensorProto

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import ModelError, first_line, raising
from edge_sdk_tools.check.model_file import ModelFile
from edge_sdk_tools.check.operators import KernelTable
from edge_sdk_tools.check.report import CheckReport, Finding, RefusedModelError, TensorInfo, error, note, show_shape
from edge_sdk_tools.graph.index import GraphIndex, Values, declared_value, graph_values, nodes_of

LOWEST_OPSET = 7
"""The lowest opset that ONNX Runtime promises to run, and from which a conversion can be held against the original."""

QUANTIZABLE_OPSET = 13
"""The lowest opset whose QuantizeLinear has an axis, which per-channel weights need."""

_LOWEST_IR_VERSION = 4  # from here on weights need not be inputs too
_RESIZE_MODES = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_AGAIN = "export the model again"
_FAR = 2**31 - 1  # a file may write 64 bits, onnx takes 32
_DEFAULT_DOMAINS = ("", "ai.onnx")


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the version of every domain that a model imports; the default domain has an empty name."""
    return {
        "" if o.domain in _DEFAULT_DOMAINS else o.domain: max(-_FAR, min(_FAR, int(o.version)))
        for o in proto.opset_import
    }


def check_opset(opset: int | None, highest: int, runtime: str) -> list[Finding]:
    """Compare a model's opset with the opsets that a runtime runs."""
    if opset is None:
        return [error("opset", "names no ai.onnx opset", "export it again")]
    if opset < LOWEST_OPSET:
        why = "what older operators compute is not defined well enough"
        return [error("opset", f"opset {opset}, expected {LOWEST_OPSET} or higher: {why}", "export it with opset 17")]
    if opset > highest:
        return [error("opset", f"opset {opset}, but {runtime} runs up to {highest}", "export it with a lower opset")]
    return []


def lower_ir_version(proto: onnx.ModelProto, highest: int, runtime: str) -> list[Finding]:
    """Set an IR version that a runtime reads, in place.

    What has been added since 10 (types of 2 bits, devices) is found by other checks, or is not kept by edge-sdk.
    """
    found = proto.ir_version
    proto.ir_version = max(_LOWEST_IR_VERSION, min(found, highest))
    if not 1 <= found <= onnx.IR_VERSION:
        known = f"1 to {onnx.IR_VERSION}, which are those that onnx {onnx.__version__} knows"
        return [error("ir-version", f"IR version {found}, expected {known}", "export it again")]
    if found <= highest:
        return []
    what = f"IR version {found}, but {runtime} reads up to {highest}; the bundle's model gets {highest}"
    step = f"nothing to do; to use the file elsewhere, set model.ir_version = {highest} and save it"
    return [note("ir-version", what, step)]


def raise_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert a model of a lower opset to `QUANTIZABLE_OPSET`; a RefusedModelError says that onnx cannot."""
    old = ("Upsample", "Resize") if opsets_of(proto)[""] <= 10 else ("Upsample",)
    resized = {node.output[0] for node in proto.graph.node if node.op_type in old}
    refuse = partial(RefusedModelError, next_step="export it with opset 17")
    with raising(refuse, f"opset could not be raised to {QUANTIZABLE_OPSET}", kinds=Exception):  # C++ types too
        converted = onnx.version_converter.convert_version(proto, QUANTIZABLE_OPSET)
    for node in converted.graph.node:
        if node.op_type == "Resize" and node.output[0] in resized:
            # What Upsample and Resize of opset 10 meant: onnx's converter leaves it at opset 11's other defaults.
            given = {attribute.name for attribute in node.attribute}
            modes = [onnx.helper.make_attribute(*mode) for mode in _RESIZE_MODES.items() if mode[0] not in given]
            node.attribute.extend(modes)
    return converted


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Put the functions of a model in the place of their calls; a RefusedModelError says that they cannot be.

    Functions that call themselves or grow without end are ended by the limits of the process.
    """
    if not proto.functions:
        return proto
    defined = {(f.domain, f.name) for f in proto.functions}
    refuse = partial(RefusedModelError, next_step=_AGAIN)
    with raising(refuse, "functions cannot be put in the place of their calls", kinds=Exception):  # C++ types too
        inlined = onnx.inliner.inline_local_functions(proto)
    left = next((n for n in nodes_of(inlined.graph.node) if (n.domain, n.op_type) in defined), None)
    if left is not None:
        raise RefusedModelError(
            f"function {left.op_type!r} was written for another opset than the model",
            "export the model again, or save it with onnx.inliner.inline_local_functions",
        )
    del inlined.functions[:]
    return inlined


MOST_TENSOR_BYTES = 2**30  # the largest tensor that a device could take
DATA_DEPENDENT = ("Compress", "Loop", "NonMaxSuppression", "NonZero", "StringSplit", "Unique")
"""Operators whose output's shape follows from the values of the input, not from its shape."""

_SHOWN = 5
_SMALLEST_SIDE = 8  # that model.toml takes
_ONE_ERROR = re.compile(r"\(op_type:\s*(?P<operator>[^,)]*)(?:, node name: (?P<node>[^)]*))?\):\s*(?P<what>[^\n]*)")


def image_input(proto: onnx.ModelProto, weights: Collection[str]) -> onnx.ValueInfoProto:
    """Find the one float32 input that is no weight; a RefusedModelError says that there is none, or another one."""
    inputs = _image_inputs(proto, weights)
    if len(inputs) != 1:
        names = f" ({', '.join(i.name for i in inputs[:_SHOWN])})" if inputs else ""
        what = f"has {len(inputs)} inputs, expected one image input{names}"
        raise RefusedModelError(what, "export it with the image as its only input")
    [image] = inputs
    kind = image.type.tensor_type.elem_type
    if kind != TensorProto.FLOAT:
        known = kind in TensorProto.DataType.values()
        found = TensorProto.DataType.Name(kind) if known else f"of unknown type {kind}"
        raise RefusedModelError(f"input {image.name!r} is {found}, expected FLOAT", "export it in float32")
    return image


def _image_inputs(proto: onnx.ModelProto, weights: Collection[str]) -> list[onnx.ValueInfoProto]:
    constants = {*weights, *(t.name for t in proto.graph.initializer)}
    return [i for i in proto.graph.input if i.name not in constants]


def free_unknown(graph: onnx.GraphProto) -> None:
    """Leave sides of inputs and outputs open, in place, that Paddle's exporter writes as -1."""
    for value in (*graph.input, *graph.output):
        for side in value.type.tensor_type.shape.dim:
            if side.dim_value == -1:
                side.Clear()


_WHOLE_NUMBERS = (TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64)


def take_floats(proto: onnx.ModelProto, weights: Collection[str], spec: InputSpec) -> list[Finding]:
    """Put a Cast before an image of whole numbers, in place, as TensorFlow's detectors take it; say so."""
    images = _image_inputs(proto, weights)
    if len(images) != 1 or images[0].type.tensor_type.elem_type not in _WHOLE_NUMBERS:
        return []
    [image] = images
    kind, whole = image.type.tensor_type.elem_type, f"{image.name}_whole"
    _rename(proto, image.name, whole)
    proto.graph.node.insert(0, onnx.helper.make_node("Cast", [image.name], [whole], to=kind))
    image.type.tensor_type.elem_type = TensorProto.FLOAT
    what = f"input {image.name!r} is {TensorProto.DataType.Name(kind)}; a Cast from float was put before it"
    if any(spec.mean) or any(value != 1 for value in spec.std):
        step = "take mean and std out of model.toml: the model takes pixels of 0-255 as they are"
        return [error("input", what, step)]
    return [note("input", what, "nothing to do: pixels are whole numbers")]


def _rename(proto: onnx.ModelProto, name: str, to: str) -> None:
    for node in nodes_of(proto.graph.node):
        node.input[:] = [to if found == name else found for found in node.input]
        node.output[:] = [to if found == name else found for found in node.output]


def fix_input(image: onnx.ValueInfoProto, spec: InputSpec) -> None:
    """Give the image input model.toml's shape, in place; RefusedModelError where a side is fixed to another."""
    expected = spec.tensor_shape
    found = declared_value(image).shape
    if found is not None and not _fits(found, expected):
        what = f"input {image.name!r} has shape {show_shape(found)}, model.toml says {show_shape(expected)}"
        raise RefusedModelError(f"{what} ({spec.layout}, {spec.color})", _input_advice(found, spec))
    image.type.tensor_type.shape.CopyFrom(_shape(expected))


def _input_advice(found: tuple[int | str | None, ...], spec: InputSpec) -> str:
    """Say what makes model.toml fit an image of this shape, as far as the shape says it."""
    if len(found) == 4 and _fits((1, *found[1:]), spec.tensor_shape):
        return "frames come one at a time: export it with batch 1 or a free batch"
    fitting = adopted(found, spec)
    keys = [f"size_wh = {list(fitting.size_wh)}"] if fitting.size_wh != spec.size_wh else []
    keys += [f'layout = "{fitting.layout}"'] if fitting.layout != spec.layout else []
    keys += [f'color = "{fitting.color}"'] if fitting.color != spec.color else []
    if keys:
        return f"set {' and '.join(keys)} under [input] in model.toml"
    return "correct input.size_wh, input.color or input.layout in model.toml"


def adopted(found: tuple[int | str | None, ...] | None, spec: InputSpec) -> InputSpec:
    """Return a [input] like `spec` that fits a declared shape; `spec` itself where none does."""
    other = msgspec.structs.replace(spec, layout="NHWC" if spec.layout == "NCHW" else "NCHW")
    grey = (msgspec.structs.replace(one, color="GRAY", mean=(0.0,), std=(1.0,)) for one in (spec, other))
    for candidate in (spec, other, *grey):
        resized = msgspec.structs.replace(candidate, size_wh=_size_wh(found or (), candidate))
        if found is not None and _fits(found, resized.tensor_shape):
            return resized
    return spec


def _size_wh(found: tuple[int | str | None, ...], spec: InputSpec) -> tuple[int, int]:
    """Return width and height of a shape; model.toml's where it leaves them free, or no image is so small."""
    if len(found) != 4:
        return spec.size_wh
    rows, columns = found[2:] if spec.layout == "NCHW" else found[1:3]
    width, height = (
        side if isinstance(side, int) and side >= _SMALLEST_SIDE else own
        for side, own in zip((columns, rows), spec.size_wh, strict=True)
    )
    return width, height


def infer(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Finding]]:
    """Infer every type and shape, whatever the file says of inner tensors; return the findings on contradictions."""
    del proto.graph.value_info[:]
    findings: list[Finding] = []
    for is_strict in (True, False):
        infer_shapes = partial(onnx.shape_inference.infer_shapes, strict_mode=is_strict, data_prop=is_strict)
        try:
            return infer_shapes(proto), findings
        except MemoryError:
            raise
        except Exception as cause:  # noqa: BLE001 - onnx raises InferenceError and its own C++ types alike
            findings = findings or _inference_findings(cause)
    return proto, findings


def check_sizes(proto: onnx.ModelProto) -> list[Finding]:
    """Name tensors that no device could hold, and sides below 0."""
    values = graph_values(proto.graph)
    makers = GraphIndex(proto.graph).makers
    findings = []
    for name, value in values.items():
        negative = any(isinstance(side, int) and side < 0 for side in value.shape or ())
        if not negative and (value.bytes or 0) <= MOST_TENSOR_BYTES:
            continue
        by = f" of node {makers[name].name!r} ({makers[name].op_type})" if name in makers else ""
        size = "a side below 0" if negative else f"{(value.bytes or 0) / 1e9:.3g} GB, expected 1 at most"
        what = f"tensor {name!r}{by} has shape {show_shape(value.shape)} and {size}"
        findings.append(error("size", what, "export it again", name))
    return findings[:_SHOWN]


def check_outputs(proto: onnx.ModelProto, weights: Collection[str]) -> list[Finding]:
    """Name outputs whose shape depends on what is in the picture, and those that no node fills."""
    links = GraphIndex(proto.graph)
    findings = _unfilled(proto.graph, {*weights, *links.constants})
    for output in proto.graph.output:
        value = declared_value(output)
        maker = _data_dependent(output.name, links) if value.count is None else None
        if maker is None:
            continue
        what = (
            f"output {output.name!r} has shape {show_shape(value.shape)}: {_first_free(value.shape)} is known only "
            f"when node {maker.name!r} ({maker.op_type}) has run, expected fixed shapes"
        )
        step = "cut the model before that node, or export it without it"
        if maker.op_type == "NonMaxSuppression":
            step = "export it without suppression (nms=False): edge-sdk suppresses overlaps itself"
        findings.append(error("dynamic", what, step, output.name))
    return findings


def _unfilled(graph: onnx.GraphProto, weights: Collection[str]) -> list[Finding]:
    """Name outputs that are the image itself, or there twice: ONNX Runtime does not write to their buffers."""
    times = Counter(output.name for output in graph.output)
    problems = {name: f"is there {count} times" for name, count in times.items() if count > 1}
    images = {value.name for value in graph.input} - set(weights)
    problems |= {name: "is the input itself" for name in times if name in images}
    expected, step = "expected a result of its nodes, once", "export it without this output"
    return [error("output", f"output {name!r} {said}, {expected}", step, name) for name, said in problems.items()]


DETECTIONS = 300
"""Rows of a detector that suppresses overlaps in its graph, where it has as many as it finds."""


def rows_to_fix(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the fixed shapes of outputs with a row for each object found, as torchvision and TensorFlow write them.

    They are boxes Nx4 or 1xNx4, and others of N; empty for models of another kind.
    """
    links = GraphIndex(proto.graph)
    shapes = {output.name: declared_value(output) for output in proto.graph.output}
    free = {name: v.shape or () for name, v in shapes.items() if v.count is None and _data_dependent(name, links)}
    boxes = [shape for shape in free.values() if len(shape) in (2, 3) and shape[-1] == 4]
    if len(boxes) != 1 or len(free) < 3:
        return {}
    n = DETECTIONS
    fixed: dict[int, tuple[int, ...]] = {3: (1, n, 4), 2: (1, n), 1: (1,)}
    fixed = {2: (n, 4), 1: (n,)} if len(boxes[0]) == 2 else fixed
    if any(len(shape) not in fixed for shape in free.values()):
        return {}
    return {name: fixed[len(shape)] for name, shape in free.items()}


def fix_rows(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Fill outputs with zeros up to these shapes, in place; what is beyond them is cut off."""
    for output in proto.graph.output:
        shape = shapes.get(output.name)
        if shape is None:
            continue
        found, name = f"{output.name}_found", output.name
        _rename(proto, name, found)
        axis = shape.index(DETECTIONS) if DETECTIONS in shape else 0
        kind = onnx.helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
        constants = {
            "zeros": np.zeros(shape, kind),
            "first": np.array([0]),
            "end": np.array([shape[axis]]),
            "axis": np.array([axis]),
            "shape": np.array(shape),
        }
        for key, value in constants.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(value, f"{name}_{key}"))
        cut = [f"{name}_{key}" for key in ("filled", "first", "end", "axis")]
        proto.graph.node.append(onnx.helper.make_node("Concat", [found, f"{name}_zeros"], cut[:1], axis=axis))
        proto.graph.node.append(onnx.helper.make_node("Slice", cut, [f"{name}_rows"]))
        proto.graph.node.append(onnx.helper.make_node("Reshape", [f"{name}_rows", f"{name}_shape"], [name]))


def fix_outputs(proto: onnx.ModelProto, values: Values) -> None:
    """Give the outputs the shapes that are known of them by now, in place."""
    for output in proto.graph.output:
        value = values.get(output.name)
        if value is not None and value.count is not None:
            output.type.tensor_type.shape.CopyFrom(_shape(value.shape or ()))


def declare(proto: onnx.ModelProto, names: Collection[str], values: Values) -> None:
    """Write down what was seen of tensors that inference cannot know, in place."""
    known = {info.name for info in (*proto.graph.value_info, *proto.graph.output)}
    for name in names:
        value = values.get(name)
        if name not in known and value is not None and value.element is not None and value.count is not None:
            kind = TensorProto.DataType.Value(value.element.upper())
            proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))


def name_nodes(proto: onnx.ModelProto) -> None:
    """Give every node a unique name, because quantization excludes nodes by name."""
    taken: set[str] = set()
    for index, node in enumerate(nodes_of(proto.graph.node)):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)


def _shape(sides: Sequence[int | str | None]) -> onnx.TensorShapeProto:
    fixed = [onnx.TensorShapeProto.Dimension(dim_value=side) for side in sides if isinstance(side, int)]
    return onnx.TensorShapeProto(dim=fixed)


def _fits(found: Sequence[int | str | None], expected: Sequence[int]) -> bool:
    return len(found) == len(expected) and all(
        not isinstance(f, int) or f == e for f, e in zip(found, expected, strict=True)
    )


def _first_free(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "its rank"
    index = next(index for index, side in enumerate(shape) if not isinstance(side, int) or side < 0)
    return f"dimension {index}" + (f" ({shape[index]})" if shape[index] else "")


def _data_dependent(name: str, links: GraphIndex) -> onnx.NodeProto | None:
    """Return the nearest node before a tensor whose output's shape depends on values."""
    followed = links.before(name)
    return next((node for node in followed if any(n.op_type in DATA_DEPENDENT for n in nodes_of([node]))), None)


def _inference_findings(cause: Exception) -> list[Finding]:
    found = []
    for match in _ONE_ERROR.finditer(str(cause)):
        node = match["node"] or ""
        what = f"node {node or '?'!r} ({match['operator']}): {_plain(match['what'])}"
        found.append(error("shape", what, _AGAIN, node))
    return found[:_SHOWN] or [error("shape", _plain(first_line(cause)), _AGAIN)]


def _plain(text: str) -> str:
    return re.sub(r"\[\w+Error\]\s*", "", text).strip().rstrip(".")


_LONGEST_PRODUCER = 100
_MOST_KEYS, _LONGEST_KEY, _LONGEST_VALUE = 64, 100, 1 << 17  # 2,000 names of classes take 50 kB


def with_facts(report: CheckReport, file: ModelFile, proto: onnx.ModelProto, table: KernelTable | None) -> CheckReport:
    """Add what holds before anything is changed."""
    try:
        declared = declared_value(image_input(proto, file.weights)).shape
    except ModelError:
        declared = None
    wrote: tuple[object, ...] = (proto.producer_name, proto.producer_version)  # bytes where it is no UTF-8
    return msgspec.structs.replace(
        report,
        declared=declared,
        kernel_table=table.onnxruntime if table else "",
        sha256=file.sha256,
        size_mb=sum(file.sizes.values()) / 1e6,
        files=tuple(sorted(name for name in file.sizes if name)),
        opset=opsets_of(proto).get(""),
        ir_version=int(proto.ir_version),
        producer=" ".join(t for t in wrote if isinstance(t, str) and t and t.isprintable())[:_LONGEST_PRODUCER],
        metadata={e.key[:_LONGEST_KEY]: e.value[:_LONGEST_VALUE] for e in proto.metadata_props[:_MOST_KEYS]},
    )


def with_tensors(report: CheckReport, proto: onnx.ModelProto, weights: Collection[str]) -> CheckReport:
    """Add image and outputs, as they are now."""
    try:
        image = _info(image_input(proto, weights))
    except ModelError:
        image = None
    links = GraphIndex(proto.graph)
    outputs = tuple(_info(output, _operator_of(output.name, links)) for output in proto.graph.output)
    return msgspec.structs.replace(report, input=image, outputs=outputs)


_MOVES = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _operator_of(name: str, links: GraphIndex) -> str:
    """Return the type of the node that computes a tensor's values; of joined parts the type of all, or else Concat."""
    node = _maker_of(name, links)
    if node is None or node.op_type != "Concat":
        return node.op_type if node is not None else ""
    parts = [_maker_of(part, links) for part in node.input]
    types = {part.op_type if part is not None else node.op_type for part in parts}
    return types.pop() if len(types) == 1 else node.op_type


def _maker_of(name: str, links: GraphIndex) -> onnx.NodeProto | None:
    node = links.makers.get(name)
    while node is not None and node.op_type in _MOVES and node.input:
        node = links.makers.get(node.input[0])
    return node


def _info(declared: onnx.ValueInfoProto, operator: str = "") -> TensorInfo:
    value = declared_value(declared)
    return TensorInfo(declared.name, value.element, value.shape, operator)
