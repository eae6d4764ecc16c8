"""ResultEncoder: results as the bytes of their messages.

Owns the rounding, and what is left out. What the messages are is payload.py's.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle
from edge_sdk.frame import Classification, Detections, Result, Segmentation
from edge_sdk.publishing.payload import (
    SCHEMA_VERSION,
    ClassificationMessage,
    ClassItem,
    DetectionItem,
    DetectionMessage,
    FrameSize,
    ModelRef,
    ResultMessage,
    Running,
    SegmentationMessage,
    SegmentItem,
    StatusMessage,
)

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # a pixel, four times, and the confidence
_ROWS = 64  # tables of steps are made for so many objects, and grow when there are more: no broadcasting, half the time

_Scored: TypeAlias = Detections | Classification


class ResultEncoder:
    """Turns results into JSON; one for all cameras of a device that run the same bundle.

    Args:
        device: the device's name.
        labels: lines of labels.txt, in output order.
        model: what answers.
        background_class: line 0 of the labels is the background, and class_id is the output's index - 1.
        boot_id: what tells this run of the machine from others; read from the kernel by default.
        run_id: what tells this run of the program from others; a random UUID by default.
        clock_ns: monotonic nanoseconds, the clock of `Frame.captured_ns`.
    """

    def __init__(
        self,
        device: str,
        labels: Sequence[str],
        model: ModelRef,
        *,
        background_class: bool = False,
        boot_id: str | None = None,
        run_id: str | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.device = device
        self.boot_id = boot_id or read_boot_id()
        self.run_id = run_id or str(uuid.uuid4())
        self._model = model
        self._answering = model
        self._labels = dict(enumerate(labels, start=-1 if background_class else 0))
        self._labels.setdefault(-1, "background")
        self._clock_ns = clock_ns
        self._json = msgspec.json.Encoder()
        self._steps = np.tile(_STEPS, (_ROWS, 1))

    @classmethod
    def for_bundle(cls, bundle: Bundle, device: str) -> ResultEncoder:
        """An encoder for the results of one bundle.

        Raises:
            BundleError: when its labels changed since it was opened.
        """
        promise = bundle.manifest
        model = ModelRef(promise.name, promise.version, bundle.digest)
        # Only class ids of a classifier are counted without the background.
        background = promise.task == "classification" and promise.classification.background_class
        encoder = cls(device, bundle.labels(), model, background_class=background)
        encoder.answers_by(promise.variants[0].name)
        return encoder

    def answers_by(self, variant: str) -> None:
        """From now on results are of this variant; to be called between two results, by whoever encodes them."""
        self._answering = msgspec.structs.replace(self._model, variant=variant)

    def encode(self, result: Result) -> bytes:
        """One result as one line of JSON; what is not finite is left out, because JSON cannot say it."""
        return self._json.encode(self._message(result))

    def encode_status(
        self,
        camera: str,
        status: Literal["online", "offline"],
        reason: Literal["shutdown", "lost"] | None = None,
        versions: Mapping[str, str] | None = None,
        running: Running | None = None,
    ) -> bytes:
        """The status of one camera as one line of JSON."""
        return self._json.encode(
            StatusMessage(
                schema=SCHEMA_VERSION,
                stream="status",
                status=status,
                reason=reason or msgspec.UNSET,
                device=self.device,
                camera=camera,
                boot_id=self.boot_id,
                run_id=self.run_id,
                model=self._model,
                versions=dict(versions) if versions else msgspec.UNSET,
                running=running or msgspec.UNSET,
            )
        )

    def _message(self, result: Result) -> ResultMessage:
        if isinstance(result, Segmentation):
            return SegmentationMessage(segments=self._segments(result), **self._header(result))
        rounded = self._rounded(result)
        # The sum of squares is finite when all are: the cheapest way to ask. float32 squared cannot overflow float64.
        if not math.isfinite(np.vdot(rounded, rounded)):
            return self._message(_without_non_finite(result))
        ids: list[int] = result.class_ids.tolist()
        labels = [self._labels.get(i) or f"class_{i}" for i in ids]
        confidences = rounded[:, -1].tolist()
        header = self._header(result)
        if isinstance(result, Classification):
            return ClassificationMessage(classes=list(map(ClassItem, labels, ids, confidences)), **header)
        boxes = rounded[:, :4].tolist()
        return DetectionMessage(detections=list(map(DetectionItem, labels, ids, confidences, boxes)), **header)

    def _segments(self, result: Segmentation) -> list[SegmentItem]:
        """Shares to 0.0001; a class without a share of that size is left out."""
        shares = np.rint(result.shares.astype(np.float64) * 10_000) / 10_000
        order = np.argsort(-shares, kind="stable")[: np.count_nonzero(shares)]
        ids: list[int] = order.tolist()
        labels = [self._labels.get(i) or f"class_{i}" for i in ids]
        return list(map(SegmentItem, labels, ids, shares[order].tolist()))

    def _rounded(self, result: _Scored) -> NDArray[np.float64]:
        """float64 (N, 5): boxes to 0.1 px and confidences to 0.0001; (N, 1) without boxes. In one go: it costs half."""
        count = len(result.confidences)
        if count > len(self._steps):
            self._steps = np.tile(_STEPS, (count, 1))
        steps = self._steps[:count] if isinstance(result, Detections) else self._steps[:count, 4:]
        values = np.empty(steps.shape)
        values[:, -1] = result.confidences
        if isinstance(result, Detections):
            values[:, :4] = result.boxes_xyxy
        np.multiply(values, steps, values)
        np.rint(values, values)
        values /= steps
        return values

    def _header(self, result: Result) -> dict[str, Any]:
        frame = result.frame
        width, height = frame.size_wh
        return {
            "device": self.device,
            "camera": frame.camera,
            "boot_id": self.boot_id,
            "run_id": self.run_id,
            "seq": frame.seq,
            "captured_at": datetime.fromtimestamp(round(frame.captured_at, 3), timezone.utc),
            "age_ms": (self._clock_ns() - frame.captured_ns) // 1000 / 1000,
            "infer_ms": result.inference_ns // 1000 / 1000,
            "model": self._answering,
            "frame": FrameSize(width, height),
        }


def read_boot_id() -> str:
    """The kernel's boot id; where there is none, a random one for this process."""
    try:
        return str(uuid.UUID(_BOOT_ID_FILE.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())


def _without_non_finite(result: _Scored) -> _Scored:
    finite = np.isfinite(result.confidences)
    if isinstance(result, Classification):
        return Classification(result.frame, result.inference_ns, result.confidences[finite], result.class_ids[finite])
    finite &= np.isfinite(result.boxes_xyxy).all(axis=1)
    return Detections(
        result.frame,
        result.inference_ns,
        result.boxes_xyxy[finite],
        result.confidences[finite],
        result.class_ids[finite],
    )
