"""A file of torch.save as an outline: whether it is one, and where state dicts and modules lie in it.

Owns an unpickler that runs nothing: every class and function of the file is replaced by a stand-in.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

PREFIX = "module."
"""What torch.nn.DataParallel and DistributedDataParallel put before every key."""
Kind: TypeAlias = Literal["saved", "script", "cut", "other"]

_WRAPPERS = ("DataParallel", "DistributedDataParallel")
_MAGIC = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")  # near the start of files of PyTorch before 1.6
_START = 32
_ZIP = b"PK\x03\x04"
_DEPTH = 3
_HEADERS = 3  # pickles before the object, in files of PyTorch before 1.6: a magic number, a version, the system


class Part(msgspec.Struct, frozen=True):
    """A state dict, or a module.

    Attributes:
        keys: of the dicts that it lies in, from outside in; none when it is the whole file.
        is_module: whether it is a module, whose loading runs code.
        is_prefixed: whether every key of its state dict begins with `PREFIX`.
    """

    keys: tuple[str | int, ...]
    is_module: bool
    is_prefixed: bool = False


class _StandIn:
    """Takes whatever a pickle does to an object, and keeps its state."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        self.state: object = None

    def __call__(self, *_arguments: object, **_options: object) -> _StandIn:
        return self

    def __setstate__(self, state: object) -> None:
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        pass


class _Outline(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        return type(name, (_StandIn,), {"__module__": module})

    def persistent_load(self, identity: object) -> object:
        """Leave the numbers of tensors where they are; files of before 1.6 name the classes of modules here too."""
        return identity[1] if isinstance(identity, tuple) and identity[0] == "module" else None


def kind_of(path: Path) -> Kind:
    """What a file is by its form: of torch.save, TorchScript, an archive without its end, or something else.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(_START)
    if not start.startswith(_ZIP):
        return "saved" if _MAGIC in start else "other"
    try:
        with zipfile.ZipFile(path) as archive:
            names = {Path(name).name for name in archive.namelist()}
    except zipfile.BadZipFile:
        return "cut"
    if "data.pkl" not in names:
        return "other"
    return "script" if "constants.pkl" in names else "saved"


def is_prefixed(state: Mapping[object, object]) -> bool:
    """Whether every key begins with `PREFIX`, and there is one."""
    return bool(state) and all(isinstance(key, str) and key.startswith(PREFIX) for key in state)


def find_parts(path: Path) -> tuple[Part, ...]:
    """The state dicts and modules of a file, in its order; none where it cannot be read."""
    try:
        return tuple(_parts(_read(path), ()))
    except Exception:  # noqa: BLE001 - a damaged pickle raises whatever its first wrong byte leads to
        return ()


def _read(path: Path) -> object:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if Path(name).name == "data.pkl")
            with archive.open(name) as file:
                return _Outline(file).load()
    with path.open("rb") as file:
        for _ in range(_HEADERS):
            _Outline(file).load()
        return _Outline(file).load()


def _parts(value: object, keys: tuple[str | int, ...]) -> Iterator[Part]:
    if isinstance(value, _StandIn):
        if isinstance(value.state, dict) and "_modules" in value.state:  # every torch.nn.Module has it
            yield Part(keys, is_module=True, is_prefixed=type(value).__name__ in _WRAPPERS)
    elif isinstance(value, dict) and value and all(map(_is_tensor, value.values())):
        yield Part(keys, is_module=False, is_prefixed=is_prefixed(value))
    elif isinstance(value, dict) and len(keys) < _DEPTH:
        for key, inner in value.items():
            if isinstance(key, (str, int)):
                yield from _parts(inner, (*keys, key))


def _is_tensor(value: object) -> bool:
    kind = type(value)
    return isinstance(value, _StandIn) and kind.__module__ == "torch._utils" and kind.__name__.startswith("_rebuild_")
