"""How every import begins and ends: it first checks all that is cheap, and last writes the file and its report.

The ONNX file that model.toml names is written whole or not at all: write, pass the check, rename. What the import
measured, and what the model.toml says of the model, are kept in the file's metadata, which go wherever the file is
copied; they are text that anybody can write, so they are read with limits, and measured figures count for this very
graph only. Whatever exporters and users' code print stays off the terminal; their exceptions become one line that says
where they happened.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import os
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import onnx
from google.protobuf.message import DecodeError
from msgspec import Meta

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec, load_model_spec
from edge_sdk.bundle.target import Target, load_target
from edge_sdk.core.errors import MissingDependencyError, ModelError, OutputError, UsageError, first_line, raising
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk.tasks.spec import TaskSpec
from edge_sdk_tools.bundle_folder import interrupted_by_sigterm, write_through
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.check.model_file import MOST_BYTES
from edge_sdk_tools.datasets.class_names import read_labels
from edge_sdk_tools.datasets.images import Skipped, is_folder
from edge_sdk_tools.graph.index import replace_all
from edge_sdk_tools.importers import comparison
from edge_sdk_tools.importers.comparison import Comparison, Observation, OutputDifference, Probe

RECORD_KEY = "edge_sdk.import"
_MAX_BYTES = 4096
_Text: TypeAlias = Annotated[str, Meta(max_length=200)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
_Size: TypeAlias = Annotated[float, Meta(ge=0)]
_MODEL_KEY = "edge_sdk.model"


@contextlib.contextmanager
def needed_by(source: str, package: str, remedy: str) -> Iterator[None]:
    """Import a framework inside this; a missing package becomes an error that names the remedy."""
    try:
        yield
    except ImportError as cause:
        raise MissingDependencyError(f"`edge-sdk import {source}` needs {cause.name or package}; {remedy}") from cause


def describe_fault(cause: BaseException, folder: Path) -> str:
    """Describe an exception in one line: its type, its first line, and the place, in `folder` where it can be."""
    name = type(cause).__name__
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{name}: {cause.msg} ({Path(cause.filename).name}:{cause.lineno})"
    place = place_of(cause, lambda path: path.is_relative_to(folder)) or place_of(cause)
    said = f"{name}: {first_line(cause)}" if str(cause).strip() else name
    return f"{said}{f' ({place})' if place else ''}"


def place_of(cause: BaseException, counts: Callable[[Path], bool] = lambda _path: True) -> str:
    """`FILE.py:LINE` of the innermost frame whose file counts; empty where there is none."""
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if counts(Path(frame.filename))]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an import: origin (`PyTorch`), exporter, and the largest difference of two values from the source.

    So many `inputs` were compared, so many of them real images. `largest_share` is as a share of the largest value on
    the same input, `largest_on_images` that on a real image, `graph_sha256` is of the graph that was compared, in hex.
    """

    origin: _Text
    exporter: _Text
    inputs: _Count
    images: _Count
    largest: _Size
    largest_share: _Size
    largest_on_images: _Size | None
    graph_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def _embed(proto: onnx.ModelProto, key: str, value: msgspec.Struct | None) -> None:
    """Write a value into a model's metadata, in place of an older one, or take that out."""
    replace_all(proto.metadata_props, [entry for entry in proto.metadata_props if entry.key != key])
    if value is not None:
        proto.metadata_props.add(key=key, value=msgspec.json.encode(value).decode())


class DescribedModel(TaskSpec, frozen=True, kw_only=True):
    """What a model.toml says of a model, and its labels, as an import leaves them in the file for `edge-sdk init`."""

    input: InputSpec
    labels: tuple[str, ...]


def _description_of(spec: ModelSpec) -> DescribedModel | None:
    labels = read_labels(Path(spec.labels))
    if labels.suffix != ".txt":  # a gallery's vectors are no part of the model
        return None
    keys = {key: getattr(spec, key) for key in TaskSpec.__struct_fields__}
    return DescribedModel(**keys, labels=tuple(labels.file.decode("utf-8-sig").split("\n")[:-1]))


def described_in(metadata: Mapping[str, str]) -> DescribedModel | None:
    """Return what an import left in a file's metadata; None where there is nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode(metadata.get(_MODEL_KEY, ""), type=DescribedModel)
    except (msgspec.DecodeError, RecursionError):  # thousands of brackets in a key that nothing reads
        return None


def read_import_record(path: Path) -> ImportRecord | None:
    """Return the record of an ONNX file; None if it is missing, unreadable, or of another graph than was compared."""
    try:
        proto = onnx.load_model_from_string(read_regular(path, MOST_BYTES))
        [text] = [entry.value for entry in proto.metadata_props if entry.key == RECORD_KEY]
        record = msgspec.json.decode(text if len(text) <= _MAX_BYTES else "", type=ImportRecord)
    except (OSError, ValueError, DecodeError, msgspec.DecodeError, RecursionError):
        return None
    return record if record.graph_sha256 == _digest(proto) else None


def _digest(proto: onnx.ModelProto) -> str:
    digest = hashlib.sha256(proto.graph.SerializeToString(deterministic=True))
    for part in (*proto.functions, *proto.opset_import):
        digest.update(part.SerializeToString(deterministic=True))
    return digest.hexdigest()


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import wrote, and how far its outputs are from the original's on `probes`, so many of which were images.

    `model` is the ONNX file of `size_mb`, MB of 1e6 bytes, which `exporter` made of `source`, and which may have
    `replaced` an older one. In the shape of its input "batch" stands for one that is free.
    """

    model_toml: str
    model: str
    source: str
    exporter: str
    opset: int
    nodes: int
    size_mb: float
    input_shape: tuple[int | str, ...]
    layout: str
    outputs: tuple[OutputDifference, ...]
    probes: int
    images: int
    warnings: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    replaced: bool


def check_writable(folder: Path, output: Path) -> None:
    """Open a file without a name in the nearest folder."""
    with raising(OutputError, f"{output}: cannot be written", "; nothing was changed"):
        tempfile.TemporaryFile(dir=nearest_folder(folder)).close()


def nearest_folder(folder: Path) -> Path:
    """Return `folder`, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def _load_destination(model_toml: Path, source: Path) -> ModelSpec:
    """Read the model.toml of an import, and whatever would fail at its end otherwise; `source` is another file."""
    if model_toml.suffix != ".toml":
        raise UsageError(f"{model_toml}: expected a model.toml for the new model; docs/importing.md has examples")
    spec = load_model_spec(model_toml)
    path = Path(spec.model)
    if path.suffix != ".onnx":
        raise UsageError(f"{model_toml}: model is {path.name!r}, expected the name of the .onnx file to write")
    if not is_folder(path.parent):
        raise UsageError(f"{model_toml}: model: the folder {path.parent} does not exist")
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        is_source = source.exists() and path.samefile(source)
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


def _write_model(proto: onnx.ModelProto, spec: ModelSpec, target: Target | None) -> bool:
    """Write the file once it has passed the check; return whether it replaced an older one."""
    path = Path(spec.model)
    size = proto.ByteSize()
    if size > MOST_BYTES:
        raise ModelError(f"{path}: would have {size / 1e9:.1f} GB, an ONNX file holds at most 2.1 GB")
    partial = path.with_name(f".{path.stem}.importing-{os.getpid()}.onnx")
    try:
        with interrupted_by_sigterm():
            write_through(partial, proto.SerializeToString())
            check_model(msgspec.structs.replace(spec, model=str(partial)), target)
            replaced = path.exists()
            partial.replace(path)
    except ModelError as cause:
        first = str(cause).split(" (and ")[0]  # the command that lists the others would find the older file
        raise ModelError(f"{first.replace(str(partial), spec.model)}; nothing was written") from cause
    except OSError as cause:
        raise OutputError(f"{path}: cannot be written: {cause.strerror or cause}; nothing was changed") from cause
    finally:
        partial.unlink(missing_ok=True)
    return replaced


class ImportPlan(msgspec.Struct, frozen=True, eq=False):
    """What is imported, where it goes, and what it is compared on."""

    source: str
    model_toml: Path
    spec: ModelSpec
    target: Target | None
    probes: tuple[Probe, ...]
    skipped: tuple[Skipped, ...] = ()

    def limit_opset(self, preferred: int) -> int:
        """Return the preferred opset, or the target's highest where that is lower."""
        return min(preferred, self.target.max_opset) if self.target else preferred

    def verify(self, proto: onnx.ModelProto, what: str, original: Observation, blame: str, remedy: str) -> Comparison:
        """Compare a model with its original on all probes; a ModelError says that it computes something else.

        `what` was done to it, `blame` and `remedy` begin and end the error where the optimizer is not at fault.
        """
        found = comparison.verify(proto.SerializeToString(), f"{self.source} {what}", self.probes, original)
        if found.problem is not None:
            words = found.problem if found.is_explained else f"{blame}{found.problem}{remedy}"
            raise ModelError(f"{self.source}: {words}")
        return found

    def finish(
        self,
        proto: onnx.ModelProto,
        origin: str,
        exporter: str,
        outputs: tuple[OutputDifference, ...],
        warnings: Sequence[str] = (),
    ) -> ImportReport:
        """Write the file, with the model's description and a record of the comparison inside, and report.

        A ModelError says that the check refuses it.
        """
        images, record = sum(probe.is_image for probe in self.probes), None
        if outputs and all(math.isfinite(o.absolute) and math.isfinite(o.relative) for o in outputs):
            record = ImportRecord(
                origin=origin,
                exporter=exporter[:200],
                inputs=len(self.probes),
                images=images,
                largest=max(output.absolute for output in outputs),
                largest_share=max(output.relative for output in outputs),
                largest_on_images=max((o.on_images for o in outputs if o.on_images is not None), default=None),
                graph_sha256=_digest(proto),
            )
        _embed(proto, RECORD_KEY, record)
        _embed(proto, _MODEL_KEY, _description_of(self.spec))
        replaced = _write_model(proto, self.spec, self.target)
        weights = {tensor.name for tensor in proto.graph.initializer}
        sides = next(value for value in proto.graph.input if value.name not in weights).type.tensor_type.shape.dim
        unseen = () if images else ("no real image was compared; give some with --images FOLDER",)
        return ImportReport(
            model_toml=str(self.model_toml),
            model=self.spec.model,
            source=self.source,
            exporter=exporter,
            opset=next(int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")),
            nodes=len(proto.graph.node),
            size_mb=proto.ByteSize() / 1e6,
            input_shape=tuple(d.dim_value if d.HasField("dim_value") else "batch" for d in sides),
            layout=self.spec.input.layout,
            outputs=outputs,
            probes=len(self.probes),
            images=images,
            warnings=(*warnings, *unseen),
            skipped=self.skipped,
            replaced=replaced,
        )


def plan_import(
    source: str | Path, model_toml: Path, target_name: str | None, images: Sequence[Path], *, batch: bool = False
) -> ImportPlan:
    """Read model.toml, target and folders of images; nothing is loaded or converted yet.

    `model_toml` describes the input and names the ONNX file to write. The ONNX Runtime of a target, by its name or
    path, limits the opset. The folders of images to compare on are model.toml's calibration folder by default. `batch`
    tells whether a batch of two is compared too.
    """
    spec = _load_destination(model_toml, Path(source))
    target = load_target(target_name) if target_name else None
    found = comparison.probe_images(spec, images)
    probes = comparison.make_probes(spec.input, found, batch=batch)
    return ImportPlan(str(source), model_toml, spec, target, probes, found.skipped)


@contextlib.contextmanager
def silenced() -> Iterator[list[warnings.WarningMessage]]:
    """Suppress all output and logs within the context; yield the list of warnings, which grows."""
    logging_before = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as heard, _descriptors_to_nowhere(), io.StringIO() as nowhere:
        warnings.simplefilter("always")
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield heard
        finally:
            logging.disable(logging_before)


@contextlib.contextmanager
def _descriptors_to_nowhere() -> Iterator[None]:
    """Redirect the descriptors too, because libraries in C++ do not print through Python's streams."""
    kept = {}
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError, AttributeError):  # closed before the program was started
            stream.flush()
            kept[descriptor] = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in kept:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def check_source(path: Path, expected: str, *, folder: bool = False, most_bytes: int | None = None) -> None:
    """Raise ModelError unless a file can be opened: libraries would wait at a pipe, and read a device for ever."""
    if folder and is_folder(path):
        return
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        kinds = "file or folder" if folder else "file"
        raise ModelError(f"{path}: no such {kinds}; {expected}") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}; {expected}") from cause
    if most_bytes is not None and size > most_bytes:
        raise ModelError(f"{path}: has {size} bytes; {expected}")
