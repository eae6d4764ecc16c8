"""Weights of a PyTorch model: a state dict into it, and their condition before an export.

Owns what is refused (code in a pickle, keys that do not fit, numbers that are not finite) and what is converted
(float16, bfloat16 and float64 to float32, other devices to the CPU).
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.importing.pytorch_checkpoint import PREFIX, Part, find_parts, is_prefixed, kind_of

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
    state = _read(path, strips=strips)
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

    Args:
        module: the model.
        where: what to call it in errors.
        weights: the file that its state dict was loaded from.

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


def _read(path: Path, *, strips: bool) -> object:
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
