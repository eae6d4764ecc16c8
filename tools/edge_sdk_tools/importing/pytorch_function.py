"""FILE.py:FUNCTION -> the torch.nn.Module that it returns.

Owns the running of users' code and what is said when it fails. Knows nothing of weights and exporters.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import torch

from edge_sdk.errors import ModelError
from edge_sdk_tools.importing.fault import describe_fault


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
        functions = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
        ]
        there = f"; in it are {', '.join(functions[:5])}" if functions else ""
        raise ModelError(f"{file}: has no function {function!r}{there}")
    return found


def _call(function: Callable[[], object], where: str, file: Path) -> object:
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
