"""Archives that hold a PyTorch model whole: torch.export's .pt2 and TorchScript's .pt.

Owns their loading, which runs no Python code of theirs.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import torch

from edge_sdk.core.errors import ModelError, first_line

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
