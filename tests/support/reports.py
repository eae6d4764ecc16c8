"""Reports, records and evaluations made by hand, and an HTML page taken apart."""

import os
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import Agreement, BoardEstimate
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.bundle.target import load_target
from edge_sdk_tools.check.examination import examine_model
from edge_sdk_tools.check.report import CheckReport, Finding
from edge_sdk_tools.check.sandbox import Examined, Job
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.evaluate.evaluation import Evaluation
from edge_sdk_tools.evaluate.statistics import Figure, Interval
from edge_sdk_tools.prove.parity import OutputChange, Proof, StepKind
from edge_sdk_tools.quantize.convert import Converted
from edge_sdk_tools.quantize.quantize import Recipe
from edge_sdk_tools.report import schema
from edge_sdk_tools.report.schema import BuildReport, Candidate, OperatorSize, Step, VariantRow, Verdict, WorstImage
from edge_sdk_tools.search.sensitivity import LayerNoise
from edge_sdk_tools.search.variant import ModelVariant
from tests.support import models as tiny

# An evaluation without models: figures as a test wants them.


def evaluation_of(quality: tuple[Figure, ...], agreement: tuple[Figure, ...], images: int = 650) -> Evaluation:
    return Evaluation(
        model="student", reference="teacher", task="classification", data="data", format="images", images=images,
        quality=quality, agreement=agreement, outputs=(), skipped=(), calibrated=0, duplicates=0, resamples=1000,
        images_per_second=1.0, warnings=(),
    )  # fmt: skip


# Proofs without models: nothing is wrong with them but what a test wants to be.

_FLAWLESS = Proof(
    evaluation=evaluation_of((), ()), agreement=Agreement("top1_agreement", 1, 1, 1, 1, 1), integer_mac_share=1.0,
    fp32_latency_ms=1.0, latency_ms=1.0, model_mb=1.0, samples=(), worst=(), images=ImageSet(()),
)  # fmt: skip


def model_variant(proof: Proof, **facts: Any) -> ModelVariant:
    """An INT8 model of which nothing is known but its proof and these facts."""
    given = {"spec": None, "fp32": None, "onnx": Path("a.onnx"), "converted": Converted(Path("a.ort"), ()), **facts}
    return ModelVariant(recipe=given.pop("recipe", Recipe()), proof=proof, **given)


def flawless_proof(images: ImageSet) -> Proof:
    return msgspec.structs.replace(_FLAWLESS, images=images)


# BuildReports for tests: one with everything in it, and edges of it.


def jpeg() -> bytes:
    return cv2.imencode(".jpg", np.full((16, 16, 3), 90, np.uint8))[1].tobytes()


def top1(value: float) -> schema.Measure:
    return schema.Measure("top-1", Interval(value, value - 0.03, value + 0.03))


def change(value: float, reach: float = 0.02) -> Interval:
    return Interval(value, value - reach, value + reach)


def variant(name: str, **changes: object) -> VariantRow:
    row = VariantRow(
        name=name, precision="int8", size_wh=(320, 320), model_mb=4.99, latency_ms=5.9, latency_ratio=0.62,
        metric="top-1", value=0.829, change=change(-0.01), integer_mac_share=1.0, estimate=None, problem=None,
        doubt=None,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def layers(count: int) -> tuple[schema.LayerSensitivity, ...]:
    return tuple(
        schema.LayerSensitivity(
            node=f"node_{index}", operator="Conv", sqnr_db=10.0 + index % 40, macs_share=1 / count,
            is_integer=index % 7 > 0,
        )
        for index in range(count)
    )  # fmt: skip


def noisy_layers(count: int) -> tuple[LayerNoise, ...]:
    return tuple(
        LayerNoise(
            node=f"noisy_{index}", operator="Conv", activation_sqnr_db=40.0 + index % 9, sqnr_db=30.0 + index,
            weight_sqnr_db=None if index == 3 else 35.0 + index % 5, macs_share=1 / count,
        )
        for index in range(count)
    )  # fmt: skip


def output_change(against: StepKind, own: float, total: float) -> OutputChange:
    return OutputChange(
        against=against, images=8, inputs=8, identical=own == 0, largest=own, relative_error=own, total_error=total,
        cosine=1 - own, top1_agreement=1.0,
    )  # fmt: skip


def empty_report() -> BuildReport:
    return BuildReport(
        name="tiny", target="arm64", task="classification", data="photographs", verdict=Verdict(carries=None, why="no")
    )


def full_report() -> BuildReport:
    """Every field has something in it; one step and one candidate were not measured."""
    return msgspec.structs.replace(
        empty_report(), images=488, created_at="2026-11-21T12:00:00Z", host_cpu="a CPU",
        libraries={"onnxruntime": "1.31.1", "numpy": "2.4.6"}, warnings=("few images",),
        verdict=Verdict(
            carries="int8", why="INT8 holds the gate", next_steps=("more images",), least_change=-0.01,
            latency_budget_ms=100.0,
        ),
        steps=(
            Step(kind="source", name="PyTorch", what="tiny.pth"),
            Step(kind="teacher", name="teacher", what="large", size_mb=40.0, quality=top1(0.85), latency_ratio=2.5),
            Step(
                kind="fp32", name="FP32", what="tiny.onnx", size_mb=18.5, quality=top1(0.83), change=change(-0.02),
                latency_ratio=1.0, peak_memory_mb=141.0,
                outputs=OutputChange(against="source", images=16, inputs=24, largest=1.2e-6, largest_share=1e-7),
            ),
            Step(
                kind="simplified", name="simplified", size_mb=18.0, latency_ratio=0.0,
                outputs=output_change("fp32", 0.0, 0.0),
            ),
            Step(
                kind="int8", name="INT8", what="QDQ", size_mb=5.0, quality=top1(0.825), agreement=top1(0.96),
                change=change(-0.005), against="fp32", latency_ratio=0.54,
                outputs=output_change("simplified", 0.09, 0.09),
            ),
            Step(
                kind="ort", name="ORT file", size_mb=4.99, quality=top1(0.825), change=change(0.0, 0.0),
                latency_ratio=0.53, peak_memory_mb=88.4, outputs=output_change("int8", 0.01, 0.0907), shipped=True,
            ),
            Step(kind="arm", name="ARM", left_out="not run: too large"),
        ),
        candidates=(
            Candidate(
                recipe="percentile", change=change(-0.005), latency_ratio=0.53, board_minstructions=79.0, held=True,
                chosen=True,
            ),
            Candidate(recipe="minmax", change=change(-0.05), latency_ratio=0.52, held=False, why="lost 5.0 points"),
            Candidate(recipe="entropy", held=False, why="stopped early"),
        ),
        sensitivity=layers(30), local_noise=noisy_layers(30),
        sizes=(OperatorSize("Conv", 13_400_000, 3_690_000), OperatorSize("Clip", 8, 0), OperatorSize("Gemm", 9, 0)),
        worst_images=(
            WorstImage(image="a.jpg", truth="cat", fp32="cat 90%", int8="dog 51%", picture=jpeg()),
            WorstImage(image="b.jpg", truth=None, fp32="nothing", int8="dog 30%"),
        ),
        variants=(variant("int8"), variant("int8.64x64", problem="it is too slow"), variant("fp32", doubt="noise")),
        boards=(BoardEstimate("cortex-a76", million_instructions=79.0, latency_ms=15.2, low_ms=13.1, high_ms=17.7),),
        command=("edge-sdk", "build", "model.toml", "--calibration", "my photographs"),
    )  # fmt: skip


# An HTML page, taken apart by the standard library.

_VOID = {"meta", "br", "img", "link", "input", "hr"}
_SHAPES = {"rect", "line", "circle", "text"}


class Page(HTMLParser):
    """Tags in balance, and what the page is made of; shapes of SVG close themselves."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.faults: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _SHAPES:
            self.faults.append(f"<{tag}/> is not closed in HTML")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


# Reports on models made in a test: without the limited process, which costs half a second a model.

SIZE = 8
IMAGE = [1, 3, SIZE, SIZE]


def network(
    text: str, outputs: dict[str, list[int | str]] | None = None, weights: dict[str, np.ndarray] | None = None, *,
    shape: Sequence[int | str] = IMAGE, opset: int = tiny.OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model of nodes in ONNX's text form; by default `y` is like the image."""
    return tiny.parsed(text, outputs or {"y": IMAGE}, weights, shape=shape, opset=opset)


def examined(
    folder: Path, model: onnx.ModelProto | bytes | None, *, target: str | None = "arm64", version: str | None = None,
    size: int = SIZE,
) -> Examined:  # fmt: skip
    """Examine a model whose image is 1x3x`size`x`size`, for a target, or for another version of ONNX Runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if model is not None:
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    found = load_target(target) if target else None
    if found and version:
        found = msgspec.structs.replace(found, min_onnxruntime=version, max_opset=onnx.defs.onnx_opset_version())
    return examine_model(Job("tiny", os.fsencode(path), InputSpec(size_wh=(size, size)), found, wants_model=True))


def report_on(folder: Path, model: onnx.ModelProto | bytes | None, **options: Any) -> CheckReport:
    """The report alone; whatever it says must have a next step."""
    report = examined(folder, model, **options).report
    assert all(finding.next_step for finding in report.findings)
    return report


def only(report: CheckReport, rule: str) -> Finding:
    [finding] = [finding for finding in report.findings if finding.rule == rule]
    return finding


def from_json(data: bytes) -> BuildReport:
    return msgspec.json.decode(data, type=BuildReport)
