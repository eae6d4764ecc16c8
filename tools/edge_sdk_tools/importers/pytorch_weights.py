"""Weights of a PyTorch model: a state dict into it, and their condition before an export.

Code in a pickle is never run: an unpickler replaces every class and function by a stand-in and finds where state dicts
and modules lie. float16, bfloat16 and float64 become float32; numbers that are not finite are refused.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import torch

from edge_sdk.core.errors import ModelError, first_line

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


MAX_BYTES = 2**31 - 1
"""What a protobuf message may hold, and so an ONNX file with its weights inside."""

_FLOAT32_BYTES = 4
_NAMED = 3
_SAVE = "save the state dict alone: torch.save(model.state_dict(), 'state_dict.pth')"
_SAID = f"begins with {PREFIX!r}, as torch.nn.DataParallel writes them"


def load_state_dict(module: torch.nn.Module, path: Path, where: str) -> None:
    """Load a state dict into `module`; nothing but tensors and plain containers is unpickled.

    Raises:
        ModelError: missing, damaged, with code in it, or of another model.
    """
    # A model that is wrapped itself wants the keys as they are.
    strips = not is_prefixed(module.state_dict())
    state = _read_weights(path, strips=strips)
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        held = f"keys {_some(list(state))}" if isinstance(state, Mapping) else f"a {type(state).__name__}"
        raise ModelError(f"{path}: holds {held}, expected a state dict of tensors; {_how_to_save(path, strips=strips)}")
    if strips and is_prefixed(state):
        line = _saving_line(path, Part((), is_module=False), strips=True)
        raise ModelError(f"{path}: does not fit {where}: every key {_SAID}; save it without: {line}")
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except RuntimeError as cause:  # tensors of another shape; the first line names the class only
        lines = [line.strip() for line in str(cause).splitlines()]
        detail = next((line for line in lines if "size mismatch" in line), lines[0]).rstrip(".")
        raise ModelError(f"{path}: does not fit {where}: {detail}") from cause
    if missing or unexpected:
        lacks = f"lacks {_some(missing)}" if missing else ""
        has = f"has {_some(unexpected)}, which the model does not know" if unexpected else ""
        raise ModelError(f"{path}: does not fit {where}: {'; '.join(filter(None, (lacks, has)))}")


def settle_weights(module: torch.nn.Module, where: str, weights: Path | None = None) -> tuple[str, ...]:
    """Bring every weight to float32 on the CPU.

    Returns:
        What was converted, in words.

    Raises:
        ModelError: weights without data, not finite, or more than an ONNX file holds.
    """
    tensors = list(_tensors(module))
    for name, tensor in tensors:
        if tensor.is_meta:
            raise ModelError(f"{where}: {name} is on the device meta and has no data; load weights into the model")
    size = sum(tensor.numel() for _, tensor in tensors) * _FLOAT32_BYTES
    if size > MAX_BYTES:
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


def _read_weights(path: Path, *, strips: bool) -> object:
    _check_kind(path)
    try:
        state: object = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as cause:
        named = re.search(r"GLOBAL ([\w.]+)", str(cause))
        if named is None:
            raise ModelError(f"{path}: is no state dict, or damaged; {_SAVE}") from cause
        raise ModelError(
            f"{path}: holds more than tensors ({named[1]}), and loading that would run code; "
            f"{_how_to_save(path, runs_code=True, strips=strips)}"
        ) from cause
    except Exception as cause:  # damaged archives raise whatever their first wrong byte leads to
        raise ModelError(
            f"{path}: cannot be read, and is probably damaged; copy it again, or {_SAVE} (PyTorch: {first_line(cause)})"
        ) from cause
    return state


def _check_kind(path: Path) -> None:
    """Refuse what torch.load would read as a pickle and complain about in the terms of its own stack."""
    try:
        kind = kind_of(path)
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror or cause}; expected a file of torch.save") from cause
    if kind == "script":
        raise ModelError(
            f"{path}: is a TorchScript archive, expected a state dict; import it alone: edge-sdk import pytorch {path}"
        )
    if kind == "cut":
        raise ModelError(f"{path}: lacks its end, expected a whole file of torch.save; copy it again")
    if kind == "other":
        raise ModelError(f"{path}: is no file of torch.save, expected a state dict; {_SAVE}")


def _how_to_save(path: Path, *, runs_code: bool = False, strips: bool) -> str:
    """What to write so that the next import finds a state dict, by what lies in the file."""
    parts = find_parts(path)
    if not parts:
        return _SAVE
    first = parts[0]
    alike = [" > ".join(map(repr, part.keys)) for part in parts if part.keys and part.is_module is first.is_module]
    kind = "a module" if first.is_module else "a state dict"
    found = f"{kind} is under {_some(alike, ' or ')}" if alike else f"it is {kind}"
    strips = strips and first.is_prefixed
    prefixed = f", where every key {_SAID}" if strips else ""
    trusted = "if you trust the file, " if runs_code else ""
    without = " without" if strips else ""
    line = _saving_line(path, first, runs_code=runs_code, strips=strips)
    return f"{found}{prefixed}; {trusted}save that{without}: {line}"


def _saving_line(path: Path, part: Part, *, runs_code: bool = False, strips: bool) -> str:
    """Python that can be pasted as it stands."""
    options = ", weights_only=False" if runs_code else ""
    taken = "".join(f"[{key!r}]" for key in part.keys) + (".state_dict()" if part.is_module else "")
    state = f"torch.load({str(path)!r}, 'cpu'{options}){taken}"
    if strips:
        state = f"{{key.removeprefix({PREFIX!r}): value for key, value in {state}.items()}}"
    # Never over the file that was read: a checkpoint holds more than its state dict.
    name = "state_dict.pth" if path.name != "state_dict.pth" else "state_dict_alone.pth"
    return f"import torch; torch.save({state}, {name!r})"


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _some(names: list[str], between: str = ", ") -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{between.join(map(str, names[:_NAMED]))}{more}"
