"""A PyTorch model, loaded and ready: FILE.py:FUNCTION, torch.export's .pt2, or TorchScript's .pt.

Loading an archive runs no Python code of it; a function's code is the user's own, and what it raises is said in one
line. Dicts and tuples of outputs are flattened.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec
import torch

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.importers.plan import describe_fault
from edge_sdk_tools.importers.pytorch_source import Form, PytorchSource
from edge_sdk_tools.importers.pytorch_weights import load_state_dict, settle_weights

# Named by torch.export.pt2_archive.constants; these are unpickled without any limit when loaded.
_OBJECTS = ("custom_obj_", "opaque_obj_")
# torch.load obeys it over the `weights_only=False` that torch.export.load falls back to.
_SAFE_LOADING = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def load_program(path: Path) -> torch.export.ExportedProgram:
    """Load a .pt2 archive.

    Raises:
        ModelError: missing, damaged, with Python objects in it, or with several inputs.
    """
    names = _names(path, "a torch.export archive")
    pickled = next((name for name in names if Path(name).name.startswith(_OBJECTS)), None)
    if pickled is not None:
        raise ModelError(f"{path}: holds a Python object ({pickled}), and loading that would run code")
    before = os.environ.get(_SAFE_LOADING)
    os.environ[_SAFE_LOADING] = "1"
    try:
        program = torch.export.load(path)
    except Exception as cause:  # damaged archives raise whatever their first wrong byte leads to
        raise ModelError(f"{path}: is no torch.export archive, or damaged: {first_line(cause)}") from cause
    finally:
        if before is None:
            del os.environ[_SAFE_LOADING]
        else:
            os.environ[_SAFE_LOADING] = before
    inputs = program.graph_signature.user_inputs
    if len(inputs) != 1:
        raise ModelError(f"{path}: takes {len(inputs)} inputs ({', '.join(map(str, inputs))}), expected one image")
    return program


def load_script(path: Path) -> torch.nn.Module:
    """Load a TorchScript archive onto the CPU.

    Raises:
        ModelError: missing, damaged, or a file of another kind.
    """
    if not any(name.endswith(".py") for name in _names(path, "a TorchScript archive")):
        raise ModelError(
            f"{path}: is no TorchScript archive, there is no code in it; of a state dict or a pickled module name the "
            "code too: edge-sdk import pytorch FILE.py:FUNCTION --weights STATE_DICT"
        )
    try:
        module: torch.nn.Module = torch.jit.load(path, map_location="cpu")
    except Exception as cause:  # damaged archives raise whatever their first wrong byte leads to
        raise ModelError(f"{path}: is no TorchScript archive, or damaged: {first_line(cause)}") from cause
    return module


def _names(path: Path, what: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        raise ModelError(f"{path}: is not {what}, or truncated") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause


_NAMED = 8


def call_function(file: Path, function: str) -> torch.nn.Module:
    """Load `file`, call `function` without arguments and return its module.

    The file's folder stands first on sys.path meanwhile, so that it can import its neighbours.

    Raises:
        ModelError: no such function, it raises, or it returns something else.
    """
    where = f"{file}:{function}"
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        found = _attribute(_load(file), function, file)
        # A class is called as well; a module that is there already is taken as it is.
        made = found if isinstance(found, torch.nn.Module) or not callable(found) else _call(found, where, file)
    finally:
        with contextlib.suppress(ValueError):  # their code may have taken it out itself
            sys.path.remove(folder)
    if not isinstance(made, torch.nn.Module):
        raise ModelError(f"{where}: returns {_article(made)}, expected a torch.nn.Module{_hint(made)}")
    return made


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"edge_sdk_import_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ModelError(f"{file}: is no Python file, expected FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickle look their classes up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:  # whatever users' code raises
        raise ModelError(f"{file}: cannot be loaded: {describe_fault(cause, file.resolve().parent)}") from cause
    return module


def _attribute(module: ModuleType, function: str, file: Path) -> object:
    found: object = getattr(module, function, None)
    if found is None:
        there = _defined(module)
        near = difflib.get_close_matches(function, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        listed = f"{'' if hint else ';'} in it are {', '.join(there[:_NAMED])}{more}" if there else ""
        raise ModelError(f"{file}: has no function {function!r}{hint}{listed}")
    return found


def _defined(module: ModuleType) -> list[str]:
    """What `FUNCTION` may name: functions first, then classes and modules that are there already."""
    own = {
        name: value
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }
    return sorted(own, key=lambda name: isinstance(own[name], (type, torch.nn.Module)))


def _check_arguments(function: Callable[..., object], where: str) -> None:
    """Refuse what needs arguments; the call itself would blame the file that calls."""
    try:
        # A decorator's own signature, not the one it wraps: it may well give the arguments itself.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # of functions in C, which the call itself tells about
        return
    parameters = signature.parameters.values()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.kind not in variable and p.default is inspect.Parameter.empty]
    if not needed:
        return
    empty = inspect.Parameter.empty
    plain = inspect.Signature([p.replace(annotation=empty, default=empty) for p in parameters])
    maker = inspect.getattr_static(function, "__init__") if isinstance(function, type) else function
    code = getattr(maker, "__code__", None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    name = where.rpartition(":")[2]
    raise ModelError(
        f"{where}: FUNCTION is called without arguments, but {name}{plain} needs {', '.join(needed)}{place}; give them "
        "defaults"
    )


def _call(function: Callable[[], object], where: str, file: Path) -> object:
    _check_arguments(function, where)
    try:
        return function()
    except (Exception, SystemExit) as cause:  # whatever users' code raises
        raise ModelError(f"{where}: failed: {describe_fault(cause, file.resolve().parent)}") from cause


def _article(made: object) -> str:
    name = type(made).__name__
    return "nothing" if made is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _hint(made: object) -> str:
    """Return a hint at the key of a checkpoint that holds the module."""
    items = made.items() if isinstance(made, Mapping) else ()
    key = next((key for key, value in items if isinstance(value, torch.nn.Module)), None)
    return "" if key is None else f"; its key {key!r} holds one, return that"


_EXPECTED = "tensors, alone or in tuples, lists and dicts"


class TorchModel(msgspec.Struct, frozen=True, eq=False):
    """One model in evaluation mode, in float32 on the CPU.

    Attributes:
        where: what to call it in errors.
        folder: of its file; faults are looked for there.
        form: Python code, a torch.export archive or TorchScript.
        module: to run.
        program: what .pt2 archives hold, and exporters take; None for the other forms.
        notes: what was changed for the export, in words.
    """

    where: str
    folder: Path
    form: Form
    module: torch.nn.Module
    program: torch.export.ExportedProgram | None = None
    notes: tuple[str, ...] = ()

    def __call__(self, tensor: Tensor) -> dict[str, Tensor]:
        """Run it on one input.

        Args:
            tensor: float32, of model.toml's shape.

        Returns:
            The outputs by name, in order: `output`, or the keys and numbers of the dicts and tuples they lie in.

        Raises:
            ModelError: when forward raises, or returns other things than tensors.
        """
        try:
            with torch.no_grad():
                made = self.module(torch.from_numpy(tensor.copy()))  # a copy: forward may write to its input
        except (Exception, SystemExit) as cause:  # whatever users' code raises
            shape = "x".join(map(str, tensor.shape))
            raise ModelError(
                f"{self.where}: forward failed on an input of {shape} (size_wh, color and layout of model.toml): "
                f"{describe_fault(cause, self.folder)}"
            ) from cause
        outputs = dict(_flatten(made, ""))
        if not outputs:
            raise ModelError(f"{self.where}: forward returns nothing, expected {_EXPECTED}")
        return {name: self._to_array(name, value) for name, value in outputs.items()}

    def _to_array(self, name: str, value: object) -> Tensor:
        if not isinstance(value, torch.Tensor) or value.is_complex():
            kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
            raise ModelError(f"{self.where}: forward returns {name} of type {kind}, expected {_EXPECTED}")
        array: Tensor = value.detach().cpu().numpy()
        return array


def load_model(source: PytorchSource) -> TorchModel:
    """Load a model.

    Raises:
        ModelError: it cannot be loaded, or cannot be exported as it is.
    """
    return _LOADERS[source.form](source)


def _load_function(source: PytorchSource) -> TorchModel:
    module = call_function(source.path, source.function)
    if source.weights is not None:
        load_state_dict(module, source.weights, source.where)
    notes = settle_weights(module, source.where, source.weights)
    inputs = _required_inputs(module)
    if len(inputs) > 1:
        raise ModelError(
            f"{source.where}: forward takes {len(inputs)} inputs ({', '.join(inputs)}), expected one image"
        )
    return TorchModel(source.where, source.folder, source.form, module.eval(), notes=notes)


def _load_program(source: PytorchSource) -> TorchModel:
    program = load_program(source.path)
    module = program.module()
    notes = settle_weights(module, source.where)
    if notes:
        raise ModelError(
            f"{source.where}: {notes[0].replace('became', 'cannot become')}; make the archive with float32"
        )
    return TorchModel(source.where, source.folder, source.form, module, program)


def _load_script(source: PytorchSource) -> TorchModel:
    module = load_script(source.path)
    notes = settle_weights(module, source.where)
    return TorchModel(source.where, source.folder, source.form, module.eval(), notes=notes)


def _required_inputs(module: torch.nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]


def _flatten(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}_{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name or 'output'}_{index}")
    else:
        yield name or "output", value


_LOADERS = {"module": _load_function, "program": _load_program, "script": _load_script}
