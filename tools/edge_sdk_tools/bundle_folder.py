"""The folder of a bundle being built: a temporary sibling, which is renamed when it is whole.

A failed build leaves what was there before, and nothing of its own. SIGTERM cleans up as Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import numpy as np

from edge_sdk.bundle.bundle import NOISE_SHARE
from edge_sdk.bundle.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    FileEntry,
    Golden,
    Manifest,
    Variant,
    decode_manifest,
    encode_manifest,
)
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import BundleError, OutputError, UsageError, raising
from edge_sdk.core.files import LIST_BYTES, check_new_file, read_regular
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.sources.location import is_utf8
from edge_sdk.tasks.entry import Labels
from edge_sdk.tasks.spec import TaskSpec

_LABELS = "labels"
_PROBE_BYTES = 1 << 20


def is_full(cause: OSError) -> bool:
    """Tell whether an error means that the disk is full or the quota is used up."""
    return cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def raise_if_full(folder: Path, cause: Exception) -> None:
    """Raise the OSError that made a library fail, if one did: its own, or that of writing one MiB."""
    if isinstance(cause, OSError):  # the disk's, whatever it is: no model is a reason for one
        raise cause
    probe = folder / "probe"
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM inside this; in another thread than the main one it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_OLD = "old"  # what is replaced, between two renames
_CLEAN_UP = 'cat > /dev/null; if [ -e "$2" ] && [ ! -e "$3" ]; then mv "$2" "$3"; fi; rm -rf "$1"'
"""The shell waits for its owner's end, puts what was replaced (`$2`) back into its place (`$3`), and removes `$1`."""


@contextlib.contextmanager
def cleanup_guard(partial: Path, output: Path) -> Iterator[None]:
    """Remove `partial` at the end of this, even where a kill or a crash in native code ends Python."""
    paths = [str(path.absolute()) for path in (partial, partial / _OLD, output)]
    # A session of its own: Ctrl-C is for its owner.
    with subprocess.Popen(
        ["sh", "-c", _CLEAN_UP, "sh", *paths], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ):
        yield


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to, which takes the place of `folder` when the block succeeds.

    An OutputError says that it cannot be written.
    """
    folder = folder.absolute()
    partial, old = (folder.with_name(f".{folder.name}.{what}-{os.getpid()}") for what in ("partial", _OLD))
    with raising(OutputError, f"{folder}: cannot be written"):
        try:
            partial.mkdir(parents=True)
            yield partial
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


Replaced: TypeAlias = Literal["nothing", "unsigned", "signed"]


class BundleFolder:
    """The temporary folder of a build, which takes the bundle's name, `output`, when the build has succeeded.

    `work` is for files between the steps; it is gone at the end.
    """

    def __init__(self, output: Path, partial: Path) -> None:
        self.output, self._partial = output, partial
        self._content = partial / "bundle"
        self.work = partial / "work"
        self._entries: list[FileEntry] = []
        is_signed, is_there = ((output / name).exists() for name in (SIGNATURE_FILE, MANIFEST_FILE))
        self.replaces: Replaced = "nothing" if not is_there else "signed" if is_signed else "unsigned"
        self._content.mkdir(parents=True)
        self.work.mkdir()

    def add(self, name: str, data: bytes) -> None:
        """Write one file through to the disk and remember its size and hash."""
        write_through(self._content / name, data)
        self._entries.append(FileEntry(name, len(data), hashlib.sha256(data).hexdigest()))

    def add_labels(self, labels: Labels) -> None:
        """Write the labels: one a line, or the file that they came from where it holds more."""
        self.add(f"{_LABELS}{labels.suffix}", labels.file)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Return the added files, sorted by name."""
        return tuple(sorted(self._entries, key=lambda e: e.name))

    def preview(self, manifest: Manifest) -> Path:
        """Write the present manifest; return the temporary folder of the bundle."""
        write_through(self._content / MANIFEST_FILE, encode_manifest(manifest))
        return self._content

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and move the whole bundle to its place, an older one out of it."""
        self.preview(manifest)
        _sync_folder(self._content)
        # Checked again, because other files may have been put there during the build.
        _refuse_other_things(self.output)
        old = self._partial / _OLD
        if self.output.exists():
            self.output.rename(old)
        try:
            self._content.rename(self.output)
        except BaseException:  # an interrupt between the two renames must not cost the old bundle either
            if old.exists():
                old.rename(self.output)
            raise
        _sync_folder(self.output.parent)


@contextlib.contextmanager
def bundle_folder(output: Path) -> Iterator[BundleFolder]:
    """Open a temporary sibling of `output` for a build; it is removed whatever happens.

    A UsageError says that `output` is something else than a bundle, or in no folder, an OutputError that the disk
    refuses.
    """
    with raising(OutputError, f"{output}: cannot be written", "; nothing was changed"):
        _refuse_other_things(output)
        partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.building-", dir=output.parent))
    try:
        with cleanup_guard(partial, output), _temporary_files_in(partial), interrupted_by_sigterm():
            yield BundleFolder(output, partial)
    except OSError as cause:
        if is_full(cause):
            raise OutputError(f"{output}: no space left on the disk; nothing was changed") from cause
        raise OutputError(f"{cause.filename or output}: {cause.strerror or cause}; {output} was not changed") from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # where no cleanup_guard could be started


def _refuse_other_things(output: Path) -> None:
    """Refuse to replace anything but a bundle without further files."""
    if output.name in ("", ".", ".."):
        raise UsageError(f"{output}: expected the name of a bundle to write, such as NAME.edge")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: the folder {output.parent} does not exist")
    if not is_utf8(str(output.absolute())):
        raise UsageError(
            f"{output}: its path is not valid UTF-8, which ONNX's tools cannot take; choose another with -o"
        )
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UsageError(f"{output}: exists and is not a bundle; choose another name with -o")
    if not output.exists():
        check_new_file(output)
        return
    if not any(output.iterdir()):
        return
    try:
        manifest = decode_manifest(read_regular(output / MANIFEST_FILE, LIST_BYTES), str(output))
    except (OSError, BundleError) as cause:
        raise UsageError(f"{output}: exists and is not a bundle; choose another name with -o") from cause
    ours = {entry.name for entry in manifest.files} | {MANIFEST_FILE, SIGNATURE_FILE}
    strange = sorted({item.name for item in output.iterdir()} - ours)
    if strange:
        raise UsageError(f"{output}: holds {strange[0]}, which is no part of the bundle; choose another name with -o")


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Put libraries' temporary files on the output's disk, where they are removed and a full disk is reported."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def write_through(path: Path, data: bytes) -> None:
    """Write a file, and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# A dequantized value is a small integer times a scale, so it is equal or differs by a whole step. The tolerance is for
# the operators at the end of a model that run in float.
_GOLDEN_RELATIVE = 1e-3
_GOLDEN_ABSOLUTE_SHARE = 1e-5  # of the largest output: 0.0064 where boxes of 640 pixels share a tensor with scores


def golden_file(
    file: str, golden: Sequence[tuple[Image, Sequence[Tensor]]], noise: Sequence[Tensor] = ()
) -> tuple[bytes, Golden]:
    """Return the bytes of the .npz with golden inputs, and its entry in the manifest.

    `golden` has resized images with the outputs that the model gives for each, `noise` what `bundle.noise_of` gives.
    """
    arrays: dict[str, Any] = {}
    for index, (image, outputs) in enumerate(golden):
        arrays[f"image_{index}"] = image
        arrays |= {f"output_{index}_{number}": output for number, output in enumerate(outputs)}
    arrays |= {f"noise_{number}": values for number, values in enumerate(noise)}
    largest = max(float(np.abs(output).max()) for _, outputs in golden for output in outputs)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    share = NOISE_SHARE if len(noise) else 0.0
    return buffer.getvalue(), Golden(file, len(golden), largest * _GOLDEN_ABSOLUTE_SHARE, _GOLDEN_RELATIVE, share)


def described_manifest(spec: ModelSpec, target: Target, *, variants: tuple[Variant, ...], **others: Any) -> Manifest:
    """Return a manifest with what model.toml and the target say; `others` are its fields that neither tells."""
    return Manifest(
        name=spec.name,
        target=target.name,
        machine=target.machine,
        providers=tuple(target.providers),
        provider_options=target.provider_options,
        intra_op_num_threads=target.intra_op_num_threads,
        allow_spinning=target.allow_spinning,
        memory_mb=target.memory_mb,
        **{key: getattr(spec, key) for key in TaskSpec.__struct_fields__},
        labels=next(file.name for file in others["files"] if Path(file.name).stem == _LABELS),
        variants=variants,
        operators=tuple(sorted({name for variant in variants for name in variant.operators})),
        latency_budget_ms=spec.budget.latency_ms or target.latency_budget_ms,
        **others,
    )
