"""A bundle: a NAME.edge folder that is verified or refused, never half-valid.

`Bundle.open` checks in this order: the signature over the manifest's bytes, the manifest itself, then the name, size
and hash of every file. `Bundle.read` hashes a file again as it reads it, so that what was verified is what is used.
`edge_sdk.inference` checks the contents of the model files.

`largest_difference` compares a device's outputs for the golden inputs with those of the machine that built the bundle.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.manifest import (
    MANIFEST_FILE,
    OPERATORS_FILE,
    SIGNATURE_FILE,
    FileEntry,
    Golden,
    Manifest,
    ReducedRuntime,
    decode_manifest,
)
from edge_sdk.bundle.signing import SIGNATURE_BYTES, is_signed_by_any, public_keys
from edge_sdk.bundle.target import refuse_accelerators
from edge_sdk.core.errors import BundleError, IncompatibleError, UsageError
from edge_sdk.core.files import open_regular
from edge_sdk.core.frame import Result, Tensor
from edge_sdk.core.toml import missing_labels
from edge_sdk.tasks.detection import TASKS
from edge_sdk.tasks.entry import Labels
from edge_sdk.tasks.spec import labels_by_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_MANIFEST_LIMIT = 4 * 1024 * 1024  # bytes; a real one has about 5 kB
_PIECE = 1024 * 1024  # bytes hashed at once; other threads can run meanwhile

GoldenImage: TypeAlias = tuple[NDArray[np.uint8], tuple[Tensor, ...]]
"""A golden input, uint8 (H, W, 3) after resizing, and the outputs that the model must return for it."""


class Bundle:
    """An opened and verified bundle.

    Attributes:
        manifest: contents of manifest.json, with the primary variant first.
        manifest_bytes: the verified bytes of manifest.json, which a signature covers.
        digest: SHA-256 of `manifest_bytes` in hex; it identifies the bundle, because the manifest lists all hashes.
        signed: whether a trusted key's signature was verified.
    """

    def __init__(self, path: Path, manifest: Manifest, manifest_bytes: bytes, *, signed: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.manifest_bytes = manifest_bytes
        self.digest = hashlib.sha256(manifest_bytes).hexdigest()
        self.signed = signed

    @classmethod
    def open(cls, path: Path | str, trusted_keys: Sequence[Ed25519PublicKey | Path | str] = ()) -> Bundle:
        """Open a bundle and verify its signature and all files.

        Args:
            path: the NAME.edge folder.
            trusted_keys: public keys, or files of `edge-sdk keygen`; with any, a signature by one of them is required
                and checked before anything is parsed.

        Raises:
            UsageError: there is no folder of that name.
            ConfigError: a key's file is missing, or is no key.
            BundleError: the bundle is unsigned, wrongly signed, altered or incomplete, or has a file that the manifest
                does not name.
        """
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"the bundle is {path!r}, expected the path of a NAME.edge folder")
        path, keys = Path(path), public_keys(trusted_keys)
        check_place(path)
        data = _read_regular(path / MANIFEST_FILE, limit=_MANIFEST_LIMIT)
        if keys:
            _check_signature(path, data, keys)
        manifest = decode_manifest(data, str(path / MANIFEST_FILE))
        bundle = cls(path, manifest, data, signed=bool(keys))
        bundle._check_folder()
        for entry in manifest.files:
            bundle._verify(entry)
        return bundle

    def with_primary(self, variant: str) -> Bundle:
        """Return the same bundle with another primary variant; see `Manifest.with_primary`."""
        try:
            manifest = self.manifest.with_primary(variant)
        except UsageError as cause:
            raise UsageError(f"{self.path}: {cause}") from cause
        return Bundle(self.path, manifest, self.manifest_bytes, signed=self.signed)

    def read(self, name: str) -> bytes:
        """Read one file and hash it again, so that only verified bytes are used; raise BundleError for others."""
        entry = self.manifest.entry(name)
        if entry is None:
            raise BundleError(f"{self.path}: the manifest names no file {name!r}")
        data = _read_regular(self.path / name, limit=entry.size)
        self._check_file(entry, len(data), hashlib.sha256(data).hexdigest())
        return data

    def _verify(self, entry: FileEntry) -> None:
        """Hash one file in pieces, so that it does not stay in memory."""
        digest, size, piece = hashlib.sha256(), 0, memoryview(bytearray(min(_PIECE, entry.size + 1)))
        with _opened(self.path / entry.name) as file:
            while size <= entry.size and (count := file.readinto(piece[: entry.size + 1 - size])):
                digest.update(piece[:count])
                size += count
        self._check_file(entry, size, digest.hexdigest())

    def _check_file(self, entry: FileEntry, size: int, sha256: str) -> None:
        path = self.path / entry.name
        if size != entry.size:
            raise BundleError(f"{path}: has {size} bytes, the manifest promises {entry.size}; copy the bundle again")
        if sha256 != entry.sha256:
            raise BundleError(f"{path}: altered; sha256 is {sha256[:12]}…, the manifest promises {entry.sha256[:12]}…")

    def labels(self) -> Labels:
        """Read the labels, in output order; raise BundleError where the file is not UTF-8."""
        try:
            return Labels.of(self.read(self.manifest.labels))
        except ValueError as cause:
            what = "not UTF-8" if isinstance(cause, UnicodeDecodeError) else str(cause)
            raise BundleError(f"{self.path / self.manifest.labels}: {what}; build the bundle again") from cause

    def labels_by_id(self) -> dict[int, str]:
        """Read the labels of the classes by their ids, as in messages: -1 is a classifier's background."""
        return labels_by_id(self.manifest, self.labels())

    def ids_of(self, labels: Collection[str], key: str) -> frozenset[int]:
        """Return the class ids of these labels; raise a UsageError that names the key where the bundle lacks one."""
        task = self.manifest.task
        if TASKS[task].result.of_classes is Result.of_classes:
            raise UsageError(f"{key}: {self.manifest.name} is for {task}, of which no classes can be left out")
        by_id = self.labels_by_id()
        if unknown := missing_labels(labels, by_id.values(), f"is no label of {self.manifest.name}"):
            raise UsageError(f"{key}: {'; '.join(unknown)}")
        return frozenset(number for number, label in by_id.items() if label in labels)

    def golden(self) -> list[GoldenImage]:
        """Read the golden inputs of the primary variant with their expected outputs; see `golden_and_noise`."""
        return self.golden_and_noise()[0]

    def golden_and_noise(self, most: int | None = None) -> tuple[list[GoldenImage], tuple[Tensor, ...]]:
        """Read the first `most` golden inputs or all, and the quantization noise in every row of every output.

        Returns:
            The inputs with their expected outputs, and float32 (R,) for each output; no noise for a float model.

        Raises:
            BundleError: the file does not hold what the manifest promises.
        """
        promise = self.manifest.variants[0].golden
        where, data = self.path / promise.file, self.read(promise.file)
        (width, height), count = self.manifest.input.size_wh, promise.count
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                outputs = range(max(1, sum(name.startswith("output_0_") for name in arrays.files)))
                images = [
                    (arrays[f"image_{i}"], tuple(arrays[f"output_{i}_{j}"] for j in outputs))
                    for i in range(count if most is None else min(most, count))
                ]
                noise = tuple(arrays[f"noise_{j}"] for j in outputs) if promise.noise_share else ()
        except Exception as cause:  # numpy and zipfile raise errors of ten types for other bytes
            raise BundleError(f"{where}: not the promised golden file ({type(cause).__name__}: {cause})") from cause
        for image, _ in images:
            if image.dtype != np.uint8 or image.shape != (height, width, 3):
                raise BundleError(
                    f"{where}: a golden image is {image.dtype} {image.shape}, expected uint8 {(height, width, 3)}"
                )
        for number, (cost, output) in enumerate(zip(noise, images[0][1], strict=False)):
            if cost.dtype != np.float32 or cost.shape != (row_count(output),) or not np.isfinite(cost).all():
                raise BundleError(f"{where}: noise_{number} is not one finite float32 a row of output {number}")
        return images, noise

    def check_device(self, machine: str, onnxruntime_version: str, reduced: ReducedRuntime | None = None) -> None:
        """Raise IncompatibleError where the machine differs, or the ONNX Runtime cannot or was not shown to run this.

        The stock ONNX Runtime must be in the bundle's range, a reduced one must have been built for its operators, and
        the bundle must ask for the CPU alone.
        """
        promise = self.manifest
        if machine != promise.machine:
            raise IncompatibleError(
                f"{self.path}: built for {promise.machine} (target {promise.target}), this machine is {machine}; "
                f"build it with a target for {machine}, see `edge-sdk targets`"
            )
        if reduced is not None:
            self._check_reduced(onnxruntime_version, reduced)
        elif not promise.onnxruntime.admits(onnxruntime_version):
            span = f"{promise.onnxruntime.minimum} to {promise.onnxruntime.maximum}"
            raise IncompatibleError(
                f"{self.path}: proved with ONNX Runtime {span}, found {onnxruntime_version}; "
                f"install one of those, or build it with --prove-runtime {onnxruntime_version}"
            )

    def _check_reduced(self, version: str, reduced: ReducedRuntime) -> None:
        refuse_accelerators(str(self.path), self.manifest.providers)
        missing = ", ".join(sorted({*self.manifest.operators} - {*reduced.operators}))
        entry = self.manifest.entry(OPERATORS_FILE)
        whole = [variant.file for variant in self.manifest.variants if not variant.file.endswith(".ort")]
        if missing:
            what = f"has no {missing}"
        elif whole:
            what = f"does not load {whole[0]}, which is not in ORT format"
        elif entry is None or entry.sha256 not in reduced.operator_sets:
            what = "was built for other versions or types of its operators"
        else:
            return
        raise IncompatibleError(
            f"{self.path}: the reduced ONNX Runtime {version} here {what}; install the stock onnxruntime, or what "
            "`edge-sdk runtime build` makes of this bundle"
        )

    def _check_folder(self) -> None:
        expected = {entry.name for entry in self.manifest.files} | {MANIFEST_FILE}
        found = {item.name for item in os.scandir(self.path)} - {SIGNATURE_FILE}
        missing, extra = sorted(expected - found), sorted(found - expected)
        if missing:
            raise BundleError(f"{self.path}: {missing[0]} is missing; copy the bundle again")
        if extra:
            raise BundleError(f"{self.path}: {extra[0]} is not named by the manifest; a bundle holds nothing else")


def check_place(path: Path) -> None:
    """Raise a UsageError if no bundle can be at this path; reads no file."""
    try:
        is_folder = path.is_dir()
    except OSError as cause:
        if cause.errno != errno.ENAMETOOLONG:  # others may pass
            raise
        raise UsageError(f"{path}: no such bundle: {cause.strerror}") from cause
    if not is_folder or (path.suffix != ".edge" and not (path / MANIFEST_FILE).exists()):
        what = "not a bundle" if is_folder or path.exists() else "no such bundle"
        raise UsageError(f"{path}: {what}, expected a NAME.edge folder that `edge-sdk build` wrote")


def _check_signature(path: Path, manifest: bytes, trusted_keys: Sequence[Ed25519PublicKey]) -> None:
    if not (path / SIGNATURE_FILE).exists():
        raise BundleError(f"{path}: not signed, expected a signature by a trusted key; sign it with `edge-sdk sign`")
    signature = _read_regular(path / SIGNATURE_FILE, limit=SIGNATURE_BYTES)
    if len(signature) != SIGNATURE_BYTES or not is_signed_by_any(manifest, signature, trusted_keys):
        raise BundleError(f"{path}: the signature is not by a trusted key, or the manifest was altered after signing")


def _read_regular(path: Path, limit: int) -> bytes:
    """Read at most `limit` + 1 bytes of a regular file."""
    with _opened(path) as file:
        # The size is limited because a manifest may state any size, and a file may grow.
        return file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading; refuse links, folders, pipes and devices."""
    try:
        with open_regular(path, follow_links=False) as file:
            yield file
    except FileNotFoundError:
        raise BundleError(f"{path}: missing; copy the bundle again") from None
    except OSError as cause:
        raise BundleError(f"{path}: cannot be read: {cause.strerror}") from cause


def digest_at(path: Path) -> str | None:
    """Return the present digest of the bundle in a folder, without verifying it; None if there is no bundle."""
    try:
        return hashlib.sha256(_read_regular(path / MANIFEST_FILE, limit=_MANIFEST_LIMIT)).hexdigest()
    except BundleError:
        return None


NOISE_SHARE = 1.0
"""Allowed share of the quantization noise; larger differences are no rounding. docs/adr/0009 has the measurements."""

_BLOCK = 65_536  # values compared at once: a detector's outputs take megabytes, and float64 copies twice as many


def row_count(output: Tensor) -> int:
    """Count the rows that `judged_rows` makes."""
    values = _of_one(output)
    return 1 if values.ndim < 2 else int(min(values.shape))


def judged_rows(output: Tensor) -> NDArray[np.float64]:
    """Split an output along its shortest axis, float64 (R, N), to judge boxes in pixels and scores of 0-1 apart."""
    values = _of_one(output)
    if values.ndim < 2:
        return values.reshape(1, -1).astype(np.float64)
    shortest = int(np.argmin(values.shape))
    return np.moveaxis(values, shortest, 0).reshape(values.shape[shortest], -1).astype(np.float64)


def _of_one(output: Tensor) -> Tensor:
    """Leave out the axis of a batch of one."""
    return output.reshape(output.shape[1:]) if output.ndim > 1 and output.shape[0] == 1 else output


def energies_of(got: Tensor, expected: Tensor) -> NDArray[np.float64]:
    """Return the mean square of the difference in every row, float64 (R,); both have the same shape."""
    return np.asarray(((judged_rows(got) - judged_rows(expected)) ** 2).mean(axis=1))


def noise_of(energies: Sequence[Sequence[NDArray[np.float64]]]) -> list[NDArray[np.float32]]:
    """Return for each output the root mean square in every row, float32 (R,), of each image's `energies_of`."""
    columns = zip(*energies, strict=True)
    return [np.sqrt(np.mean(column, axis=0)).astype(np.float32) for column in columns]


def largest_difference(
    got: Sequence[Tensor], expected: Sequence[Tensor], golden: Golden, noise: Sequence[Tensor]
) -> float | str:
    """Compare the outputs of one golden image.

    Float models agree to a few of the last digits. INT8 models nearly always agree to the last bit, but CPUs add two
    tensors of integers in floating point, and round a sum half-way between two integers to different sides
    (docs/adr/0009). That stays below the quantization noise, while a CPU that saturates or a wrong kernel exceeds it.

    Args:
        got: the outputs of this machine.
        expected: the outputs in the bundle.
        golden: the allowed differences.
        noise: for each output, the root mean square of the quantization noise in every row, (R,); empty for float.

    Returns:
        The largest absolute difference, or a text that says what is wrong.
    """
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    worst = 0.0
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index} is {a.dtype} {a.shape}, expected {b.dtype} {b.shape}"
        largest, bad = _beyond(a, b, golden)
        if bad and noise:  # integers that round to the other side may differ by this much in each row
            allowed = golden.absolute + golden.noise_share * noise[index].astype(np.float64)
            bad = 0 if (energies_of(a, b) <= allowed**2).all() else bad
        if bad:
            return f"output {index} is off by up to {largest:.3g} in {bad / a.size:.1%} of its values"
        worst = max(worst, largest)
    return worst


def _beyond(got: Tensor, expected: Tensor, golden: Golden) -> tuple[float, int]:
    """Return the largest absolute difference, and how many values differ by more than allowed."""
    if np.array_equal(got, expected):
        return 0.0, 0
    largest, bad = 0.0, 0
    a, b = got.reshape(-1), expected.reshape(-1)
    for start in range(0, a.size, _BLOCK):
        x, y = (values[start : start + _BLOCK].astype(np.float64) for values in (a, b))
        difference = np.abs(x - y)
        # Negated, so that NaN counts as wrong and as the largest difference.
        bad += int(np.count_nonzero(~(difference <= golden.absolute + golden.relative * np.abs(y))))
        largest = float(np.maximum(largest, difference.max()))
    return largest, bad
