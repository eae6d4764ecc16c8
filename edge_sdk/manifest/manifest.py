"""Manifest: what a bundle promises.

Owns the schema, and does no I/O. Unknown keys are errors.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.errors import UsageError
from edge_sdk.manifest.input_tensor import InputTensor, floats_of
from edge_sdk.manifest.measured import Distillation
from edge_sdk.manifest.variant import Variant
from edge_sdk.manifest.versions import RuntimeRange
from edge_sdk.model_spec import ClassificationSpec, Decoder, DetectionSpec, InputSpec, Task, Thresholds, check_decoder
from edge_sdk.provider_options import ProviderOptions

SCHEMA_VERSION = 1

_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the bundle: a plain name, its size in bytes and its SHA-256 in lower-case hex."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: _Sha256


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the bundle came from.

    Attributes:
        edge_sdk: version of the builder.
        libraries: versions of onnx, onnxruntime, numpy and OpenCV that built it, and of onnxruntime-extensions where
            the model has operators of it.
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
        provider_options: what some of them are told; the place of what they keep is the device's.
        intra_op_num_threads: threads inside one operator.
        allow_spinning: whether waiting threads spin.
        memory_mb: memory that the target has, in MiB.
        task, decoder, input, thresholds, classification, detection: as in model.toml.
        labels: name of the labels file.
        variants: the first one runs unless another is chosen; its input is `input`, theirs differ in size alone.
        opset: ai.onnx opset of the quantized model.
        onnxruntime: versions that may run it.
        operators: `domain:name` of every operator in any variant.
        libraries: files of the bundle with custom operators, for its machine: all that it needs. They are loaded only
            when a trusted key's signature was verified. Without any, operators of the domain `ai.onnx.contrib` come
            from the onnxruntime-extensions package.
        fallback_reason: why the bundle carries FP32; None when it carries INT8.
        distillation: how it compares with its teacher; None when that was not checked.
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
    provider_options: ProviderOptions = ProviderOptions()
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
    libraries: tuple[str, ...] = ()
    fallback_reason: str | None = None
    distillation: Distillation | None = None
    latency_budget_ms: Annotated[float, Meta(gt=0)]
    provenance: Provenance
    files: tuple[FileEntry, ...]

    def __post_init__(self) -> None:
        check_decoder(self.task, self.decoder, self.detection)

    @property
    def taken(self) -> InputTensor:
        """What the first variant's file takes."""
        return self.variants[0].tensor or floats_of(self.input)

    def entry(self, name: str) -> FileEntry | None:
        """The entry of one file, or None when the manifest does not name it."""
        return next((f for f in self.files if f.name == name), None)

    def led_by(self, variant: str) -> Manifest:
        """The same promise with one variant in front, so that it is the one that runs, and the input in its size.

        Args:
            variant: its name, such as `int8.320x320`, or its file.

        Raises:
            UsageError: there is none of that name.
        """
        chosen = next((v for v in self.variants if variant in (v.name, v.file)), None)
        if chosen is None:
            names = ", ".join(v.name for v in self.variants)
            raise UsageError(f"{self.name} has no variant {variant!r}, expected one of: {names}")
        others = tuple(v for v in self.variants if v is not chosen)
        sized = msgspec.structs.replace(self.input, size_wh=chosen.size_wh)
        return msgspec.structs.replace(self, variants=(chosen, *others), input=sized)
