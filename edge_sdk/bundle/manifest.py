"""Schema and checks of manifest.json, and a rating of a bundle's variants.

`Manifest` and the Structs inside it are the schema; unknown keys are errors. `decode_manifest` parses a manifest and
checks that its parts agree, `encode_manifest` writes one, `manifest_schema` returns its JSON Schema. A `Variant` is one
model file with its measured figures; `ratings` compares the variants by one of these figures. `bundle` reads the files.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.bundle.model_spec import InputSpec, SizeWh
from edge_sdk.bundle.target import ProviderOptions
from edge_sdk.core.errors import BundleError, UsageError
from edge_sdk.core.toml import problems
from edge_sdk.tasks.decoders import DecoderName, check_decoder
from edge_sdk.tasks.spec import AgreementMetric, TaskSpec

InputType: TypeAlias = Literal["float32", "uint8", "int8"]
TensorColor: TypeAlias = Literal["RGB", "BGR", "GRAY", "RGBA", "BGRA"]

_CHANNELS = {"GRAY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}


class InputTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tensor that a device gives a model file instead of the one that `input` describes.

    Attributes:
        dtype: `float32`: (level - mean) / std; `uint8`: integers; `int8`: each of them less 128.
        color: order of its channels; the values of a fourth channel, A, do not matter.
        scale: for integers, 0-255: normalised value / scale, rounded to even, + `zero_point` is the integer. None if
            the integers are the resized picture's levels.
        zero_point: see `scale`; 0 without a scale.
    """

    dtype: InputType
    layout: Literal["NCHW", "NHWC"]
    color: TensorColor
    scale: Annotated[float, msgspec.Meta(gt=0)] | None = None
    zero_point: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0

    def __post_init__(self) -> None:
        if self.dtype == "float32" and (self.scale is not None or self.channels == 4):
            raise ValueError("float32 has neither a scale nor a fourth channel")
        if self.layout == "NCHW" and self.channels == 4:
            raise ValueError(f"{self.color} lies in planes, expected layout NHWC")

    @property
    def channels(self) -> int:
        """Number of channels: 1, 3 or 4."""
        return _CHANNELS[self.color]

    def shape(self, size_wh: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the shape of a tensor with this width and height in pixels, batch 1."""
        width, height = size_wh
        return (1, self.channels, height, width) if self.layout == "NCHW" else (1, height, width, self.channels)


def floats_of(spec: InputSpec) -> InputTensor:
    """Return the tensor that `input` describes: normalised float32 in the model's own layout and colour order."""
    return InputTensor(dtype="float32", layout=spec.layout, color=spec.color)


_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Unit = Annotated[float, Meta(ge=0, le=1)]
_NonNegative = Annotated[float, Meta(ge=0)]
_Change = Annotated[float, Meta(ge=-1, le=1)]


class Agreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a variant agrees with FP32 on images that calibration never saw.

    Attributes:
        metric: `top1_agreement` (share of equal top-1 classes), `detection_f1` (same class, matched at IoU .5) or
            `mean_iou` of class maps.
        value: 0-1.
        low, high: its 95 % interval over resampled images.
        reference_count: number of FP32's top-1 classes, detections or class maps.
    """

    metric: AgreementMetric
    value: _Unit
    low: _Unit
    high: _Unit
    images: Annotated[int, Meta(ge=1)]
    reference_count: Annotated[int, Meta(ge=1)]


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much better a variant is than another model on the same images.

    Attributes:
        reference: name of the other model, written as a variant's name; the bundle may lack it. `fp32` is the
            float model at model.toml's own input size.
        value: the variant's figure minus the reference's, -1 to 1; below 0 if the variant is worse.
        low, high: its 95 % interval over resampled images, paired: each sample is drawn for both models.
    """

    reference: str
    value: _Change
    low: _Change
    high: _Change

    @property
    def may_be_noise(self) -> bool:
        """Whether the difference may be noise, because its interval contains zero."""
        return self.low <= 0 <= self.high


class Quality(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How good a variant is by the labels of images that calibration never saw.

    Attributes:
        metric: `top-1`, `mAP50-95` or `mIoU`.
        value: 0-1.
        low, high: its 95 % interval over resampled images.
        fp32: the float model's value at model.toml's own input size, on the same images.
        difference: paired difference to the float model; None in bundles built before manifests had it.
    """

    metric: str
    value: _Unit
    low: _Unit
    high: _Unit
    fp32: _Unit
    images: Annotated[int, Meta(ge=1)]
    difference: Difference | None = None


class BoardEstimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Estimated time of one inference on the target, from instructions counted under emulation.

    Attributes:
        core: CPU core in qemu's spelling.
        million_instructions: instructions of one inference on one thread, in millions.
        latency_ms: the estimate, on one thread, without preparation and decoding.
        low_ms, high_ms: the estimate divided and multiplied by the worst known error of such estimates.
    """

    core: str
    million_instructions: _NonNegative
    latency_ms: _NonNegative
    low_ms: _NonNegative
    high_ms: _NonNegative


class Distillation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the float model compares with the teacher that it was distilled from, on images that calibration never saw.

    Attributes:
        teacher_sha256: SHA-256 of the teacher's ONNX model, or of its bundle's manifest.
        metric: `top-1`, `mAP50-95` or `mIoU` against labels; without labels agreement with the teacher.
        teacher_value: the teacher's value; None if the metric is agreement.
        low, high: 95 % interval of student minus teacher, -1 to 1, or of the agreement, 0-1.
        limit: the gate that the student passed: lowest student minus teacher, or lowest agreement.
        within_noise: whether the interval of the difference contains zero; None if the metric is agreement.
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


Precision: TypeAlias = Literal["int8", "fp32", "fp16", "int8_dynamic"]
"""Precision of a variant, explained in `PRECISIONS`."""


class PrecisionFacts(NamedTuple):
    """What is to know of a precision.

    Attributes:
        spoken: its name in messages.
        is_integer: whether the model computes in integers.
        flag: the option of `edge-sdk build` that adds such a model; empty where the search makes it anyway.
        help: what the option does.
    """

    spoken: str
    is_integer: bool
    flag: str
    help: str


PRECISIONS: dict[Precision, PrecisionFacts] = {
    "int8": PrecisionFacts("INT8", True, "", "INT8 with calibrated ranges."),
    "fp32": PrecisionFacts("FP32", False, "--with-fp32", "Carry the float model beside the INT8 one."),
    "fp16": PrecisionFacts(
        "FP16", False, "--with-fp16", "Carry the float model with its weights stored in half: half the file."
    ),
    "int8_dynamic": PrecisionFacts(
        "dynamic INT8",
        True,
        "--with-dynamic",
        "Carry INT8 whose ranges are taken from each frame: for models made of matrix products, such as ViT.",
    ),
}


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Golden inputs, their expected outputs, and how much outputs may differ.

    Attributes:
        file: an .npz: `image_I` uint8 (H, W, C) as they are after resizing, `output_I_J` the J-th output for image I,
            and for INT8 `noise_J` float32 (R,): root mean square of what quantization costs in every row of output J,
            whose rows stand along its shortest axis.
        absolute: allowed |got - expected|, in the outputs' own unit ...
        relative: ... plus this share of |expected|; or
        noise_share: in every row this share of its `noise_J`, as root mean square.
    """

    file: str
    count: Annotated[int, Meta(ge=1, le=16)]
    absolute: _NonNegative
    relative: _NonNegative
    noise_share: _Unit = 0.0


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model file that the bundle can run.

    Attributes:
        file: name of the file in the bundle: `model.NAME.ort`, or `.onnx` for a float model on x86_64.
        size_wh: width and height of its input in pixels; the manifest's `input` describes the rest.
        golden: golden inputs that a device replays before the first frame.
        operators: `domain:name` of each of its operators, sorted.
        host_latency_ms: median time of one run on the build machine, one thread; not the device's. The variants of a
            bundle were measured in turn, so that their ratios are meaningful. For a single model that takes levels, the
            time of the operators that it no longer runs is subtracted.
        quality: quality by labels; None if the images have none.
        agreement: agreement with FP32 at the manifest's own input size; None for that model itself.
        integer_mac_share: share of the multiply-accumulates meant for integer kernels that ran there, from a profile of
            this file; None for float. It covers convolutions outside the float tail; for `int8_dynamic`, products with
            weights.
        estimate: estimated time on the target; None if it was not estimated.
        tensor: its input tensor; None if it takes what `input` describes, in float32.
    """

    file: str
    precision: Precision
    size_wh: SizeWh
    golden: Golden
    operators: tuple[str, ...]
    host_latency_ms: _NonNegative
    quality: Quality | None = None
    agreement: Agreement | None = None
    integer_mac_share: _Unit | None = None
    estimate: BoardEstimate | None = None
    tensor: InputTensor | None = None

    @property
    def name(self) -> str:
        """Name of the variant within its file name, such as `int8` or `int8.320x320`."""
        return self.file.removeprefix("model.").removesuffix(".ort").removesuffix(".onnx")


_Version = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?$")]


class ReducedRuntime(msgspec.Struct, frozen=True):
    """What a build of ONNX Runtime with the operators of some bundles only says of itself, in its file REDUCED_FILE.

    Attributes:
        operators: `domain:name` of each operator that it has, sorted.
        operator_sets: SHA-256 in hex of OPERATORS_FILE of each bundle that it was built for and proved with.
    """

    operators: tuple[str, ...]
    operator_sets: tuple[str, ...]


REDUCED_FILE = "reduced.json"
"""File of a reduced ONNX Runtime beside its library; the stock one has none."""


class RuntimeRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ONNX Runtime versions that replayed the golden inputs, from `minimum` to `maximum`'s minor release."""

    minimum: _Version
    maximum: _Version

    def admits(self, version: str) -> bool:
        """Tell whether `version` ("1.31.1", suffixes ignored) lies in the range."""
        found = parse_version(version)
        return parse_version(self.minimum) <= found and found[:2] <= parse_version(self.maximum)[:2]


def parse_version(text: str) -> tuple[int, int, int]:
    """Read `1.31.1`, `1.31` or `1.31.1+cu12` as three numbers, for comparing."""
    numbers = [int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3]]
    padded = [*numbers, 0, 0, 0]
    return padded[0], padded[1], padded[2]


MANIFEST_VERSION = 1


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the bundle: a plain name, its size in bytes and its SHA-256 in lower-case hex."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: _Sha256


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The provenance of a bundle: tools, library versions, source model and recipe.

    Attributes:
        libraries: versions of onnx, onnxruntime, numpy and OpenCV that built it, and of onnxruntime-extensions if the
            model has operators of it.
        recipe: quantization settings by name.
        float_nodes: names of the nodes that were kept float on purpose.
        calibration_digests: the first 16 hex digits of the SHA-256 of every calibration image, so that none of them
            ever measures this bundle.
    """

    edge_sdk: str
    libraries: dict[str, str]
    source_sha256: _Sha256
    recipe: dict[str, str | int | bool]
    float_nodes: tuple[str, ...]
    calibration_digests: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")], ...]


class Manifest(TaskSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a device needs to know before it opens a model file.

    Attributes:
        schema_version: version of this schema; devices refuse a newer one.
        version: number that grows with every build of the same name.
        created_at: time of the build, RFC 3339, UTC.
        machine: `platform.machine()` of the devices that it runs on.
        providers: execution providers in order of preference.
        provider_options: options of execution providers; the device chooses where they store files.
        memory_mb: memory that the target has, in MiB.
        task, decoder, input, thresholds, classification, detection: as in model.toml.
        variants: the first one runs unless another is chosen; it takes `input`, and the others differ in size only.
        opset: ai.onnx opset of the quantized model.
        onnxruntime: ONNX Runtime versions that may run it.
        operators: `domain:name` of every operator in any variant.
        libraries: files of the bundle with all custom operators that it needs, for its machine. They are loaded only
            when a trusted key's signature was verified. Without any, operators of the domain `ai.onnx.contrib` come
            from the onnxruntime-extensions package.
        fallback_reason: why the bundle contains FP32; None if it contains INT8.
        distillation: comparison with its teacher; None if there was none.
        latency_budget_ms: time from capture to outbox.
        provenance: tools, libraries, source model and recipe of the build.
        files: every file but the manifest and its signature.
    """

    schema_version: int = MANIFEST_VERSION
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
    decoder: DecoderName
    input: InputSpec
    labels: str
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]
    opset: Annotated[int, Meta(ge=1)]
    onnxruntime: RuntimeRange
    operators: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    fallback_reason: str | None = None
    distillation: Distillation | None = None
    latency_budget_ms: Annotated[float, Meta(gt=0, le=1e9)]
    provenance: Provenance
    files: tuple[FileEntry, ...]

    def __post_init__(self) -> None:
        check_decoder(self.task, self.decoder, self.detection)

    @property
    def taken(self) -> InputTensor:
        """The input tensor that the primary variant's model file takes."""
        return self.variants[0].tensor or floats_of(self.input)

    def entry(self, name: str) -> FileEntry | None:
        """Return the entry of one file, or None where the manifest does not name it."""
        return next((f for f in self.files if f.name == name), None)

    def with_primary(self, variant: str) -> Manifest:
        """Return the same manifest with another primary variant, and `input` in its size.

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


MANIFEST_FILE = "manifest.json"
OPERATORS_FILE = "required_operators_and_types.config"
"""File of a bundle with lines of `domain;opset;Operator{types},…`, for a reduced build of ONNX Runtime."""
SIGNATURE_FILE = "manifest.sig"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Raises:
        BundleError: the data is not JSON, has a newer schema, or states something impossible.
    """
    try:
        loose = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise BundleError(f"{where}: not valid JSON: {cause}") from cause
    _check_schema_version(loose, where)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.ValidationError as cause:
        raise BundleError(f"{where}: {next(problems(loose, Manifest), cause)}") from cause
    _check_names(manifest, where)
    _check_variants(manifest, where)
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as indented JSON that ends in a line feed."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def manifest_schema() -> bytes:
    """Return the JSON Schema of manifest.json, as docs/manifest.schema.json holds it."""
    import inspect  # not needed on a device

    schema = msgspec.json.schema(Manifest)
    for definition in schema["$defs"].values():
        # Before Python 3.13 docstrings keep their indentation.
        definition["description"] = inspect.cleandoc(definition["description"])
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _check_schema_version(loose: Any, where: str) -> None:
    version = loose.get("schema_version") if isinstance(loose, dict) else None
    if not isinstance(version, int):
        raise BundleError(f"{where}: schema_version is missing, expected {MANIFEST_VERSION}")
    if version != MANIFEST_VERSION:
        raise BundleError(
            f"{where}: schema_version is {version}, expected {MANIFEST_VERSION}; "
            + ("update edge-sdk on this device" if version > MANIFEST_VERSION else "build the bundle again")
        )


def _check_names(manifest: Manifest, where: str) -> None:
    names = [f.name for f in manifest.files]
    for name in names:
        if not _PLAIN_NAME.fullmatch(name) or name in (MANIFEST_FILE, SIGNATURE_FILE):
            raise BundleError(f"{where}: file name {name!r} is not allowed, expected a plain name without folders")
    if len(set(names)) != len(names):
        raise BundleError(f"{where}: a file is named twice")
    promised = (name for v in manifest.variants for name in (v.file, v.golden.file))
    for wanted in (manifest.labels, *manifest.libraries, *promised):
        if wanted not in names:
            raise BundleError(f"{where}: {wanted!r} is promised but not among the files")


def _check_variants(manifest: Manifest, where: str) -> None:
    files = [v.file for v in manifest.variants]
    if len(set(files)) != len(files):
        raise BundleError(f"{where}: a variant is there twice")
    first = manifest.variants[0]
    if first.size_wh != manifest.input.size_wh:
        raise BundleError(
            f"{where}: {first.file} has the size {_size(first.size_wh)}, expected input.size_wh, "
            f"{_size(manifest.input.size_wh)}"
        )
    color = manifest.input.color
    for variant in manifest.variants:
        if variant.tensor is not None and (variant.tensor.color == "GRAY") != (color == "GRAY"):
            raise BundleError(
                f"{where}: {variant.file!r} takes {variant.tensor.color} pictures and input.color is {color}"
            )
    for name in {name for v in manifest.variants for name in v.operators} - {*manifest.operators}:
        raise BundleError(f"{where}: a variant has the operator {name!r}, which operators does not name")


def _size(size_wh: tuple[int, int]) -> str:
    return f"{size_wh[0]}x{size_wh[1]}"


AGREEMENT = "agreement with FP32"

# Images that show no difference between two models prove them equal only if there are many: with 30 images, a loss of
# ten points may be noise or real. The default gate of a distilled student uses the same limit.
_MOST_BELOW = 0.02
_ROUNDING = 1e-9  # tolerance, so that a value at the limit passes in spite of floating-point rounding


class Rating(msgspec.Struct, frozen=True):
    """Rating of one variant by the bundle's figures.

    Attributes:
        value: the figure, 0-1; None if it was not measured.
        like_reference: whether labels show no difference to the reference, on the same images for all variants.
    """

    value: float | None
    like_reference: bool = False

    @property
    def rank(self) -> float:
        """The value, or a number below all values if there is none."""
        return -1.0 if self.value is None else self.value

    def is_as_good_as(self, best: Rating) -> bool:
        """Tell whether it equals the best rating, or is lower by no more than noise."""
        if self.rank >= best.rank:
            return True
        below = best.rank - self.rank
        return self.like_reference and best.like_reference and below <= _MOST_BELOW + _ROUNDING


UNRATED = Rating(None)


def ratings(manifest: Manifest) -> tuple[str, dict[str, Rating]]:
    """Rate the variants of a bundle by one metric.

    The metric is quality by labels if every variant has it in one metric; else agreement with FP32, which is 1 for FP32
    itself. No agreement below 1 is noise, because a single different answer shows that two models differ. Other
    variants without a figure rank last, because a measured variant must not lose to an unknown one.
    """
    by_labels = {v.name: v.quality for v in manifest.variants if v.quality is not None}
    metrics = {q.metric for q in by_labels.values()}
    if len(by_labels) < len(manifest.variants) or len(metrics) != 1:
        return AGREEMENT, {v.name: Rating(_agreement(v)) for v in manifest.variants}
    compared = [(q.difference.reference, q.fp32, q.images) for q in by_labels.values() if q.difference is not None]
    is_one_comparison = len(set(compared)) == 1
    return metrics.pop(), {
        name: Rating(q.value, is_one_comparison and q.difference is not None and q.difference.may_be_noise)
        for name, q in by_labels.items()
    }


def _agreement(variant: Variant) -> float | None:
    if variant.agreement is not None:
        return variant.agreement.value
    return 1.0 if variant.precision == "fp32" else None
