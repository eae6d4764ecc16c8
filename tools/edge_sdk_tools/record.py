"""record: what the steps of a build gave, as the ledger has it.

Owns what is left out: a figure that nobody measured is None there, and never zero.
"""

from __future__ import annotations

import datetime
import math
import sys
from importlib.metadata import version
from pathlib import Path

import cv2
import numpy as np
import onnx

from edge_sdk.session import Session, SessionSettings
from edge_sdk_tools.distill_check import WorstImage as Worst
from edge_sdk_tools.evaluate import Figure, Interval, Subject, from_checked
from edge_sdk_tools.ledger import (
    Candidate,
    LayerSensitivity,
    Ledger,
    Measure,
    Step,
    Verdict,
    WorstImage,
    operator_sizes,
    side_by_side,
)
from edge_sdk_tools.promise import Steps
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.search import Sensitivity, Trial

_PICTURES = 6
_LIBRARIES = ("edge-sdk", "numpy", "onnx", "onnxruntime", "opencv-python-headless")
_CPU_INFO = Path("/proc/cpuinfo")


def record_of(steps: Steps) -> Ledger:
    """The record of a build."""
    search, choice = steps.search, steps.choice
    int8 = search.chosen or search.best
    evaluation = int8.proof.evaluation
    return Ledger(
        name=steps.spec.name,
        target=steps.target.name,
        task=steps.spec.task,
        data=str(steps.images.evaluation.format),
        images=evaluation.images,
        verdict=_verdict(steps, int8.proof),
        steps=tuple(_steps(steps, int8)),
        candidates=tuple(_candidate(trial, search.chosen) for trial in search.trials),
        sensitivity=tuple(_layer(layer, choice.float_nodes) for layer in search.sensitivities),
        sizes=operator_sizes(onnx.load(steps.simplified.path), onnx.load(int8.quantized.path)),
        worst_images=tuple(_pictured(int8.proof.worst[:_PICTURES], steps, int8)),
        boards=(steps.board,) if steps.board else (),
        warnings=(*evaluation.warnings, *search.doubts),
        command=(Path(sys.argv[0]).name, *sys.argv[1:]),
        libraries={name: version(name) for name in _LIBRARIES},
        created_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        host_cpu=_host_cpu(),
    )


def _verdict(steps: Steps, int8: Proof) -> Verdict:
    choice, gates = steps.choice, steps.spec.gates
    figure = next(iter((*int8.evaluation.quality, *int8.evaluation.agreement)))
    if figure.reference is not None:
        least = -gates.int8_max_drop_relative * figure.reference.value
    else:
        least = gates.int8_min_agreement - 1
    why = choice.fallback_reason or steps.search.doubt or f"INT8 holds its gates: {_change_line(figure)}"
    mend = (
        "check input.mean, std, color and resize",
        "calibrate with more images like those that the camera sees",
        "lower gates.int8_max_drop_relative or int8_min_agreement",
    )
    return Verdict(
        carries=choice.precision,
        why=why,
        next_steps=mend if choice.fallback_reason else (),
        least_change=least,
        latency_budget_ms=steps.latency_budget_ms,
    )


def _change_line(figure: Figure) -> str:
    if figure.difference is None:
        return f"{figure.name} {figure.value.value:.1%}"
    return f"{figure.name} changes by {100 * figure.difference.value + 0.0:+.1f} points"


def _steps(steps: Steps, int8: Trial) -> list[Step]:
    checked, choice, distilled = steps.checked, steps.choice, steps.distillation
    quality = int8.proof.evaluation.quality
    reference = quality[0].reference if quality else None
    found = []
    if distilled is not None and distilled.teacher_value is not None:
        value = Interval(distilled.teacher_value, distilled.teacher_value, distilled.teacher_value)
        found.append(
            Step(kind="teacher", name="teacher", what=distilled.teacher, quality=Measure(distilled.metric, value))
        )
    found += [
        Step(
            kind="fp32",
            name="FP32",
            what=f"{Path(steps.spec.model).name}, as given",
            size_mb=checked.proto.ByteSize() / 1e6,
            quality=Measure(quality[0].name, reference) if reference else None,
            latency_ratio=1.0,
        ),
        Step(
            kind="simplified",
            name="simplified",
            what="constants folded",
            size_mb=steps.simplified.path.stat().st_size / 1e6,
        ),
    ]
    recipe = int8.quantized.recipe.text
    size_mb = int8.quantized.path.stat().st_size / 1e6
    taken = f"{steps.input.dtype} {steps.input.layout} {steps.input.color}"
    if choice.precision == "int8":
        found.append(Step(kind="int8", name="INT8", what=recipe, size_mb=size_mb))
        found.append(
            _measured(Step(kind="ort", name="ORT file", what=f"style Fixed, takes {taken}", shipped=True), choice.proof)
        )
    else:
        found.append(_measured(Step(kind="int8", name="INT8", what=f"{recipe}, not carried"), int8.proof))
        found.append(_measured(Step(kind="ort", name="ORT file", what="FP32, style Fixed", shipped=True), choice.proof))
    return found


def _measured(step: Step, proof: Proof) -> Step:
    """A step with what was measured of it beside FP32."""
    quality, agreement = proof.evaluation.quality, proof.evaluation.agreement
    return Step(
        kind=step.kind,
        name=step.name,
        what=step.what,
        size_mb=proof.model_mb,
        quality=Measure(quality[0].name, quality[0].value) if quality else None,
        agreement=Measure(agreement[0].name, agreement[0].value) if agreement else None,
        change=_change(proof),
        against="fp32",
        latency_ratio=proof.latency_ms / proof.fp32_latency_ms,
        shipped=step.shipped,
    )


def _change(proof: Proof) -> Interval:
    figure = next(iter((*proof.evaluation.quality, *proof.evaluation.agreement)))
    if figure.difference is not None:
        return figure.difference
    return Interval(*(x - 1 for x in (figure.value.value, figure.value.low, figure.value.high)))


def _candidate(trial: Trial, chosen: Trial | None) -> Candidate:
    return Candidate(
        recipe=trial.quantized.recipe.text,
        change=_change(trial.proof),
        latency_ratio=trial.proof.latency_ms / trial.proof.fp32_latency_ms,
        held=trial.shortfall is None,
        why=trial.shortfall.line if trial.shortfall else "",
        chosen=trial is chosen,
    )


def _layer(layer: Sensitivity, float_nodes: tuple[str, ...]) -> LayerSensitivity:
    """One row a layer; operators of a type that were judged together are one row too."""
    return LayerSensitivity(
        node=layer.nodes[0] if layer.macs_share else f"all {layer.operator}",
        operator=layer.operator,
        sqnr_db=-10 * math.log10(layer.noise) if layer.noise > 0 else None,
        macs_share=layer.macs_share,
        is_integer=layer.nodes[0] not in float_nodes,
    )


def _pictured(worst: tuple[Worst, ...], steps: Steps, int8: Trial) -> list[WorstImage]:
    if not worst:
        return []
    spec, labels = steps.spec, steps.checked.labels
    session = Session(int8.converted.model.read_bytes(), SessionSettings(), "the converted model")
    fp32 = from_checked("FP32", spec, steps.checked)
    models = [fp32.open(), Subject("INT8", spec, labels, session, "").open()]
    found = []
    for one in worst:
        image = cv2.imread(one.file, cv2.IMREAD_COLOR)
        if image is None:
            continue  # it was there a minute ago
        pixels = np.asarray(image, np.uint8)
        fp32_result, int8_result = (model(pixels).result for model in models)
        background = bool(fp32.background)
        picture = side_by_side(pixels, fp32_result, int8_result, labels, background_class=background)
        found.append(
            WorstImage(image=Path(one.file).name, truth=one.truth, fp32=one.teacher, int8=one.student, picture=picture)
        )
    return found


def _host_cpu() -> str:
    lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines() if _CPU_INFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
