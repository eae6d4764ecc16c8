"""FILE.py:FUNCTION -> the torch.nn.Module that it returns.

Owns the running of users' code and what is said when it fails. Knows nothing of weights and exporters.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch

from edge_sdk.core.errors import ModelError
from edge_sdk_tools.importing.fault import describe_fault

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
    """Which key of a checkpoint holds the module."""
    items = made.items() if isinstance(made, Mapping) else ()
    key = next((key for key, value in items if isinstance(value, torch.nn.Module)), None)
    return "" if key is None else f"; its key {key!r} holds one, return that"
