"""What `edge-sdk import pytorch` is pointed at, and whether it is there.

The module knows the forms of SOURCE. It does not import PyTorch, which takes seconds, and reports a wrong path at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.core.errors import UsageError
from edge_sdk.core.files import LIST_BYTES
from edge_sdk_tools.importers.plan import check_source

Form: TypeAlias = Literal["module", "program", "script"]
_ARCHIVES: dict[str, tuple[Form, str]] = {
    ".pt2": ("program", "a torch.export archive"),
    ".pt": ("script", "a TorchScript archive"),
    ".pth": ("script", "a TorchScript archive"),
}


class PytorchSource(msgspec.Struct, frozen=True):
    """Where a PyTorch model comes from: an archive, or a function of a Python file.

    Attributes:
        where: as the user named it; what to call it in errors.
        path: of the file.
        form: Python code, a torch.export archive or TorchScript.
        function: of Python code; empty for archives.
        weights: a state dict for the function's module.
    """

    where: str
    path: Path
    form: Form
    function: str = ""
    weights: Path | None = None

    @property
    def folder(self) -> Path:
        """The absolute folder of the source's file."""
        return self.path.resolve().parent


def find_source(source: str, weights: Path | None) -> PytorchSource:
    """Take SOURCE apart.

    Args:
        source: `FILE.py:FUNCTION`, a .pt2 (torch.export) or a .pt or .pth (TorchScript).
        weights: a state dict for FUNCTION's module.

    Raises:
        UsageError: `source` is none of these.
        ModelError: there is no such file, or it cannot be read.
    """
    file, colon, function = source.rpartition(":")
    if colon and function.isidentifier():
        return _find_function(Path(file), function, weights)
    path = Path(source)
    if path.suffix == ".py":
        raise UsageError(f"{source}: expected FILE.py:FUNCTION, with a function that returns the model")
    if weights is not None:
        raise UsageError("--weights is for FILE.py:FUNCTION; an archive holds its own weights")
    if path.suffix not in _ARCHIVES:
        raise UsageError(f"{source}: expected FILE.py:FUNCTION, a .pt2 (torch.export) or a .pt (TorchScript)")
    form, what = _ARCHIVES[path.suffix]
    check_source(path, f"expected {what}")
    return PytorchSource(source, path, form)


def _find_function(file: Path, function: str, weights: Path | None) -> PytorchSource:
    check_source(file, "expected a Python file", most_bytes=LIST_BYTES)
    if weights is not None:
        check_source(weights, "expected a file of torch.save")
    return PytorchSource(f"{file}:{function}", file, "module", function, weights)
