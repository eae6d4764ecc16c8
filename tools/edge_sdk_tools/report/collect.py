"""Collect the results of a build's steps in its report; a figure that was not measured is None, never zero.

The sizes of weights by operator, and the pictures of the images on which FP32 and INT8 differ most, are made here.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import cv2
import msgspec
import numpy as np
import onnx

from edge_sdk.core.files import read_regular
from edge_sdk.core.frame import Image, Result
from edge_sdk.core.machine import Cpu
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.check.gate import CheckedModel
from edge_sdk_tools.datasets.images import MAX_BYTES, ImageSet, decode_image
from edge_sdk_tools.datasets.reading import ImageSplit
from edge_sdk_tools.distillation.gate import Distilled
from edge_sdk_tools.evaluate.model import DIGEST_LENGTH, Subject
from edge_sdk_tools.evaluate.statistics import Figure, Interval
from edge_sdk_tools.graph.index import Value, constants_of, element_name, nodes_of
from edge_sdk_tools.importers.plan import RECORD_KEY, ImportRecord, read_import_record
from edge_sdk_tools.prove.parity import Chain, OutputChange, Proof, StepKind
from edge_sdk_tools.report import schema
from edge_sdk_tools.search.gates import loss_of
from edge_sdk_tools.search.search import Search
from edge_sdk_tools.search.sensitivity import LayerNoise, Sensitivity, decibels
from edge_sdk_tools.search.shipped_form import InputTrial
from edge_sdk_tools.search.variant import ModelVariant, VariantSpec

PANEL_PX = 480  # the longer side of each half: texts stay readable, and a dozen pictures are about a megabyte
_CAPTION_PX, _GAP_PX, _LEAST_WIDTH_PX = 26, 8, 64
_GROUND = (46, 40, 36)  # BGR, dark in a light page and in a dark one
_INK = (235, 235, 235)
_JPEG_QUALITY = 85
_FILES = {
    ".onnx": ("ONNX file", "arranged for its CPU by the device that loads it"),
    ".ort": ("ORT file", "style Fixed"),
}
_PICTURES = 6
_LIBRARIES = ("edge-sdk", "numpy", "onnx", "onnxruntime", "opencv-python-headless")
_DEQUANTIZE = "DequantizeLinear"
# Between a weight and its operator.
_PASSING = (_DEQUANTIZE, "QuantizeLinear", "Cast", "Identity", "Transpose", "Reshape")


class Steps(NamedTuple):
    """The results of a build's steps, after their gates have passed.

    `model` is of the size in model.toml, the first of `variants` runs by default and takes `input`. `distilled` is None
    without a teacher.
    """

    model: VariantSpec
    images: ImageSplit
    checked: CheckedModel
    distilled: Distilled | None
    search: Search
    variants: tuple[ModelVariant, ...]
    input: InputTrial
    chain: Chain
    noise: tuple[LayerNoise, ...]


def side_by_side(image: Image, fp32_result: Result, int8_result: Result) -> bytes:
    """Draw both results on copies of an image, uint8 (H, W, 3) BGR, FP32 left and INT8 right; return a JPEG."""
    factor = PANEL_PX / max(image.shape[:2])
    size_wh = max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor))
    # Drawn after scaling: lines and letters then have the same size in every picture.
    way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    small = cv2.resize(image, size_wh, interpolation=way).astype(np.uint8, copy=False)
    halves = [_half(small, result, name) for result, name in ((fp32_result, "FP32"), (int8_result, "INT8"))]
    gap = np.full((halves[0].shape[0], _GAP_PX, 3), _GROUND, np.uint8)
    _, data = cv2.imencode(".jpg", np.hstack([halves[0], gap, halves[1]]), [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return data.tobytes()


def _half(small: Image, result: Result, name: str) -> Image:
    picture = result.on(small).plot()
    height_px, width_px = picture.shape[:2]
    canvas = np.full((_CAPTION_PX + height_px, max(width_px, _LEAST_WIDTH_PX), 3), _GROUND, np.uint8)
    canvas[_CAPTION_PX:, :width_px] = picture
    cv2.putText(canvas, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _INK, 1, cv2.LINE_AA)
    return canvas


def _pictured(steps: Steps) -> list[schema.WorstImage]:
    """Run both models on the worst images and draw their results side by side; leave out images that are gone."""
    variant = steps.search.int8
    worst = variant.proof.worst[:_PICTURES]
    if not worst:
        return []
    session = Session(variant.converted.model.read_bytes(), SessionSettings(), "the converted model")
    models = [steps.model.fp32.open(), Subject("INT8", steps.model.spec, steps.checked.labels, session, "").open()]
    found = []
    for one in worst:
        pixels = None
        with contextlib.suppress(OSError):  # the file was removed during the build
            pixels = decode_image(read_regular(one.file, MAX_BYTES))
        if pixels is not None:
            picture = side_by_side(pixels, *(model(pixels).result for model in models))
            name, fp32, int8 = one.file.name, one.teacher, one.student
            found.append(schema.WorstImage(image=name, truth=one.truth, fp32=fp32, int8=int8, picture=picture))
    return found


def _step_rows(steps: Steps) -> tuple[schema.Step, ...]:
    """Return the rows of all steps in order; the step on the emulated ARM core has a row even if it was left out."""
    chain, int8 = steps.chain, steps.search.int8
    has_record = any(entry.key == RECORD_KEY for entry in steps.checked.proto.metadata_props)
    imported = read_import_record(Path(steps.model.spec.model)) if has_record else None  # it reads the whole file
    rows = [_fp32(steps, int8, imported)]
    if steps.distilled is not None:
        rows.insert(0, _teacher(steps.distilled))
    if imported is not None:
        rows.insert(0, schema.Step(kind="source", name=imported.origin, what=f"imported by {imported.exporter}"))
    size_mb = _megabytes(steps.model.simplified.path)
    rows.append(schema.Step(kind="simplified", name="simplified", what="constants folded", size_mb=size_mb))
    rows += _converted(steps, int8)
    if "arm" in chain.changes or chain.arm_left_out:
        what = f"the same file on an emulated {chain.core}" if chain.core else "the same file"
        rows.append(schema.Step(kind="arm", name="ARM", what=what, left_out=chain.arm_left_out))
    return tuple(
        msgspec.structs.replace(
            row, outputs=chain.changes.get(row.kind, row.outputs), peak_memory_mb=chain.peak_memory_mb.get(row.kind)
        )
        for row in rows
    )


def _change_of(figure: Figure) -> Interval:
    """Return the quality minus FP32's, or the agreement with FP32 minus 1, as other images would measure it."""
    return figure.difference.on_other_images() if figure.difference is not None else _missing(figure.value)


def _teacher(distilled: Distilled) -> schema.Step:
    promise, quality = distilled.promise, distilled.teacher_quality
    return schema.Step(
        kind="teacher",
        name="teacher",
        what=promise.teacher,
        size_mb=distilled.teacher_mb,
        quality=schema.Measure(promise.metric, quality) if quality else None,
        latency_ratio=distilled.latency_ratio,
    )


def _fp32(steps: Steps, int8: ModelVariant, imported: ImportRecord | None) -> schema.Step:
    quality, change, from_teacher = int8.proof.evaluation.quality, None, None
    promise = steps.distilled.promise if steps.distilled else None
    if promise is not None:  # with the interval of the difference; without labels, that of the agreement minus 1
        found = Interval(promise.student - (promise.teacher_value or 0.0), promise.low, promise.high)
        from_teacher = _missing(found) if promise.teacher_value is None else found.on_other_images()
    reference = quality[0].reference if quality else None
    if imported is not None:
        images, inputs, largest, share = imported.images, imported.inputs, imported.largest, imported.largest_share
        change = OutputChange(against="source", images=images, inputs=inputs, largest=largest, largest_share=share)
    return schema.Step(
        kind="fp32",
        name="FP32",
        what=f"{Path(steps.model.spec.model).name}, as given",
        size_mb=steps.checked.proto.ByteSize() / 1e6,
        quality=schema.Measure(quality[0].name, reference) if reference else None,
        further=tuple(schema.Measure(f.name, f.reference, f.unit) for f in quality[1:] if f.reference),
        change=from_teacher,
        against="teacher" if steps.distilled else None,
        latency_ratio=1.0,
        outputs=change,
    )


def _converted(steps: Steps, int8: ModelVariant) -> list[schema.Step]:
    first, recipe = steps.variants[0], int8.recipe.text
    taken = f"{steps.input.dtype} {steps.input.layout} {steps.input.color}"
    name, style = _FILES[first.converted.model.suffix]
    if first.precision == "int8":
        return [
            schema.Step(kind="int8", name="INT8", what=recipe, size_mb=_megabytes(int8.onnx)),
            _measured("ort", name, f"{style}, takes {taken}", first.proof, shipped=True),
        ]
    return [
        _measured("int8", "INT8", f"{recipe}, not carried", int8.proof),
        _measured("ort", name, f"FP32, {style}", first.proof, shipped=True),
    ]


def _measured(kind: StepKind, name: str, what: str, proof: Proof, *, shipped: bool = False) -> schema.Step:
    quality, agreement = (
        [schema.Measure(f.name, f.value, f.unit) for f in figures]
        for figures in (proof.evaluation.quality, proof.evaluation.agreement)
    )
    return schema.Step(
        kind=kind,
        name=name,
        what=what,
        size_mb=proof.model_mb,
        quality=next(iter(quality), None),
        agreement=next(iter(agreement), None),
        further=(*quality[1:], *agreement[1:]),
        change=_change_of(proof.evaluation.figure),
        against="fp32",
        latency_ratio=proof.latency_ratio,
        shipped=shipped,
    )


def _missing(agreement: Interval) -> Interval:
    return Interval(agreement.value - 1, agreement.low - 1, agreement.high - 1).on_other_images((-1.0, 0.0))


def _megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


def report_of(steps: Steps) -> schema.BuildReport:
    """Return the report of a build."""
    search, first = steps.search, steps.variants[0]
    evaluation, program = search.int8.proof.evaluation, Path(sys.argv[0]).name
    return schema.BuildReport(
        name=steps.model.spec.name,
        target=steps.model.target.name,
        task=steps.model.spec.task,
        data=str(steps.images.claim.format),
        images=evaluation.images,
        verdict=_verdict(steps),
        steps=_step_rows(steps),
        candidates=tuple(_candidate(trial, search.chosen) for trial in search.trials),
        sensitivity=tuple(_layer(layer, first.float_nodes) for layer in search.sensitivities),
        local_noise=steps.noise,
        sizes=operator_sizes(steps.model.simplified.proto, onnx.load(search.int8.onnx)),
        worst_images=tuple(_pictured(steps)),
        boards=(first.estimate,) if first.estimate else (),
        variants=tuple(_variant_row(one) for one in steps.variants),
        warnings=(*evaluation.warnings, *steps.images.warnings, *search.doubts, *steps.chain.doubts),
        split=_split(steps.images, is_crossed=search.is_crossed),
        # `python -m edge_sdk` has the name of a file inside.
        command=("edge-sdk" if program == "__main__.py" else program, *sys.argv[1:]),
        libraries={name: version(name) for name in _LIBRARIES},
        created_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        host_cpu=Cpu.read().name,
    )


def _split(images: ImageSplit, *, is_crossed: bool) -> schema.Split:
    judging = images.choice.images if images.has_claim else ImageSet(())
    parts = (images.calibration, judging, images.claim.images)
    calibration, choice, claim = (tuple(image.sha256[:DIGEST_LENGTH] for image in part.images) for part in parts)
    return schema.Split(calibration, choice, claim, is_crossed)


def _verdict(steps: Steps) -> schema.Verdict:
    gates, reason = steps.model.spec.gates, steps.search.fallback_reason
    evaluation = steps.search.int8.proof.evaluation
    figure = evaluation.figure
    least = gates.int8_min_agreement - 1
    if figure.reference is not None:
        least = -gates.int8_max_drop_relative * figure.reference.value
    mend = (
        "check input.mean, std, color and resize",
        "calibrate with more images like those that the camera sees",
        "raise gates.int8_max_drop_relative or lower int8_min_agreement",
    )
    band, loss = loss_of(evaluation) if reason is None else (None, "")
    held = [
        f"{one.name} changes by {100 * one.difference.value + 0.0:+.1f} points"
        if one.difference
        else f"{one.name} {one.value.value:.1%}"
        for one in evaluation.gated or (figure,)
    ]
    return schema.Verdict(
        carries="int8" if reason is None else "fp32",
        why=reason or steps.search.doubt or f"INT8 holds its gates: {', '.join(held)}",
        next_steps=mend if reason else (),
        least_change=least,
        latency_budget_ms=steps.model.latency_budget_ms,
        band=band,
        loss=loss,
    )


def _candidate(trial: ModelVariant, chosen: ModelVariant | None) -> schema.Candidate:
    return schema.Candidate(
        recipe=trial.recipe.text,
        change=_change_of(trial.proof.evaluation.figure),
        latency_ratio=trial.proof.latency_ratio,
        held=trial.gate_failure is None,
        why=trial.gate_failure.line if trial.gate_failure else "",
        chosen=chosen is not None and trial.recipe == chosen.recipe,
        board_minstructions=trial.board.int8_millions if trial.board else None,
    )


def _variant_row(one: ModelVariant) -> schema.VariantRow:
    figure, proof = one.figure, one.proof
    return schema.VariantRow(
        name=one.name,
        precision=one.precision,
        size_wh=one.spec.input.size_wh,
        model_mb=proof.model_mb,
        latency_ms=proof.latency_ms,
        latency_ratio=proof.latency_ms / (one.reference_ms or proof.fp32_latency_ms),
        metric=figure.name,
        value=figure.value.value,
        change=_change_of(figure),
        integer_mac_share=one.integer_mac_share,
        estimate=one.estimate,
        problem=one.problem,
        doubt=one.doubt,
    )


def _layer(layer: Sensitivity, float_nodes: tuple[str, ...]) -> schema.LayerSensitivity:
    """Return the row of a layer; all operators of a type that were measured together are one row."""
    return schema.LayerSensitivity(
        node=layer.nodes[0] if layer.macs_share else f"all {layer.operator}",
        operator=layer.operator,
        sqnr_db=decibels(layer.noise),
        macs_share=layer.macs_share,
        is_integer=layer.nodes[0] not in float_nodes,
    )


def size_by_operator(proto: onnx.ModelProto) -> dict[str, int]:
    """Bytes of constants by the type of operator that they feed, the largest first.

    A quantized weight counts for the operator behind its DequantizeLinear, with its scales and zero points; those of
    activations count for QuantizeLinear. What several operators share counts once, for the first of them.
    """
    nodes = list(nodes_of(proto.graph.node))
    uses: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        for name in node.input:
            uses.setdefault(name, node)
    constants = constants_of(proto.graph)
    fixed = set(constants)
    for node in nodes:
        if node.op_type in _PASSING and node.input[0] in fixed:
            fixed.update(node.output)
    totals: Counter[str] = Counter()
    for name, tensor in constants.items():
        reader = uses.get(name)
        while reader is not None and reader.op_type in _PASSING and reader.input[0] in fixed:
            reader = uses.get(reader.output[0])
        if reader is not None:
            operator = "QuantizeLinear" if reader.op_type == _DEQUANTIZE else str(reader.op_type)
            totals[operator] += Value(element_name(tensor.data_type), tuple(tensor.dims)).bytes or 0
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def operator_sizes(fp32: onnx.ModelProto, int8: onnx.ModelProto) -> tuple[schema.OperatorSize, ...]:
    """Return the sizes of both models side by side, the largest in FP32 first."""
    before, after = size_by_operator(fp32), size_by_operator(int8)
    return tuple(schema.OperatorSize(name, before.get(name, 0), after.get(name, 0)) for name in {**before, **after})
