"""The wire format of results and of a camera's status: what a subscriber reads.

Owns the messages, their encoding and their JSON Schema, and knows no topics and no broker. docs/payload.md explains
every field to people who subscribe.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.bundle import Bundle
from edge_sdk.frame import Classification, Detections, Result

SCHEMA_VERSION: Literal[1] = 1

_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # a pixel, four times, and the confidence
_ROWS = 64  # tables of steps are made for so many objects, and grow when there are more: no broadcasting, half the time

_Unit = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0)]


class ModelRef(msgspec.Struct, frozen=True, gc=False):
    """What answered: the bundle's name, its version, and the SHA-256 of its manifest in hex."""

    name: str
    version: int
    sha256: str


class FrameSize(msgspec.Struct, frozen=True, gc=False):
    """Size of the original frame in pixels, the space of every box."""

    width: _Count
    height: _Count


class DetectionItem(msgspec.Struct, frozen=True, gc=False):
    """One object; box_xyxy is left, top, right, bottom in pixels of the original frame, to 0.1."""

    label: str
    class_id: int
    confidence: _Unit
    box_xyxy: tuple[float, float, float, float]


class ClassItem(msgspec.Struct, frozen=True, gc=False):
    """One class; class_id -1 is the background of a model that has one."""

    label: str
    class_id: Annotated[int, Meta(ge=-1)]
    confidence: _Unit


class _Header(msgspec.Struct, frozen=True, gc=False, kw_only=True, tag_field="task"):
    schema: Literal[1] = SCHEMA_VERSION
    stream: Literal["result"] = "result"
    device: str
    camera: str
    boot_id: str
    run_id: str
    seq: _Count
    captured_at: Annotated[datetime, Meta(tz=True)]
    age_ms: float
    infer_ms: Annotated[float, Meta(ge=0)]
    model: ModelRef
    frame: FrameSize


class DetectionMessage(_Header, frozen=True, gc=False, kw_only=True, tag="detection"):
    """Objects found in one frame, most confident first."""

    detections: list[DetectionItem]


class ClassificationMessage(_Header, frozen=True, gc=False, kw_only=True, tag="classification"):
    """The most likely classes of one frame, most likely first."""

    classes: list[ClassItem]


ResultMessage: TypeAlias = DetectionMessage | ClassificationMessage


class StatusMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a camera's results are published; retained, so that a new subscriber reads it at once."""

    schema: Literal[1]
    stream: Literal["status"]
    status: Literal["online", "offline"]
    reason: Literal["shutdown", "lost"] | msgspec.UnsetType = msgspec.UNSET
    device: str
    camera: str
    boot_id: str
    run_id: str
    model: ModelRef
    versions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


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
        background = promise.classification.background_class
        return cls(device, bundle.labels(), model, background_class=background)

    def encode(self, result: Result) -> bytes:
        """One result as one line of JSON; what is not finite is left out, because JSON cannot say it."""
        return self._json.encode(self._message(result))

    def encode_status(
        self,
        camera: str,
        status: Literal["online", "offline"],
        reason: Literal["shutdown", "lost"] | None = None,
        versions: Mapping[str, str] | None = None,
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
            )
        )

    def _message(self, result: Result) -> ResultMessage:
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

    def _rounded(self, result: Result) -> NDArray[np.float64]:
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
            "model": self._model,
            "frame": FrameSize(width, height),
        }


def read_boot_id() -> str:
    """The kernel's boot id; where there is none, a random one for this process."""
    try:
        return str(uuid.UUID(_BOOT_ID_FILE.read_text(encoding="ascii").strip()))
    except (OSError, ValueError):
        return str(uuid.uuid4())


def result_schema() -> bytes:
    """The JSON Schema of every result message, indented; docs/result.schema.json is this."""
    return _schema_document("result", ResultMessage)


def status_schema() -> bytes:
    """The JSON Schema of a status message, indented; docs/status.schema.json is this."""
    return _schema_document("status", StatusMessage)


def _schema_document(stream: str, message: object) -> bytes:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"edge-sdk {stream}, schema {SCHEMA_VERSION}",
        **msgspec.json.schema(message),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _without_non_finite(result: Result) -> Result:
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
