"""Results for tests: any number of boxes, classes or segments from one black frame."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from edge_sdk.frame import Classification, Detections, Frame, Geometry, Segmentation
from edge_sdk.publishing import Identity, ModelRef, ResultEncoder
from edge_sdk.wall_clock import WallClock

IDENTITY = Identity("pi")
MODEL = ModelRef("tiny", 3, "0" * 64)


def make_frame(seq: int = 0, camera: str = "door", captured_ns: int = 0, captured_at: float = 1_700_000_000.0) -> Frame:
    return Frame(np.zeros((480, 640, 3), np.uint8), captured_ns, captured_at, seq, camera)


def make_detections(count: int = 1, frame: Frame | None = None) -> Detections:
    rng = np.random.default_rng(count)
    corners = np.sort(rng.uniform(0, 480, (count, 2, 2)), axis=1).reshape(count, 4)
    return Detections(
        frame or make_frame(),
        12_345_678,
        corners.astype(np.float32),
        np.sort(rng.uniform(0.25, 1, count))[::-1].astype(np.float32),
        rng.integers(0, 2, count),
    )


def make_classification(class_ids: list[int], frame: Frame | None = None) -> Classification:
    count = len(class_ids)
    confidences = np.linspace(0.9, 0.1, count, dtype=np.float32)
    return Classification(frame or make_frame(), 1_000_000, confidences, np.array(class_ids, np.int64))


def make_segmentation(shares: list[float], frame: Frame | None = None) -> Segmentation:
    class_map = np.zeros((48, 64), np.uint8)
    return Segmentation(
        frame or make_frame(), 1_000_000, class_map, Geometry(0.1, 0.1, 0.0, 0.0), np.array(shares, np.float32)
    )


def make_encoder(
    identity: Identity = IDENTITY,
    *,
    model: ModelRef = MODEL,
    clock_ns: Callable[[], int] = time.monotonic_ns,
    wall_clock: WallClock | None = None,
) -> ResultEncoder:
    return ResultEncoder(identity, ("cat", "dog"), model, clock_ns=clock_ns, wall_clock=wall_clock)
