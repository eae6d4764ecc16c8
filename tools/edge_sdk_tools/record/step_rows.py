"""The steps of a build as the ledger has them: what was measured of each form of the model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk_tools.chain import OutputChange, StepKind
from edge_sdk_tools.distill_check import Distilled
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.importing.import_record import ImportRecord, read_import_record
from edge_sdk_tools.ledger import Measure, Step
from edge_sdk_tools.promise import Steps
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.search import Trial

_FLOAT_FILES = {
    ".onnx": ("ONNX file", "FP32, arranged for its CPU by the device that loads it"),
    ".ort": ("ORT file", "FP32, style Fixed"),
}


def step_rows(steps: Steps, int8: Trial) -> tuple[Step, ...]:
    """All steps that were taken, in their order, and the last one also where it was not.

    Args:
        steps: what the build gave.
        int8: the INT8 model that is shown: the one that ships, or the best of those that do not.
    """
    imported = read_import_record(Path(steps.spec.model))
    rows = [
        *_source(imported),
        *_teacher(steps.distilled),
        _fp32(steps, int8, imported),
        Step(
            kind="simplified",
            name="simplified",
            what="constants folded",
            size_mb=_megabytes(steps.simplified.path),
        ),
        *_converted(steps, int8),
        *_arm(steps),
    ]
    return tuple(_with_chain(row, steps) for row in rows)


def change_of(proof: Proof) -> Interval:
    """Quality less FP32's, or without labels what is missing in agreement."""
    figure = next(iter((*proof.evaluation.quality, *proof.evaluation.agreement)))
    return figure.difference if figure.difference is not None else _missing(figure.value)


def _source(imported: ImportRecord | None) -> list[Step]:
    if imported is None:
        return []
    return [Step(kind="source", name=imported.origin, what=f"imported by {imported.exporter}")]


def _teacher(distilled: Distilled | None) -> list[Step]:
    if distilled is None:
        return []
    promise, quality = distilled.promise, distilled.teacher_quality
    return [
        Step(
            kind="teacher",
            name="teacher",
            what=promise.teacher,
            size_mb=distilled.teacher_mb,
            quality=Measure(promise.metric, quality) if quality else None,
            latency_ratio=distilled.latency_ratio,
        )
    ]


def _fp32(steps: Steps, int8: Trial, imported: ImportRecord | None) -> Step:
    quality = int8.proof.evaluation.quality
    reference = quality[0].reference if quality else None
    return Step(
        kind="fp32",
        name="FP32",
        what=f"{Path(steps.spec.model).name}, as given",
        size_mb=steps.checked.proto.ByteSize() / 1e6,
        quality=Measure(quality[0].name, reference) if reference else None,
        change=_change_from_teacher(steps.distilled),
        against="teacher" if steps.distilled else None,
        latency_ratio=1.0,
        outputs=_import_change(imported),
    )


def _change_from_teacher(distilled: Distilled | None) -> Interval | None:
    """What the student lost; its interval is that of the difference, or without labels of the agreement."""
    if distilled is None:
        return None
    promise = distilled.promise
    if promise.teacher_value is None:
        return _missing(Interval(promise.student, promise.low, promise.high))
    return Interval(promise.student - promise.teacher_value, promise.low, promise.high)


def _import_change(imported: ImportRecord | None) -> OutputChange | None:
    if imported is None:
        return None
    return OutputChange(
        against="source",
        images=imported.images,
        inputs=imported.inputs,
        largest=imported.largest,
        largest_share=imported.largest_share,
    )


def _converted(steps: Steps, int8: Trial) -> list[Step]:
    choice, recipe = steps.choice, int8.quantized.recipe.text
    taken = f"{steps.input.dtype} {steps.input.layout} {steps.input.color}"
    if choice.precision == "int8":
        return [
            Step(kind="int8", name="INT8", what=recipe, size_mb=_megabytes(int8.quantized.path)),
            _measured("ort", "ORT file", f"style Fixed, takes {taken}", choice.proof, shipped=True),
        ]
    return [
        _measured("int8", "INT8", f"{recipe}, not carried", int8.proof),
        _measured("ort", *_FLOAT_FILES[choice.converted.model.suffix], choice.proof, shipped=True),
    ]


def _measured(kind: StepKind, name: str, what: str, proof: Proof, *, shipped: bool = False) -> Step:
    """A step with what was measured of it beside FP32."""
    quality, agreement = proof.evaluation.quality, proof.evaluation.agreement
    return Step(
        kind=kind,
        name=name,
        what=what,
        size_mb=proof.model_mb,
        quality=Measure(quality[0].name, quality[0].value) if quality else None,
        agreement=Measure(agreement[0].name, agreement[0].value) if agreement else None,
        change=change_of(proof),
        against="fp32",
        latency_ratio=proof.latency_ms / proof.fp32_latency_ms,
        shipped=shipped,
    )


def _arm(steps: Steps) -> list[Step]:
    chain = steps.chain
    if "arm" not in chain.changes and not chain.arm_left_out:
        return []
    what = f"the same file on an emulated {chain.core}" if chain.core else "the same file"
    return [Step(kind="arm", name="ARM", what=what, left_out=chain.arm_left_out)]


def _with_chain(row: Step, steps: Steps) -> Step:
    chain = steps.chain
    return msgspec.structs.replace(
        row,
        outputs=chain.changes.get(row.kind, row.outputs),
        peak_memory_mb=chain.peak_memory_mb.get(row.kind),
    )


def _missing(agreement: Interval) -> Interval:
    return Interval(agreement.value - 1, agreement.low - 1, agreement.high - 1)


def _megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6
