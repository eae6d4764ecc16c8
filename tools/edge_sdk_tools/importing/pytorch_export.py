"""A PyTorch model -> ONNX, by torch.export's exporter or the one that traces TorchScript.

Owns their order (docs/adr/0011), their options, and what is cleared from their graphs. Compares nothing.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnxscript  # noqa: F401 - torch asks for it in the middle of an export
import torch

from edge_sdk.frame import Tensor
from edge_sdk_tools.importing.fault import first_line, root_cause
from edge_sdk_tools.importing.global_pool import pool_means
from edge_sdk_tools.importing.pytorch_model import TorchModel
from edge_sdk_tools.importing.silence import silenced

INPUT_NAME = "images"
PREFERRED_OPSET = 18
"""What torch.export's exporter is written for; to lower ones it converts, and was seen to fail or to write a model that
does not load."""

_BATCH = "batch"


class Exported(msgspec.Struct, frozen=True, eq=False):
    """What an exporter made.

    Attributes:
        proto: the ONNX model.
        exporter: its name, for people.
        frozen_at: `FILE.py:LINE` of each place where tracing took a number out of a tensor and went on with it.
    """

    proto: onnx.ModelProto
    exporter: str
    frozen_at: tuple[str, ...] = ()


class Order(msgspec.Struct, frozen=True, eq=False):
    """What is to be exported.

    Attributes:
        model: the model.
        example: one input, float32 of model.toml's shape.
        output_names: in order.
        opset: of ai.onnx.
        dynamic_batch: whether the first axis is left free.
    """

    model: TorchModel
    example: Tensor
    output_names: Sequence[str]
    opset: int
    dynamic_batch: bool


class Exporter(msgspec.Struct, frozen=True):
    """One way to export.

    Attributes:
        name: for people.
        export: gives what it made, or in one line why it could not.
    """

    name: str
    export: Callable[[Order], Exported | str]


def exporters_for(model: TorchModel, opset: int) -> tuple[Exporter, ...]:
    """The exporters that take this model at this opset, the better one first."""
    exporters = []
    if model.form != "script" and opset >= PREFERRED_OPSET:
        exporters.append(Exporter("torch.export", _export_program))
    if model.form != "program":
        exporters.append(Exporter("TorchScript", _export_trace))
    return tuple(exporters)


def _export_program(order: Order) -> Exported | str:
    """Export through torch.export, which follows Python code without running it on numbers."""
    model, example = order.model, torch.from_numpy(order.example)
    if order.dynamic_batch:
        example = example.repeat(2, 1, 1, 1)  # torch.export takes an axis of 1 for a fixed one
    options: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim(_BATCH)},)} if order.dynamic_batch else {}
    subject = (model.program,) if model.program is not None else (model.module, (example,))
    try:
        with silenced(), torch.no_grad():
            made = torch.onnx.export(
                *subject,
                dynamo=True,
                opset_version=order.opset,
                input_names=[INPUT_NAME],
                output_names=list(order.output_names),
                optimize=True,
                verbose=False,
                **(options if model.program is None else {}),
            )
        proto = made.model_proto
    except Exception as cause:  # noqa: BLE001 - an exporter raises whatever its parts raise
        return _reason(cause)
    _clear(proto)
    pool_means(proto)
    return Exported(proto, f"torch.export of PyTorch {torch.__version__}")


def _export_trace(order: Order) -> Exported | str:
    """Export by running the model once and writing down what it did."""
    written = io.BytesIO()
    names = [INPUT_NAME, *order.output_names]
    axes = {name: {0: _BATCH} for name in names} if order.dynamic_batch else None
    try:
        with silenced() as heard, torch.no_grad():
            torch.onnx.export(
                order.model.module,
                (torch.from_numpy(order.example.copy()),),
                written,
                dynamo=False,
                opset_version=order.opset,
                input_names=[INPUT_NAME],
                output_names=list(order.output_names),
                dynamic_axes=axes,
                do_constant_folding=True,
            )
        proto = onnx.load_model_from_string(written.getvalue())
    except Exception as cause:  # noqa: BLE001 - an exporter raises whatever its parts raise
        return _reason(cause)
    _clear(proto)
    return Exported(proto, f"TorchScript of PyTorch {torch.__version__}", _frozen_at(heard, order.model.folder))


def _frozen_at(heard: Sequence[warnings.WarningMessage], folder: Path) -> tuple[str, ...]:
    """Where the tracer warned; in the user's code if anywhere there, because libraries ask for shapes all the time."""
    places = [(Path(w.filename), w.lineno) for w in heard if issubclass(w.category, torch.jit.TracerWarning)]
    theirs = [place for place in places if place[0].is_relative_to(folder)]
    return tuple(dict.fromkeys(f"{path.name}:{line}" for path, line in theirs or places))


def _reason(cause: Exception) -> str:
    """What lies at the bottom of an exporter's exceptions, without the names of its own symbols."""
    return first_line(root_cause(cause)).split(" (unhinted:")[0].rstrip(".")


def _clear(proto: onnx.ModelProto) -> None:
    """Drop what exporters note for themselves: source lines and paths of this machine."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        for field in ("metadata_props", "doc_string"):
            if field in part.DESCRIPTOR.fields_by_name:  # some parts have them in newer versions of ONNX only
                part.ClearField(field)
