"""The report of a build: every step side by side, what each gave, cost and lost; its JSON and its JSON Schema.

A field that is None was not measured; it is never a zero, and a zero is never a gap. JSON has no NaN: a NaN
would be written as null, which says "not measured". Characters that a file cannot hold are replaced in all texts.
"""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.bundle.manifest import BoardEstimate, Precision
from edge_sdk_tools.evaluate.statistics import SHARE, Interval
from edge_sdk_tools.prove.parity import Amount, Count, OutputChange, Share, StepKind
from edge_sdk_tools.search.gates import Band
from edge_sdk_tools.search.sensitivity import LayerNoise

_UNWRITABLE = re.compile("[\ud800-\udfff\x00-\x08\x0b-\x1f\x7f]")  # HTML holds none of them, UTF-8 no surrogates
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SCHEMA_VERSION = 1


class Record(msgspec.Struct, frozen=True):
    """A part of the report, in whose texts characters that a file cannot hold are replaced.

    A file's name may be no valid Unicode; a build must not fail because of it when only the report is left to write.
    """

    def __post_init__(self) -> None:
        """Replace what is not writable, in place."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            clean = _writable(value)
            if clean != value:
                msgspec.structs.force_setattr(self, field, clean)


def _writable(value: object) -> object:
    """Replace what no file can hold in a text, a tuple of texts, or a dict of texts."""
    if isinstance(value, str):
        return _UNWRITABLE.sub(_REPLACEMENT, value)
    if isinstance(value, tuple):
        return tuple(_writable(item) for item in value)
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    return value


class LayerSensitivity(Record, frozen=True, kw_only=True):
    """How much the outputs suffer when one layer, a node of the graph, computes in integers.

    Attributes:
        sqnr_db: signal to quantization noise of the model's outputs, decibels, when this layer alone computes in
            integers; None where it was not measured, or where no bit differs.
        macs_share: of the model's multiply-accumulates, 0-1.
        is_integer: False for a layer that was left float.
    """

    node: str
    operator: str
    sqnr_db: float | None = None
    macs_share: Share | None = None
    is_integer: bool


class Measure(Record, frozen=True, omit_defaults=True):
    """One figure of the report, with unit and interval.

    Attributes:
        name: such as `top-1`, `mAP50-95`, `mIoU`, `top-1 agreement`.
        value: with its 95 % interval.
        unit: `share` for 0-1; else the unit's name.
    """

    name: str
    value: Interval
    unit: str = SHARE


class Step(Record, frozen=True, kw_only=True):
    """One form of the model between float and the shipped file.

    Attributes:
        name: such as `PyTorch`, `FP32`, `ORT file`.
        what: one line about it: the model's name, the recipe, the optimisation style.
        size_mb: of its file or files, MB of 1e6 bytes.
        quality: against labels.
        agreement: with FP32, where that was compared.
        further: the other figures of the task: against labels, then beside FP32.
        change: its quality less that of the step before on the same images, paired, -1 to 1: what is below 0 was lost.
            Of the agreement with FP32 where there are no labels. Of measurements on as many other images 95 of 100 lie
            in its interval.
        against: which step `change` is measured from; None for the one before.
        latency_ratio: median latency over that of FP32, in one run on the machine that built; FP32 itself has 1.
        peak_memory_mb: of a process that loads it and runs it once, at its peak, above what that process had before, MB
            of 1e6 bytes. Code of ONNX Runtime itself does not count.
        outputs: how far its raw outputs lie from those of the step before.
        left_out: why it was not measured; empty if it was measured or the reason is unknown.
        shipped: the bundle carries this step's file; of one step at most.
    """

    kind: StepKind
    name: str
    what: str = ""
    size_mb: Amount | None = None
    quality: Measure | None = None
    agreement: Measure | None = None
    further: tuple[Measure, ...] = ()
    change: Interval | None = None
    against: StepKind | None = None
    latency_ratio: Amount | None = None
    peak_memory_mb: Amount | None = None
    outputs: OutputChange | None = None
    left_out: str = ""
    shipped: bool = False


class VariantRow(Record, frozen=True, kw_only=True):
    """One variant of the bundle as the report shows it.

    Attributes:
        name: such as `int8` or `int8.320x320`; `edge-sdk run --variant` takes it.
        model_mb: its file, MB of 1e6 bytes.
        latency_ms: median on this machine, one thread, in turn with the others.
        latency_ratio: of that to FP32 at model.toml's size.
        metric, value: by labels, or else agreement with FP32 at model.toml's size; 0-1.
        change: value less FP32's at model.toml's size, paired; of agreement, value less 1.
        integer_mac_share: as in the manifest; None for float.
        estimate: of its time on the target; None where nothing counted it.
        problem: why the bundle does not carry the variant; None when it does.
        doubt: a warning about its figures; None without one.
    """

    name: str
    precision: Precision
    size_wh: tuple[int, int]
    model_mb: float
    latency_ms: float
    latency_ratio: Amount
    metric: str
    value: float
    change: Interval
    integer_mac_share: float | None
    estimate: BoardEstimate | None
    problem: str | None
    doubt: str | None


class Candidate(Record, frozen=True, kw_only=True):
    """One recipe that the search tried.

    Attributes:
        recipe: its settings, in words.
        change: quality (without labels: agreement) less that of FP32, paired, -1 to 1: what is below 0 was lost.
        latency_ratio: median latency over that of FP32, on the machine that built.
        board_minstructions: one inference on the target's core, estimated, million instructions.
        held: whether it passed the gate; if not, `why` has the reason.
        chosen: whether it went into the bundle.
    """

    recipe: str
    change: Interval | None = None
    latency_ratio: Amount | None = None
    board_minstructions: Amount | None = None
    held: bool
    why: str = ""
    chosen: bool = False


class OperatorSize(Record, frozen=True):
    """The weights of all operators of one type, in bytes; 0 where the model has none of them."""

    operator: str
    fp32_bytes: Count
    int8_bytes: Count


class WorstImage(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An image on which INT8 lies furthest from FP32.

    Attributes:
        truth: what its label says, in words; None without labels.
        fp32, int8: what each says of it, in words.
        picture: JPEG, FP32 left, INT8 right; empty without one. It is not in report.json.
    """

    image: str
    truth: str | None
    fp32: str
    int8: str
    picture: bytes = b""


class Verdict(Record, frozen=True, kw_only=True):
    """The verdict of the build.

    Attributes:
        carries: what the bundle's model computes in; None when there is no bundle.
        next_steps: what to change, the most promising first; empty where nothing failed.
        least_change: the gate: quality less FP32's, -1 to 0, below which a candidate did not hold it.
        latency_budget_ms: promised to the device.
        band: how bad INT8's loss is, whatever the gates allow; None where the bundle carries FP32.
        loss: the figure that says so.
    """

    carries: Literal["int8", "fp32"] | None
    why: str
    next_steps: tuple[str, ...] = ()
    least_change: Annotated[float, Meta(ge=-1, le=0)] | None = None
    latency_budget_ms: Amount | None = None
    band: Band | None = None
    loss: str = ""


class Split(Record, frozen=True):
    """The images of a build by their purpose: the first 16 hex digits of each file's SHA-256.

    Attributes:
        calibration: they set the ranges of INT8.
        choice: on them recipes were compared; empty where images were few, and those of the claim served for both.
        claim: on them all figures of the report were measured.
        is_crossed: what INT8 loses by labels is claimed by cross-validation: the mean over both halves of these images,
            each measured with the recipe that the other half would have chosen.
    """

    calibration: tuple[str, ...]
    choice: tuple[str, ...]
    claim: tuple[str, ...]
    is_crossed: bool = False


class BuildReport(Record, frozen=True, kw_only=True):
    """The record of one build.

    Attributes:
        data: what the evaluation images are called, and `images`, how many of them.
        steps: in the order of `StepKind`, each kind once; those that were not taken are missing.
        candidates: recipes, in the order in which they were tried; empty when nothing was searched.
        sensitivity: layers by what their integers do to the outputs, where the search had to rank them.
        local_noise: layers by the noise at their own inputs and weights, in the order of the graph.
        sizes: weights by type of operator.
        worst_images: the worst first.
        variants: all models that were made for the bundle; the first one runs by default.
        warnings: what a reader should know before relying on the figures.
        split: None in reports of earlier versions.
        command: the program and its arguments, as they were given.
        libraries: versions by name.
        created_at: ISO 8601, UTC.
        host_cpu: of the machine that built, in its maker's words.
    """

    schema_version: Annotated[int, Meta(ge=1, le=SCHEMA_VERSION)] = SCHEMA_VERSION
    name: str
    target: str
    task: str
    data: str
    images: Count | None = None
    verdict: Verdict
    steps: tuple[Step, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    sensitivity: tuple[LayerSensitivity, ...] = ()
    local_noise: tuple[LayerNoise, ...] = ()
    sizes: tuple[OperatorSize, ...] = ()
    worst_images: tuple[WorstImage, ...] = ()
    boards: tuple[BoardEstimate, ...] = ()
    variants: tuple[VariantRow, ...] = ()
    warnings: tuple[str, ...] = ()
    split: Split | None = None
    command: tuple[str, ...] = ()
    libraries: dict[str, str] = {}
    created_at: str = ""
    host_cpu: str = ""

    @property
    def shipped(self) -> Step | None:
        """The step whose file the bundle carries; None without one."""
        return next((step for step in self.steps if step.shipped), None)

    @property
    def measured_on(self) -> str:
        """The images on which the figures were measured, in words."""
        if self.images is None:
            return self.data
        said = ", which also chose the recipe" if len(self.candidates) > 1 else ""
        if self.split and self.split.choice:
            said = ", which chose nothing"
        elif self.split and self.split.is_crossed:
            said = ", by cross-validation"
        return f"{self.images} images{said}"


def to_json(report: BuildReport) -> bytes:
    """Return the report as JSON, indented, ending in a line feed; equal reports give equal bytes.

    Pictures are left out: scripts cannot read them and people have report.html. With them a file that is diffed, kept
    for each build and searched would be a hundred times as large.
    """
    bare = tuple(msgspec.structs.replace(worst, picture=b"") for worst in report.worst_images)
    data = msgspec.json.encode(msgspec.structs.replace(report, worst_images=bare), order="deterministic")
    return msgspec.json.format(data, indent=2) + b"\n"


def report_schema() -> bytes:
    """Return the JSON Schema of report.json, the content of docs/report.schema.json."""
    schema = msgspec.json.schema(BuildReport)
    for definition in schema["$defs"].values():
        # Python 3.13 removes the indentation of docstrings, earlier versions do not.
        definition["description"] = inspect.cleandoc(definition["description"])
    del schema["$defs"]["WorstImage"]["properties"]["picture"]  # in the page only
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
