"""A PyTorch model -> ONNX: the exporters in their order (docs/adr/0010), until one writes what computes the same."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import onnx
import onnxscript  # noqa: F401 - torch asks for it in the middle of an export
import torch

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.importers.comparison import Observation, OutputDifference, Probe, verify
from edge_sdk_tools.importers.onnx_model import pool_means
from edge_sdk_tools.importers.plan import place_of, silenced
from edge_sdk_tools.importers.pytorch_model import TorchModel

INPUT_NAME = "images"
PREFERRED_OPSET = 18
"""The opset that torch.export's exporter is written for; to lower ones it converts, and was seen to fail or to write a
model that does not load."""
_BATCH = "batch"
_PROGRAM, _TRACE = "torch.export", "TorchScript"
_NOT_THE_MODEL = (Path(torch.__file__).parent, Path(__file__).parent)
_REMEDY = "use torch.where instead of if, fixed loop counts and shapes, and tensors instead of item()"


class Exported(msgspec.Struct, frozen=True, eq=False):
    """The ONNX model that an exporter, named with its version, made.

    Attributes:
        frozen_at: `FILE.py:LINE` of each place where tracing took a number out of a tensor and went on with it.
        outputs: how far it lies from the PyTorch model; empty before it was compared.
        notes: what to know of it, in words.
    """

    proto: onnx.ModelProto
    exporter: str
    frozen_at: tuple[str, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()
    notes: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """Why an exporter made nothing that can be used.

    Attributes:
        reason: in one line; empty where `data_decides_at` says it all.
        data_decides_at: `FILE.py:LINE` of each place where forward does one thing or another by the values of tensors.
    """

    exporter: str
    reason: str
    data_decides_at: tuple[str, ...] = ()


class Order(msgspec.Struct, frozen=True, eq=False):
    """The module and its example inputs that are to be exported."""

    model: TorchModel
    example: Tensor
    output_names: Sequence[str]
    opset: int
    dynamic_batch: bool


def _export_program(order: Order) -> Exported:
    """Export through torch.export, which follows Python code without running it on numbers."""
    model, example = order.model, torch.from_numpy(order.example)
    if order.dynamic_batch:
        example = example.repeat(2, 1, 1, 1)  # torch.export takes an axis of 1 for a fixed one
    options = {"dynamic_shapes": ({0: torch.export.Dim(_BATCH)},)} if order.dynamic_batch else {}
    subject = (model.program,) if model.program is not None else (model.module, (example,))
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
    proto = made.model_proto  # another one each time
    pool_means(proto)
    return Exported(proto, f"{_PROGRAM} of PyTorch {torch.__version__}")


def _export_trace(order: Order) -> Exported:
    written = io.BytesIO()
    names = [INPUT_NAME, *order.output_names]
    with silenced() as heard, torch.no_grad():
        torch.onnx.export(
            order.model.module,
            (torch.from_numpy(order.example.copy()),),
            written,
            dynamo=False,
            opset_version=order.opset,
            input_names=names[:1],
            output_names=names[1:],
            dynamic_axes={name: {0: _BATCH} for name in names} if order.dynamic_batch else None,
            do_constant_folding=True,
        )
    proto = onnx.load_model_from_string(written.getvalue())
    return Exported(proto, f"{_TRACE} of PyTorch {torch.__version__}", _frozen_at(heard, order.model.folder))


def _frozen_at(heard: Sequence[warnings.WarningMessage], folder: Path) -> tuple[str, ...]:
    """Return the place of the tracer's warning, in the user's own code where there is one."""
    places = [(Path(w.filename), w.lineno) for w in heard if issubclass(w.category, torch.jit.TracerWarning)]
    theirs = [place for place in places if place[0].is_relative_to(folder)]
    return tuple(dict.fromkeys(f"{path.name}:{line}" for path, line in theirs or places))


def _failure(exporter: str, cause: BaseException, folder: Path) -> Failure:
    """Return the failure that lies at the bottom of an exporter's exceptions."""
    while cause.__cause__ is not None:
        cause = cause.__cause__
    # By its words: the exception's class has moved from version to version, and names only symbols of its own.
    if "data-dependent" in str(cause):
        # The model's layers may come from a package, whose files are not in the user's folder.
        theirs = place_of(cause, lambda path: path.is_relative_to(folder))
        place = theirs or place_of(cause, lambda path: not any(map(path.is_relative_to, _NOT_THE_MODEL)))
        return Failure(exporter, "", (place or "a place that PyTorch does not name",))
    return Failure(exporter, first_line(cause).rstrip("."))


def _clear(proto: onnx.ModelProto) -> None:
    """Drop what exporters note for themselves: source lines and paths of this machine."""
    graph = proto.graph
    for part in (proto, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        for field in ("metadata_props", "doc_string"):
            if field in part.DESCRIPTOR.fields_by_name:  # some parts have them in newer versions of ONNX only
                part.ClearField(field)


def export(order: Order, probes: Sequence[Probe], observation: Observation) -> Exported:
    """Return what the first exporter makes that computes the same as the model; a ModelError says why none does."""
    exporters: dict[str, Callable[[Order], Exported]] = {}
    if order.model.form != "script" and order.opset >= PREFERRED_OPSET:
        exporters[_PROGRAM] = _export_program
    if order.model.form != "program":
        exporters[_TRACE] = _export_trace
    failures: list[Failure] = []
    for name, exporter in exporters.items():
        made = _tried(name, exporter, order, probes, observation)
        if isinstance(made, Exported):
            return msgspec.structs.replace(made, notes=_notes(made, failures, len(probes)))
        failures.append(made)
    if not failures:
        raise ModelError(
            f"{order.model.where}: a torch.export archive is exported with opset {PREFERRED_OPSET} or more, this "
            f"target runs up to {order.opset}; export from FILE.py:FUNCTION"
        )
    raise ModelError(f"{order.model.where}: {_explain(failures)}")


def _tried(
    name: str, exporter: Callable[[Order], Exported], order: Order, probes: Sequence[Probe], observation: Observation
) -> Exported | Failure:
    try:
        made = exporter(order)
    except Exception as cause:  # noqa: BLE001 - an exporter raises whatever its parts raise
        return _failure(name, cause, order.model.folder)
    _clear(made.proto)
    try:
        found = verify(made.proto.SerializeToString(), "the exported model", probes, observation)
    except ModelError as cause:  # exporters do write what ONNX Runtime does not load
        return Failure(name, str(cause))
    if found.problem is None:
        return msgspec.structs.replace(made, outputs=found.outputs)
    if found.is_explained or made.frozen_at:
        return Failure(name, found.problem, () if found.is_explained else made.frozen_at)
    return Failure(name, f"{found.problem}: the exporter wrote another computation")


def _explain(failures: Sequence[Failure]) -> str:
    reasons = "; ".join(f"{failure.exporter}: {failure.reason}" for failure in reversed(failures) if failure.reason)
    places = next((failure.data_decides_at for failure in failures if failure.data_decides_at), ())
    if not places:
        return f"cannot be exported; {reasons}"
    details = f" ({reasons})" if reasons else ""
    return f"data-dependent control flow, shape or item() at {', '.join(places)}; {_REMEDY}{details}"


def _notes(made: Exported, failures: Sequence[Failure], probes: int) -> tuple[str, ...]:
    notes = [f"the model was traced, because {f.exporter} could not take it: {f.reason}" for f in failures if f.reason]
    if made.frozen_at:
        notes.append(
            f"forward takes numbers out of tensors at {', '.join(made.frozen_at)}, and the graph keeps what they were "
            f"at export; all {probes} inputs that were compared agree, but to be sure {_REMEDY}"
        )
    return tuple(notes)
