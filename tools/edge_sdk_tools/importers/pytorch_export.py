"""A PyTorch model, loaded from FILE.py:FUNCTION, torch.export's .pt2 or TorchScript's .pt, and exported as ONNX.

Loading an archive or a state dict runs no Python code of it; a function's code is the user's own, and what it raises is
told in one line. Dicts and tuples of outputs are flattened. Weights of float16, bfloat16 and float64 become float32;
those that are not finite are refused. The exporters are tried in their order (docs/adr/0010), until one writes what
computes the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import onnx
import onnxscript  # noqa: F401 - torch asks for it in the middle of an export
import torch

from edge_sdk.core.errors import ModelError, first_line, raising
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.check.model_file import MOST_BYTES
from edge_sdk_tools.check.report import show_shape
from edge_sdk_tools.graph.index import pool_means
from edge_sdk_tools.importers.comparison import Observation, OutputDifference, Probe, verify
from edge_sdk_tools.importers.plan import describe_fault, place_of, silenced

Form: TypeAlias = Literal["module", "program", "script"]
# Named by torch.export.pt2_archive.constants; these are unpickled without any limit when loaded.
_OBJECTS = ("custom_obj_", "opaque_obj_")
# torch.load obeys it over the `weights_only=False` that torch.export.load falls back to.
_SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_EXPECTED = "tensors, alone or in tuples, lists and dicts"
_NAMED = 8
_PREFIX = "module."  # what torch.nn.DataParallel and DistributedDataParallel put before every key
_NAMED_KEYS = 3
_SAVE = "save the state dict alone: torch.save(model.state_dict(), 'state_dict_alone.pth')"


class TorchModel(msgspec.Struct, frozen=True, eq=False):
    """One model in evaluation mode, in float32 on the CPU; `notes` say what was changed for that.

    Faults are looked for in `folder`, the absolute one of its file. `program` is the content of a .pt2 archive, which
    exporters take; None for the other forms.
    """

    where: str
    folder: Path
    form: Form
    module: torch.nn.Module
    program: torch.export.ExportedProgram | None = None
    notes: tuple[str, ...] = ()

    def __call__(self, tensor: Tensor) -> dict[str, Tensor]:
        """Run it on one float32 input; outputs are named `output`, or by the keys and numbers of what they lie in."""
        try:
            with torch.no_grad():
                made = self.module(torch.from_numpy(tensor.copy()))  # a copy: forward may write to its input
        except (Exception, SystemExit) as cause:  # whatever users' code raises
            shape = show_shape(tensor.shape)
            raise ModelError(
                f"{self.where}: forward failed on an input of {shape} (size_wh, color and layout of model.toml): "
                f"{describe_fault(cause, self.folder)}"
            ) from cause
        outputs = dict(_flatten(made, ""))
        if not outputs:
            raise ModelError(f"{self.where}: forward returns nothing, expected {_EXPECTED}")
        arrays: dict[str, Tensor] = {}
        for name, value in outputs.items():
            if not isinstance(value, torch.Tensor) or value.is_complex():
                kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
                raise ModelError(f"{self.where}: forward returns {name} of type {kind}, expected {_EXPECTED}")
            arrays[name] = np.asarray(value.detach().cpu().numpy())
        return arrays


def _flatten(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}_{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name or 'output'}_{index}")
    else:
        yield name or "output", value


def load_model(path: Path, function: str, weights: Path | None) -> TorchModel:
    """Load a model; `function` is empty for an archive."""
    folder = path.resolve().parent
    if function:
        where = f"{path}:{function}"
        module = _call_function(path, function, where, folder)
        if weights is not None:
            load_state_dict(module, weights, where)
        notes = _settle_weights(module, where, weights)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(module.forward).parameters.values()
        inputs = [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
        if len(inputs) > 1:
            raise ModelError(f"{where}: forward takes {len(inputs)} inputs ({', '.join(inputs)}), expected one image")
        return TorchModel(where, folder, "module", module.eval(), notes=notes)
    program = _load_program(path) if path.suffix == ".pt2" else None
    module = program.module() if program is not None else _load_script(path)
    notes = _settle_weights(module, str(path))
    if program is None:
        return TorchModel(str(path), folder, "script", module.eval(), notes=notes)
    if notes:
        raise ModelError(f"{path}: {notes[0].replace('became', 'cannot become')}; make the archive with float32")
    return TorchModel(str(path), folder, "program", module, program)


def _load_program(path: Path) -> torch.export.ExportedProgram:
    names = _names(path, "a torch.export archive")
    pickled = next((name for name in names if Path(name).name.startswith(_OBJECTS)), None)
    if pickled is not None:
        raise ModelError(f"{path}: holds a Python object ({pickled}), and loading that would run code")
    before = os.environ.get(_SAFE_LOADING)
    os.environ[_SAFE_LOADING] = "1"
    try:
        with raising(ModelError, f"{path}: is no torch.export archive, or damaged", kinds=Exception):
            program = torch.export.load(path)
    finally:
        if before is None:
            del os.environ[_SAFE_LOADING]
        else:
            os.environ[_SAFE_LOADING] = before
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise ModelError(f"{path}: takes {len(inputs)} inputs ({', '.join(map(str, inputs))}), expected one image")
    return program


def _load_script(path: Path) -> torch.nn.Module:
    if not any(name.endswith(".py") for name in _names(path, "a TorchScript archive")):
        raise ModelError(
            f"{path}: is no TorchScript archive, there is no code in it; of a state dict or a pickled module name the "
            "code too: edge-sdk import pytorch FILE.py:FUNCTION --weights STATE_DICT"
        )
    # Damaged archives raise whatever their first wrong byte leads to.
    with raising(ModelError, f"{path}: is no TorchScript archive, or damaged", kinds=Exception):
        module: torch.nn.Module = torch.jit.load(path, map_location="cpu")
    return module


def _names(path: Path, what: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        raise ModelError(f"{path}: is not {what}, or truncated") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause


def _call_function(file: Path, function: str, where: str, folder: Path) -> torch.nn.Module:
    sys.path.insert(0, str(folder))
    try:
        loaded = _load_file(file, folder)
        made: object = getattr(loaded, function, None)
        if made is None:
            there = [name for name, value in vars(loaded).items() if callable(value) and not name.startswith("_")]
            raise ModelError(f"{file}: has no function {function!r}; it has {_some(there, _NAMED)}")
        # A class is called as well; a module that is there already is taken as it is.
        if callable(made) and not isinstance(made, torch.nn.Module):
            made = _call(made, where, folder)
    finally:
        with contextlib.suppress(ValueError):  # their code may have taken it out itself
            sys.path.remove(str(folder))
    if not isinstance(made, torch.nn.Module):
        raise ModelError(f"{where}: returned {type(made).__name__}, expected a torch.nn.Module")
    return made


def _load_file(file: Path, folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edge_sdk_import_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{file}: is no Python file, expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickle look their classes up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:  # whatever users' code raises
        raise ModelError(f"{file}: cannot be loaded: {describe_fault(cause, folder)}") from cause
    return module


def _call(function: Callable[[], object], where: str, folder: Path) -> object:
    try:
        # A decorator's own signature, not the one it wraps: it may well give the arguments itself.
        inspect.signature(function, follow_wrapped=False).bind()
    except ValueError:  # functions in C have no signature
        pass
    except TypeError as cause:
        raise ModelError(f"{where}: is called without arguments: {cause}; give them defaults") from cause
    try:
        return function()
    except (Exception, SystemExit) as cause:  # whatever users' code raises
        raise ModelError(f"{where}: failed: {describe_fault(cause, folder)}") from cause


def load_state_dict(module: torch.nn.Module, path: Path, where: str) -> None:
    """Load a state dict into `module`; nothing but tensors and plain containers is unpickled."""
    state = _read_state_dict(path)
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except RuntimeError as cause:  # tensors of another shape; the first line names the class only
        lines = [line.strip() for line in str(cause).splitlines()]
        detail = next((line for line in lines if "size mismatch" in line), lines[0]).rstrip(".")
        raise ModelError(f"{path}: does not fit {where}: {detail}") from cause
    if unexpected and all(key.startswith(_PREFIX) for key in state):
        raise ModelError(
            f"{path}: does not fit {where}: every key begins with {_PREFIX!r}, as torch.nn.DataParallel writes them; "
            "save the state dict of the model inside: torch.save(model.module.state_dict(), 'state_dict_alone.pth')"
        )
    if missing or unexpected:
        lacks = f"lacks {_some(missing)}" if missing else ""
        has = f"has {_some(unexpected)}, which the model does not know" if unexpected else ""
        raise ModelError(f"{path}: does not fit {where}: {'; '.join(filter(None, (lacks, has)))}")


def _read_state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        state: object = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:  # damaged files raise whatever their first wrong byte leads to
        named = re.search(r"GLOBAL ([\w.]+)", str(cause)) if isinstance(cause, pickle.UnpicklingError) else None
        what = f"is no state dict that can be read, or damaged (PyTorch: {first_line(cause)})"
        if named:
            what = f"holds more than tensors ({named[1]}), and loading that would run code"
        raise ModelError(f"{path}: {what}; {_SAVE}") from cause
    held_by = state if isinstance(state, Mapping) else {}
    if _is_state_dict(held_by):
        return held_by
    keys, inner = list(held_by), next((key for key, value in held_by.items() if _is_state_dict(value)), None)
    loaded = f"torch.load({str(path)!r}, 'cpu')[{inner!r}]"
    remedy = _SAVE if inner is None else f"save that: import torch; torch.save({loaded}, 'state_dict_alone.pth')"
    held = f"keys {_some(keys)}" if keys else f"a {type(state).__name__}"
    found = "" if inner is None else f"a state dict is under {inner!r}; "
    raise ModelError(f"{path}: holds {held}, expected a state dict of tensors; {found}{remedy}")


def _is_state_dict(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(one, torch.Tensor) for one in value.values())


def _settle_weights(module: torch.nn.Module, where: str, weights: Path | None = None) -> tuple[str, ...]:
    """Bring every weight to float32 on the CPU; returns what was converted, in words."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    for name, tensor in tensors:
        if tensor.is_meta:
            raise ModelError(f"{where}: {name} is on the device meta and has no data; load weights into the model")
    size = sum(tensor.numel() for _, tensor in tensors) * torch.float32.itemsize
    if size > MOST_BYTES:
        raise ModelError(f"{where}: has {size / 1e9:.1f} GB of weights, an ONNX file holds at most 2.1 GB")
    for name, tensor in tensors:
        # Buffers may hold inf on purpose, as masks do; a weight may not.
        is_weight = isinstance(tensor, torch.nn.Parameter)
        if tensor.is_floating_point() and bool((~tensor.isfinite() if is_weight else tensor.isnan()).any()):
            # Buffers that are in no state dict come from the code even then.
            blamed = weights if weights is not None and name in module.state_dict() else where
            raise ModelError(f"{blamed}: {name} holds numbers that are not finite; train or load it again")
    devices = sorted({str(tensor.device) for _, tensor in tensors} - {"cpu"})
    kinds = sorted({str(t.dtype) for _, t in tensors if t.is_floating_point()} - {"torch.float32"})
    if devices:
        module.cpu()
    if kinds:
        module.float()
    notes = [f"weights were on {', '.join(devices)}; the export was made on the CPU"] if devices else []
    return (*notes, *(f"weights were {kind.removeprefix('torch.')} and became float32" for kind in kinds))


def _some(names: list[str], most: int = _NAMED_KEYS) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(str, names[:most]))}{more}"


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

    `frozen_at` has `FILE.py:LINE` of each place where tracing took a number out of a tensor and went on with it.
    `outputs` are empty before it was compared with the PyTorch model.
    """

    proto: onnx.ModelProto
    exporter: str
    frozen_at: tuple[str, ...] = ()
    outputs: tuple[OutputDifference, ...] = ()
    notes: tuple[str, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """Why an exporter made nothing that can be used; no reason where `data_decides_at` says it all.

    That has `FILE.py:LINE` of each place where forward does one thing or another by the values of tensors.
    """

    exporter: str
    reason: str
    data_decides_at: tuple[str, ...] = ()


class Order(msgspec.Struct, frozen=True, eq=False):
    """What is to be exported, and what it gave for each probe, of which the first is the example."""

    model: TorchModel
    probes: Sequence[Probe]
    observation: Observation
    opset: int
    dynamic_batch: bool


def _export_program(order: Order) -> Exported:
    """Export through torch.export, which follows Python code without running it on numbers."""
    model, example = order.model, torch.from_numpy(order.probes[0].make())
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
            output_names=list(order.observation.names),
            optimize=True,
            verbose=False,
            **(options if model.program is None else {}),
        )
    proto = made.model_proto  # another one each time
    pool_means(proto)
    return Exported(proto, f"{_PROGRAM} of PyTorch {torch.__version__}")


def _export_trace(order: Order) -> Exported:
    written = io.BytesIO()
    names = [INPUT_NAME, *order.observation.names]
    with silenced() as heard, torch.no_grad():
        torch.onnx.export(
            order.model.module,
            (torch.from_numpy(order.probes[0].make()),),
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


def export(order: Order) -> Exported:
    """Return what the first exporter makes that computes the same as the model; a ModelError says why none does."""
    exporters: dict[str, Callable[[Order], Exported]] = {}
    if order.model.form != "script" and order.opset >= PREFERRED_OPSET:
        exporters[_PROGRAM] = _export_program
    if order.model.form != "program":
        exporters[_TRACE] = _export_trace
    failures: list[Failure] = []
    for name, exporter in exporters.items():
        made = _tried(name, exporter, order)
        if isinstance(made, Exported):
            return msgspec.structs.replace(made, notes=_notes(made, failures, len(order.probes)))
        failures.append(made)
    if not failures:
        raise ModelError(
            f"{order.model.where}: a torch.export archive is exported with opset {PREFERRED_OPSET} or more, this "
            f"target runs up to {order.opset}; export from FILE.py:FUNCTION"
        )
    raise ModelError(f"{order.model.where}: {_explain(failures)}")


def _tried(name: str, exporter: Callable[[Order], Exported], order: Order) -> Exported | Failure:
    try:
        made = exporter(order)
    except Exception as cause:  # noqa: BLE001 - an exporter raises whatever its parts raise
        return _failure(name, cause, order.model.folder)
    _clear(made.proto)
    try:
        found = verify(made.proto.SerializeToString(), "the exported model", order.probes, order.observation)
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
