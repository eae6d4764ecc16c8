"""Ledger: every step of a build side by side, what each gave, cost and lost.

Owns the values, their checks, and their form as JSON. Measures nothing and draws nothing. A field that is None was not
measured; it is never a zero, and a zero is never a gap.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk_tools.chain import STEP_ORDER
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger.layer import LayerNoise, LayerSensitivity
from edge_sdk_tools.ledger.sound import check_one, check_order, settle
from edge_sdk_tools.ledger.step import Step
from edge_sdk_tools.ledger.variant import VariantRow

SCHEMA_VERSION = 1

Precision: TypeAlias = Literal["int8", "fp32"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe that the search tried.

    Attributes:
        recipe: its settings, in words.
        change: quality (without labels: agreement) less that of FP32, paired, -1 to 1: what is below 0 was lost.
        latency_ratio: median latency over that of FP32, on the machine that built.
        board_minstructions: one inference on the target's core, estimated, million instructions.
        held: whether it passed the gate.
        why: it did not; empty where it did.
        chosen: whether it went into the bundle.
    """

    recipe: str
    change: Interval | None = None
    latency_ratio: float | None = None
    board_minstructions: float | None = None
    held: bool
    why: str = ""
    chosen: bool = False

    def __post_init__(self) -> None:
        settle(self)


class OperatorSize(msgspec.Struct, frozen=True):
    """The weights of all operators of one type, in bytes; 0 where the model has none of them."""

    operator: str
    fp32_bytes: int | None
    int8_bytes: int | None

    def __post_init__(self) -> None:
        settle(self)


class WorstImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image on which INT8 lies furthest from FP32.

    Attributes:
        image: name of the file.
        truth: what its label says, in words; None without labels.
        fp32, int8: what each says of it, in words.
        picture: JPEG, as of `side_by_side`: FP32 left, INT8 right; empty without one. It is not in report.json.
    """

    image: str
    truth: str | None
    fp32: str
    int8: str
    picture: bytes = b""

    def __post_init__(self) -> None:
        settle(self)
        if self.picture and not self.picture.startswith(b"\xff\xd8\xff"):
            raise ValueError("WorstImage.picture: expected the bytes of a JPEG")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came out.

    Attributes:
        carries: what the bundle's model computes in; None when there is no bundle.
        why: one sentence.
        next_steps: what to change, the most promising first; empty where nothing failed.
        least_change: the gate: quality less FP32's, -1 to 0, below which a candidate did not hold it.
        latency_budget_ms: promised to the device.
    """

    carries: Precision | None
    why: str
    next_steps: tuple[str, ...] = ()
    least_change: float | None = None
    latency_budget_ms: float | None = None

    def __post_init__(self) -> None:
        settle(self)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one build.

    Attributes:
        schema_version: of this record.
        name: of the model.
        target: what it was built for.
        task: classification, detection or segmentation.
        data: what the evaluation images are called, and `images`, how many of them.
        verdict: what came out.
        steps: in the order of `STEP_ORDER`, each kind once; those that were not taken are missing.
        candidates: recipes, in the order in which they were tried; empty when nothing was searched.
        sensitivity: layers by what their integers do to the outputs, where the search had to rank them.
        local_noise: layers by the noise at their own inputs and weights, in the order of the graph.
        sizes: weights by type of operator.
        worst_images: the worst first.
        boards: estimates.
        variants: all models that were made for the bundle, the one that runs in front.
        warnings: what a reader should know before believing.
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
    images: int | None = None
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
    command: tuple[str, ...] = ()
    libraries: dict[str, str] = {}
    created_at: str = ""
    host_cpu: str = ""

    def __post_init__(self) -> None:
        settle(self)
        check_order([step.kind for step in self.steps], STEP_ORDER)
        check_one("Ledger.steps shipped", [step.shipped for step in self.steps])
        check_one("Ledger.candidates chosen", [candidate.chosen for candidate in self.candidates])

    @property
    def shipped(self) -> Step | None:
        """The step whose file the bundle carries; None without one."""
        return next((step for step in self.steps if step.shipped), None)


def to_json(ledger: Ledger) -> bytes:
    """The record as JSON, indented, ending in a line feed; the same record gives the same bytes.

    Pictures are left out: scripts cannot read them and people have report.html. With them a file that is diffed, kept
    for each build and searched would be a hundred times as large.
    """
    bare = tuple(msgspec.structs.replace(worst, picture=b"") for worst in ledger.worst_images)
    data = msgspec.json.encode(msgspec.structs.replace(ledger, worst_images=bare), order="deterministic")
    return msgspec.json.format(data, indent=2) + b"\n"


def from_json(data: bytes) -> Ledger:
    """Read what `to_json` wrote; unknown keys, of later versions, are passed over.

    Raises:
        msgspec.ValidationError: it is something else.
    """
    return msgspec.json.decode(data, type=Ledger)
