"""resize: the checked model with another input size, or the reason why it cannot have one.

Owns what is set free and the words of the refusal. That the result is a model, and that its outputs are still what the
decoder reads, is for the export gate to say: inference of all shapes and a run, in its limited process.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk_tools.check import CheckedModel, check_model, examine
from edge_sdk_tools.check.values import graph_values
from edge_sdk_tools.variants.request import size_text

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
    """By how much the layers divide the input's sides at most; 1 where none divides both of them evenly."""
    values = graph_values(checked.proto.graph)
    names = [name for node in checked.proto.graph.node if node.op_type in _SPATIAL for name in node.output]
    shapes = [values[name].shape for name in names if name in values]
    return max((_stride(shape, size_wh) for shape in shapes if shape is not None), default=1)


def _stride(shape: tuple[int | str | None, ...], size_wh: tuple[int, int]) -> int:
    """Of one map of cells; 1 where it is none: a single cell tells nothing, and unequal strides are no picture's."""
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
