"""ResultEncoder: results as the bytes of their messages.

Owns the rounding, and what is left out. What the messages are is payload.py's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle
from edge_sdk.errors import UsageError
from edge_sdk.frame import Classification, Detections, Result, Segmentation
from edge_sdk.publishing.identity import Identity
from edge_sdk.publishing.payload import (
    ClassificationMessage,
    ClassItem,
    DetectionItem,
    DetectionMessage,
    FrameSize,
    ModelRef,
    ResultMessage,
    SegmentationMessage,
    SegmentItem,
)
from edge_sdk.wall_clock import WallClock

_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # a pixel, four times, and the confidence
_CHANGING = b'"seq":%d,"captured_at":%b,"age_ms":%r,"infer_ms":%r'  # neighbours in payload.py, in this order
_UNCHANGED = (0, b'"1970-01-01T00:00:00Z"', 0.0, 0.0)
_MOST_FRAMES = 16  # cameras, and sizes of their frames

_Scored: TypeAlias = Detections | Classification


class ResultEncoder:
    """Turns the results of one stream into JSON, in the stream's thread.

    Args:
        identity: who speaks.
        labels: lines of labels.txt, in output order.
        model: what answers.
        background_class: line 0 of the labels is the background, and class_id is the output's index - 1.
        clock_ns: monotonic nanoseconds, the clock of `Frame.captured_ns`.
        wall_clock: whose times are in the messages; None claims nothing of it.

    Attributes:
        identity, wall_clock: as given.
        model: as given; it names no variant.
    """

    def __init__(
        self,
        identity: Identity,
        labels: Sequence[str],
        model: ModelRef,
        *,
        background_class: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_clock: WallClock | None = None,
    ) -> None:
        self.identity, self.model, self.wall_clock = identity, model, wall_clock
        self._answering = model
        numbered = enumerate(labels, start=-1 if background_class else 0)
        self._labels = {number: label or f"class_{number}" for number, label in numbered}
        self._labels.setdefault(-1, "background")
        self._clock_ns = clock_ns
        self._json = msgspec.json.Encoder()
        # One of each a number, and no broadcasting, is half the time; they grow with the largest result.
        self._values, self._steps = np.empty(0), np.empty(0)
        self._frames: dict[tuple[str, tuple[int, int], type[Result], bool, bool], tuple[bytes, bytes]] = {}

    @classmethod
    def for_bundle(cls, bundle: Bundle, identity: Identity, wall_clock: WallClock | None = None) -> ResultEncoder:
        """An encoder for the results of one bundle.

        Raises:
            BundleError: when its labels changed since it was opened.
        """
        promise = bundle.manifest
        model = ModelRef(promise.name, promise.version, bundle.digest)
        # Only class ids of a classifier are counted without the background.
        background = promise.task == "classification" and promise.classification.background_class
        encoder = cls(identity, bundle.labels(), model, background_class=background, wall_clock=wall_clock)
        encoder.answers_by(promise.variants[0].name)
        return encoder

    def check(self, identity: Identity) -> None:
        """Refuse to speak for another device, or another start of the program.

        Raises:
            UsageError: it is not this encoder's identity.
        """
        if identity != self.identity:
            raise UsageError(f"results are encoded for {self.identity}, published by {identity}; give both the same")

    def answers_by(self, variant: str) -> None:
        """From now on results are of this variant; to be called between two results, by whoever encodes them."""
        self._answering = msgspec.structs.replace(self.model, variant=variant)
        self._frames = {}

    def encode(self, result: Result, seq: int | None = None) -> bytes:
        """One result as one line of JSON; what is not finite is left out, because JSON cannot say it.

        Args:
            result: what was seen.
            seq: the number that the message bears; the frame's by default.
        """
        items = self._items(result)
        front, back = self._frame_of(result)
        age_ms = (self._clock_ns() - result.frame.captured_ns) // 1000 / 1000
        moment = self._json.encode(datetime.fromtimestamp(round(result.frame.captured_at, 3), timezone.utc))
        number = result.frame.seq if seq is None else seq
        changing = (number, moment, age_ms, result.inference_ns // 1000 / 1000)
        return b"%b%b%b%b}" % (front, _CHANGING % changing, back, items)

    def label(self, class_id: int) -> str:
        """Of one class; `class_N` where it has none."""
        return self._labels.get(class_id) or f"class_{class_id}"

    def _items(self, result: Result) -> bytes:
        """What was seen, as a JSON list."""
        if isinstance(result, Segmentation):
            return self._json.encode(self._segments(result))
        if not len(result.confidences):
            return b"[]"
        ids: list[int] = result.class_ids.tolist()
        labels = self._labels_of(ids)
        if isinstance(result, Classification):
            # A handful: numpy would cost more.
            confidences = [round(confidence, 4) for confidence in result.confidences.tolist()]
            if not math.isfinite(sum(confidences)):
                return self._items(_finite_part(result))
            return self._json.encode(list(map(ClassItem, labels, ids, confidences)))
        rounded = self._rounded(result)
        if rounded is None:
            return self._items(_finite_part(result))
        confidences, boxes = rounded[:, 4].tolist(), rounded[:, :4].tolist()
        return self._json.encode(list(map(DetectionItem, labels, ids, confidences, boxes)))

    def _labels_of(self, ids: list[int]) -> list[str]:
        try:
            return list(map(self._labels.__getitem__, ids))
        except KeyError:
            return [self._labels.get(i, f"class_{i}") for i in ids]

    def _segments(self, result: Segmentation) -> list[SegmentItem]:
        """Shares to 0.0001; a class without a share of that size is left out."""
        shares = np.rint(result.shares.astype(np.float64) * 10_000) / 10_000
        order = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
        ids: list[int] = order.tolist()
        return list(map(SegmentItem, self._labels_of(ids), ids, shares[order].tolist()))

    def _rounded(self, result: Detections) -> NDArray[np.float64] | None:
        """Boxes to 0.1 px and confidences to 0.0001, in one go: it costs half.

        Returns:
            float64 (N, 5), overwritten by the next call; None where something is not finite.
        """
        size = len(result.confidences) * len(_STEPS)
        if size > len(self._values):
            self._values = np.empty(size)
            self._steps = np.tile(_STEPS, size // len(_STEPS))
        flat, steps = self._values[:size], self._steps[:size]
        values = flat.reshape(-1, len(_STEPS))
        values[:, 4] = result.confidences
        values[:, :4] = result.boxes_xyxy
        # The sum of squares is finite when all are: the cheapest way to ask. float32 squared cannot overflow float64.
        if not math.isfinite(flat.dot(flat)):
            return None
        np.multiply(flat, steps, flat)
        np.rint(flat, flat)
        np.divide(flat, steps, flat)
        return values

    def _frame_of(self, result: Result) -> tuple[bytes, bytes]:
        """A message up to what changes with every frame, and from there to its list."""
        is_set = self.wall_clock is None or self.wall_clock.is_synchronised
        key = (result.frame.camera, result.frame.size_wh, type(result), result.is_finite, is_set)
        found = self._frames.get(key)
        if found is None:
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            front, _, back = self._json.encode(self._empty(result, is_set=is_set)).partition(_CHANGING % _UNCHANGED)
            found = self._frames[key] = front, back.removesuffix(b"[]}")
        return found

    def _empty(self, result: Result, *, is_set: bool) -> ResultMessage:
        """The message of nothing seen, at the epoch."""
        seq, _, age_ms, infer_ms = _UNCHANGED
        header: dict[str, Any] = {
            "device": self.identity.device,
            "camera": result.frame.camera,
            "boot_id": self.identity.boot_id,
            "run_id": self.identity.run_id,
            "seq": seq,
            "captured_at": datetime.fromtimestamp(0, timezone.utc),
            "age_ms": age_ms,
            "infer_ms": infer_ms,
            "clock": msgspec.UNSET if is_set else "unsynchronised",
            "model": self._answering,
            "frame": FrameSize(*result.frame.size_wh),
            "not_finite": msgspec.UNSET if result.is_finite else True,
        }
        if isinstance(result, Segmentation):
            return SegmentationMessage(segments=[], **header)
        if isinstance(result, Classification):
            return ClassificationMessage(classes=[], **header)
        return DetectionMessage(detections=[], **header)


def _finite_part(result: _Scored) -> _Scored:
    finite = np.isfinite(result.confidences)
    if isinstance(result, Classification):
        return Classification(
            result.frame,
            result.inference_ns,
            result.confidences[finite],
            result.class_ids[finite],
            result.is_finite,
        )
    finite &= np.isfinite(result.boxes_xyxy).all(axis=1)
    return Detections(
        result.frame,
        result.inference_ns,
        result.boxes_xyxy[finite],
        result.confidences[finite],
        result.class_ids[finite],
        result.is_finite,
    )
