"""One frame's outputs through a task, and what slow readings of them are compared by."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from edge_sdk.frame import Detections, Frame, Geometry, Inferred, Prepared
from edge_sdk.model_spec import InputSpec, ModelSpec, Thresholds
from edge_sdk.tasks import make_task

Found = tuple[float, int, list[float]]
"""Confidence, class and box, left, top, right, bottom."""

SPEC = ModelSpec(
    model="m.onnx",
    name="m",
    task="detection",
    decoder="yolov8",
    labels="l.txt",
    # No suppression (iou 1), so that every box can be compared.
    input=InputSpec(size_wh=(96, 64)),
    thresholds=Thresholds(confidence=0.3, iou=1.0),
)


def spec_of(decoder: str, **changes: Any) -> ModelSpec:
    return msgspec.structs.replace(SPEC, decoder=decoder, **changes)


def inferred_of(spec: ModelSpec, *outputs: np.ndarray) -> Inferred:
    width, height = spec.input.size_wh
    frame = Frame(np.zeros((height, width, 3), np.uint8), 0, 0.0, 0, "camera")
    return Inferred(outputs, 0, Prepared(np.empty(0, np.float32), Geometry(1.0, 1.0, 0.0, 0.0), frame))


def detect(spec: ModelSpec, labels: int, *outputs: np.ndarray) -> Detections:
    result = make_task(spec, labels, [o.shape for o in outputs])(inferred_of(spec, *outputs))
    assert isinstance(result, Detections)
    return result


def check_found(got: Detections, expected: list[Found], size_wh: tuple[int, int]) -> None:
    """The same detections, most confident first, clipped to the frame; what has no area there is none."""
    limits = [*size_wh, *size_wh]
    rows = [(c, k, [min(max(v, 0.0), m) for v, m in zip(box, limits, strict=True)]) for c, k, box in expected]
    rows = sorted((r for r in rows if r[2][2] > r[2][0] and r[2][3] > r[2][1]), key=lambda r: -r[0])
    assert len(rows) > 5
    assert got.confidences == pytest.approx([r[0] for r in rows], abs=1e-5)
    assert got.class_ids.tolist() == [r[1] for r in rows]
    assert got.boxes_xyxy == pytest.approx(np.array([r[2] for r in rows]), abs=2e-3)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def best_of(scores: list[float]) -> tuple[float, int]:
    """The highest score and the first class that has it."""
    return max(scores), scores.index(max(scores))
