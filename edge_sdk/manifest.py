"""Manifest: what a bundle promises.

Owns the schema and its checks, and does no I/O. Encoded as JSON in `manifest.json`; unknown keys are errors.
"""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edge_sdk.errors import BundleError
from edge_sdk.model_spec import ClassificationSpec, Decoder, DetectionSpec, InputSpec, Task, Thresholds

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Version = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?$")]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_NonNegative = Annotated[float, Meta(ge=0)]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the bundle: a plain name, its size in bytes and its SHA-256 in lower-case hex."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: _Sha256


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far INT8 agrees with FP32 on images that calibration never saw.

    Attributes:
        metric: `top1_agreement` (share of equal top-1 classes), `detection_f1` (same class, matched at IoU .5) or
            `mean_iou` of class maps.
        value: 0-1.
        low, high: its 95 % interval over resampled images.
        images: how many were compared.
        reference_count: FP32's top-1 classes, detections or class maps.
    """

    metric: Literal["top1_agreement", "detection_f1", "mean_iou"]
    value: _Unit
    low: _Unit
    high: _Unit
    images: Annotated[int, Meta(ge=1)]
    reference_count: Annotated[int, Meta(ge=1)]


class BoardEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one inference is expected to take on the target, whose instructions were counted under emulation.

    Attributes:
        core: in qemu's spelling.
        million_instructions: of one inference on one thread.
        latency_ms: the estimate, on one thread, without preparation and decoding.
        low_ms, high_ms: the estimate divided and multiplied by the worst error that such estimates were seen to have.
    """

    core: str
    million_instructions: _NonNegative
    latency_ms: _NonNegative
    low_ms: _NonNegative
    high_ms: _NonNegative


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model file that the bundle can run.

    Attributes:
        file: its name in the bundle.
        precision: `int8` or `fp32`.
        host_latency_ms: median of one run on the machine that built it, one thread; not the device's.
        agreement: with FP32; None for FP32 itself.
        integer_mac_share: share of the convolutions' multiply-accumulates outside the float tail that ran in integer
            kernels, read from a profile of this very file; None for FP32.
        estimate: of its time on the target; None where nothing counted it.
    """

    file: str
    precision: Literal["int8", "fp32"]
    host_latency_ms: _NonNegative
    agreement: Agreement | None = None
    integer_mac_share: _Unit | None = None
    estimate: BoardEstimate | None = None


class Distillation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the float model compares with the teacher that it was distilled from, on images that calibration never saw.

    Attributes:
        teacher: its name.
        teacher_sha256: of its ONNX model, or of its bundle's manifest.
        metric: `top-1`, `mAP50-95` or `mIoU` against labels; without labels agreement with the teacher.
        student: the model's figure.
        teacher_value: the teacher's; None where agreement is the figure.
        low, high: 95 % interval of student less teacher, -1 to 1, or of the agreement, 0-1.
        images: how many were compared.
        limit: the gate that it passed: least student less teacher, or least agreement.
        within_noise: whether the interval of the difference holds zero; None where agreement is the figure.
        line: all of it, for people.
    """

    teacher: str
    teacher_sha256: _Sha256
    metric: str
    student: float
    teacher_value: float | None
    low: float
    high: float
    images: Annotated[int, Meta(ge=1)]
    limit: Annotated[float, Meta(ge=-1, le=1)]
    within_noise: bool | None
    line: str


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs and the outputs they must give.

    Attributes:
        file: an .npz: `image_I` uint8 (H, W, C) as they are after resizing, `output_I_J` the J-th output for image I.
        count: number of images.
        absolute: allowed |got - expected|, in the outputs' own unit ...
        relative: ... plus this share of |expected|.
    """

    file: str
    count: Annotated[int, Meta(ge=1, le=16)]
    absolute: _NonNegative
    relative: _NonNegative


class RuntimeRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ONNX Runtime versions in which golden was replayed, from `minimum` to `maximum`'s minor release."""

    minimum: _Version
    maximum: _Version

    def admits(self, version: str) -> bool:
        """Whether `version` ("1.31.1", suffixes ignored) lies in the range."""
        found = parse_version(version)
        return parse_version(self.minimum) <= found and found[:2] <= parse_version(self.maximum)[:2]


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bundle came from.

    Attributes:
        edge_sdk: version of the builder.
        libraries: versions of onnx, onnxruntime, numpy and OpenCV that built it.
        source_sha256: of the ONNX model.
        recipe: quantization settings by name.
        float_nodes: names of the nodes that were left float on purpose.
        calibration_digests: the first 16 hex digits of the SHA-256 of every calibration image, so that none of them
            ever measures this bundle.
    """

    edge_sdk: str
    libraries: dict[str, str]
    source_sha256: _Sha256
    recipe: dict[str, str | int | bool]
    float_nodes: tuple[str, ...]
    calibration_digests: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")], ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a device needs to know before it opens a model file.

    Attributes:
        schema_version: of this schema; a newer one is refused.
        name: the bundle's.
        version: grows with every build of the same name.
        created_at: RFC 3339, UTC.
        target: name of the target it was built for.
        machine: `platform.machine()` it runs on.
        providers: execution providers in order of preference.
        intra_op_num_threads: threads inside one operator.
        allow_spinning: whether waiting threads spin.
        memory_mb: memory that the target has, in MiB.
        task, decoder, input, thresholds, classification, detection: as in model.toml.
        labels: name of the labels file.
        variants: the first one runs.
        opset: ai.onnx opset of the quantized model.
        onnxruntime: versions that may run it.
        operators: `domain:name` of every operator in the first variant.
        fallback_reason: why the bundle carries FP32; None when it carries INT8.
        distillation: how it compares with its teacher; None when that was not checked.
        golden: what is replayed before the first frame.
        latency_budget_ms: capture to outbox.
        provenance: where it came from.
        files: every file but the manifest and its signature.
    """

    schema_version: int = SCHEMA_VERSION
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    version: Annotated[int, Meta(ge=1)]
    created_at: str
    target: str
    machine: Literal["x86_64", "aarch64"]
    providers: tuple[str, ...]
    intra_op_num_threads: Annotated[int, Meta(ge=1, le=256)]
    allow_spinning: bool
    memory_mb: Annotated[int, Meta(ge=64)]
    task: Task
    decoder: Decoder
    input: InputSpec
    thresholds: Thresholds
    classification: ClassificationSpec
    detection: DetectionSpec
    labels: str
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]
    opset: Annotated[int, Meta(ge=1)]
    onnxruntime: RuntimeRange
    operators: tuple[str, ...]
    fallback_reason: str | None = None
    distillation: Distillation | None = None
    golden: Golden
    latency_budget_ms: Annotated[float, Meta(gt=0)]
    provenance: Provenance
    files: tuple[FileEntry, ...]

    def entry(self, name: str) -> FileEntry | None:
        """The entry of one file, or None when the manifest does not name it."""
        return next((f for f in self.files if f.name == name), None)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        data: the bytes of manifest.json, already verified where keys are trusted.
        where: what to call it in errors.

    Raises:
        BundleError: when it is not JSON, of a newer schema, or promises something impossible.
    """
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise BundleError(f"{where}: not valid JSON: {cause}") from cause
    _check_schema_version(loose, where)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.ValidationError as cause:
        raise BundleError(f"{where}: {cause}") from cause
    _check_names(manifest, where)
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON, ending in a line feed."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def manifest_schema() -> bytes:
    """The JSON Schema of manifest.json, as docs/manifest.schema.json holds it."""
    schema = msgspec.json.schema(Manifest)
    for definition in schema["$defs"].values():
        # Docstrings are indented before Python 3.13, and not from there on.
        definition["description"] = inspect.cleandoc(definition["description"])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def parse_version(text: str) -> tuple[int, int, int]:
    """`1.31.1`, `1.31` or `1.31.1+cu12` as three numbers, for comparing."""
    numbers = [int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3]]
    padded = [*numbers, 0, 0, 0]
    return padded[0], padded[1], padded[2]


def _check_schema_version(loose: Any, where: str) -> None:
    version = loose.get("schema_version") if isinstance(loose, dict) else None
    if not isinstance(version, int):
        raise BundleError(f"{where}: schema_version is missing, expected {SCHEMA_VERSION}")
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{where}: schema_version is {version}, expected {SCHEMA_VERSION}; "
            + ("update edge-sdk on this device" if version > SCHEMA_VERSION else "build the bundle again")
        )


def _check_names(manifest: Manifest, where: str) -> None:
    names = [f.name for f in manifest.files]
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or name in (MANIFEST_FILE, SIGNATURE_FILE):
            raise BundleError(f"{where}: file name {name!r} is not allowed, expected a plain name without folders")
    if len(set(names)) != len(names):
        raise BundleError(f"{where}: a file is named twice")
    for wanted in (manifest.labels, manifest.golden.file, *(v.file for v in manifest.variants)):
        if wanted not in names:
            raise BundleError(f"{where}: {wanted!r} is promised but not among the files")
