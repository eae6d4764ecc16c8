"""The ONNX file that model.toml names, written whole or not at all.

Owns the temporary name beside it and the order: write, pass the export gate, rename. What was there stays until then.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec, read_labels
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, OutputError, UsageError
from edge_sdk_tools.check import check_model
from edge_sdk_tools.dataset.walk import is_folder
from edge_sdk_tools.importing.output_folder import check_writable
from edge_sdk_tools.interruption import interrupted_by_sigterm

_MAX_BYTES = 2**31 - 1  # of a protobuf message


def load_destination(model_toml: Path, source: Path | None = None) -> ModelSpec:
    """Read the model.toml of an import, and whatever would fail at its end otherwise.

    Args:
        model_toml: describes the model; its key `model` names the file to write.
        source: the file that is imported, which must be another one.

    Raises:
        UsageError: not a model.toml, or its `model` is no name for a new .onnx file.
        ModelError: model.toml or its labels file is missing or wrong.
        OutputError: the folder of the new file cannot be written.
    """
    if model_toml.suffix != ".toml":
        raise UsageError(f"{model_toml}: expected a model.toml that describes the model, see docs/model-toml.md")
    spec = load_model_spec(model_toml)
    path = Path(spec.model)
    if path.suffix != ".onnx":
        raise UsageError(f"{model_toml}: model is {path.name!r}, expected the name of the .onnx file to write")
    if not is_folder(path.parent):
        raise UsageError(f"{model_toml}: model: the folder {path.parent} does not exist")
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        is_source = source is not None and source.exists() and path.samefile(source)
    except FileNotFoundError:
        kind, is_source = stat.S_IFREG, False
    except (OSError, ValueError) as cause:
        why = getattr(cause, "strerror", None) or "there is a NUL character in it"
        raise UsageError(f"{model_toml}: model: {path} is no name for a new file: {why}") from cause
    if kind != stat.S_IFREG:
        raise UsageError(f"{path}: is no regular file, expected the name of the .onnx file to write")
    if is_source:
        raise UsageError(f"{source}: is the file that {model_toml} says to write; give `model` another name there")
    read_labels(Path(spec.labels))
    check_writable(path.parent, path)
    return spec


def write_model(proto: onnx.ModelProto, spec: ModelSpec, target: Target | None) -> bool:
    """Write `proto` where `spec` says, once it has passed the export gate.

    Returns:
        Whether an older file was replaced.

    Raises:
        ModelError: what the gate refuses, or more than a file can hold.
        OutputError: the disk refuses.
    """
    path = Path(spec.model)
    size = proto.ByteSize()
    if size > _MAX_BYTES:
        raise ModelError(f"{path}: would have {size / 1e9:.1f} GB, an ONNX file holds at most 2.1 GB")
    partial = path.with_name(f".{path.stem}.importing-{os.getpid()}.onnx")
    try:
        with interrupted_by_sigterm():
            _write_through(partial, proto.SerializeToString())
            _pass_gate(spec, partial, target)
            replaced = path.exists()
            partial.replace(path)
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror or cause}; nothing was changed") from cause
    finally:
        partial.unlink(missing_ok=True)
    return replaced


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _pass_gate(spec: ModelSpec, partial: Path, target: Target | None) -> None:
    try:
        check_model(msgspec.structs.replace(spec, model=str(partial)), target)
    except ModelError as cause:
        first = str(cause).split(" (and ")[0]  # the command that lists the others would find the older file
        raise ModelError(f"{first.replace(str(partial), spec.model)}; nothing was written") from cause
