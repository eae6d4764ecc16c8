"""Results, measurements and the schemas of messages for tests."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import msgspec
import numpy as np
from referencing import Registry
from referencing.jsonschema import DRAFT7

from edge_sdk.bundle.manifest import Difference, Quality, Rating
from edge_sdk.core.clock import WallClock
from edge_sdk.core.frame import Classification, Detections, Frame, Geometry, Segmentation
from edge_sdk.core.machine import Cores
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.messages.schema import Identity
from edge_sdk.tasks.entry import ModelRef
from edge_sdk.tuning.candidates import Candidate, Limits, Measurement, Plan

# Results for tests: any number of boxes, classes or segments from one black frame.

IDENTITY = Identity("pi")
MODEL = ModelRef("tiny", 3, "0" * 64)


def make_frame(seq: int = 0, camera: str = "door", captured_ns: int = 0, captured_at: float = 1_700_000_000.0) -> Frame:
    return Frame(np.zeros((480, 640, 3), np.uint8), captured_ns, captured_at, seq, camera)


def make_detections(count: int = 1, frame: Frame | None = None) -> Detections:
    rng = np.random.default_rng(count)
    corners = np.sort(rng.uniform(0, 480, (count, 2, 2)), axis=1).reshape(count, 4)
    return Detections(
        frame or make_frame(), 12_345_678, corners.astype(np.float32),
        np.sort(rng.uniform(0.25, 1, count))[::-1].astype(np.float32), rng.integers(0, 2, count),
    )  # fmt: skip


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
    identity: Identity = IDENTITY, *, model: ModelRef = MODEL, labels: Sequence[str] = ("cat", "dog"),
    clock_ns: Callable[[], int] = time.monotonic_ns, wall_clock: WallClock | None = None,
) -> ResultEncoder:  # fmt: skip
    return ResultEncoder(identity, dict(enumerate(labels)), model, clock_ns=clock_ns, wall_clock=wall_clock)


# Candidates, qualities and measurements made up for tests.

CPU = ("CPUExecutionProvider",)


def candidate(variant: str = "int8", threads: int = 1, **changes: object) -> Candidate:
    made = Candidate(variant=variant, providers=CPU, intra_op_num_threads=threads)
    return msgspec.structs.replace(made, **changes)


def measurement(
    what: Candidate, p99_ms: float, cpu_share: float = 0.1, quality: float | None = 0.5, p50_ms: float | None = None
) -> Measurement:
    return Measurement(
        candidate=what, quality=quality, p50_ms=p50_ms or p99_ms, p99_ms=p99_ms, cpu_share=cpu_share, frames=50
    )


def plan(promise: Candidate | None = None, limits: Limits | None = None, **changes: Any) -> Plan:
    """What one would measure for a tiny bundle with one variant, at 30 frames a second, unless told otherwise."""
    made = Plan(
        promise=promise or candidate(), metric="agreement", ratings={}, threads=(1,), limits=limits or Limits(50),
        fps=30, window_s=1, seconds=1,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def rated(what: Candidate, rating: Rating, p99_ms: float, cpu_share: float = 0.1) -> Measurement:
    made = measurement(what, p99_ms, cpu_share, rating.value)
    return msgspec.structs.replace(made, like_reference=rating.like_reference)


def quality(
    value: float, low: float | None = None, high: float | None = None, *, images: int = 500, reference: str = "fp32"
) -> Quality:
    """Top-1 beside an FP32 that has .8, with the interval of their difference; without one where `low` is None."""
    difference = None if low is None or high is None else Difference(reference, round(value - 0.8, 6), low, high)
    return Quality("top-1", value, value - 0.02, value + 0.02, 0.8, images, difference)


def cores(usable: int) -> Cores:
    return Cores(logical=usable, physical=usable, allowed=usable, usable=usable)


# Messages, looked at with the schemas of an AsyncAPI document.


class AsyncApi:
    """A document whose schemas are those of JSON Schema draft 7."""

    def __init__(self, document: dict[str, Any]) -> None:
        registry: Registry[Any] = Registry().with_resource("urn:asyncapi", DRAFT7.create_resource(document))
        self._validators = {
            kind: jsonschema.Draft7Validator(
                {"$ref": f"urn:asyncapi#/components/messages/{kind}/payload"}, registry=registry
            )
            for kind in document["components"]["messages"]
        }

    def complaints(self, kind: str, message: object) -> list[str]:
        return [error.message for error in self._validators[kind].iter_errors(message)]
