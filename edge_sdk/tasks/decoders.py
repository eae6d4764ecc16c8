"""The tables of tasks and of decoders, whose names are the values of `task` and `decoder` in a model.toml.

To add a decoder, write its reader and its `Decoder` in a file of its own (or in its family's) and name it in `TABLE`; a
task's `TaskEntry` is named in `TASKS`. The checks of model.toml and manifest, the hints in refusals, the messages, the
drawings and the workstation read these tables alone. Loading this module loads no OpenCV.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from edge_sdk.core.frame import Result
from edge_sdk.tasks.centernet import CENTERFACE, CENTERNET
from edge_sdk.tasks.classification import CLASSIFICATION, LOGITS, SIGMOID, SIGMOID_LOGITS, SOFTMAX
from edge_sdk.tasks.detection import DETECTION, DetectionItem
from edge_sdk.tasks.detr import DETR, DETR_END_TO_END, DETR_SOFTMAX, END_TO_END
from edge_sdk.tasks.embedding import EMBEDDING, VECTOR
from edge_sdk.tasks.entry import TaskEntry
from edge_sdk.tasks.faces import SCRFD, YUNET
from edge_sdk.tasks.fastestdet import FASTESTDET
from edge_sdk.tasks.instances import END_TO_END_POSE, END_TO_END_SEG, YOLOV8_POSE, YOLOV8_SEG
from edge_sdk.tasks.movenet import MOVENET
from edge_sdk.tasks.nanodet import NANODET
from edge_sdk.tasks.oriented import END_TO_END_OBB, YOLOV8_OBB
from edge_sdk.tasks.outputs import Decoder
from edge_sdk.tasks.segmentation import ARGMAX, CELL_LOGITS, SEGMENTATION
from edge_sdk.tasks.spec import DetectionSpec, Task, TaskSpec
from edge_sdk.tasks.ssd import EFFICIENTDET, SSD, ULTRAFACE
from edge_sdk.tasks.suppressed import TENSORFLOW, TORCHVISION
from edge_sdk.tasks.text import CTC, TEXT
from edge_sdk.tasks.yolo import YOLOV4, YOLOV5, YOLOV8, YOLOX

TABLE: tuple[Decoder, ...] = (
    LOGITS,
    SOFTMAX,
    SIGMOID,
    SIGMOID_LOGITS,
    YOLOV4,
    YOLOX,
    YOLOV5,
    YOLOV8,
    YOLOV8_POSE,
    YOLOV8_SEG,
    YOLOV8_OBB,
    NANODET,
    CENTERFACE,
    CENTERNET,
    YUNET,
    SCRFD,
    MOVENET,
    END_TO_END,
    END_TO_END_POSE,
    END_TO_END_SEG,
    DETR_END_TO_END,
    DETR,
    DETR_SOFTMAX,
    END_TO_END_OBB,
    ULTRAFACE,
    EFFICIENTDET,
    SSD,
    TENSORFLOW,
    TORCHVISION,
    FASTESTDET,
    CELL_LOGITS,
    ARGMAX,
    VECTOR,
    CTC,
)
"""All decoders, in the order in which hints compare outputs with them. YOLO11 heads have YOLOv8's layout."""

DECODERS: dict[Task, dict[str, Decoder]] = {
    task: {decoder.name: decoder for decoder in TABLE if decoder.task == task} for task in get_args(Task)
}
"""Decoders by task, then by name."""

TASKS: dict[Task, TaskEntry] = {
    entry.task: entry for entry in (DETECTION, CLASSIFICATION, SEGMENTATION, EMBEDDING, TEXT)
}
"""What every task brings along."""

_BY_RESULT = {entry.result: entry for entry in TASKS.values()}
# Only here all tasks are known; msgspec reads it when the first message is encoded or decoded.
DetectionItem.__annotations__["then"] = reduce(or_, [entry.nest() for entry in TASKS.values()], msgspec.UnsetType)


def entry_of(result: Result) -> TaskEntry:
    """Return the entry of a result's task."""
    return _BY_RESULT[type(result)]


if TYPE_CHECKING:
    DecoderName: TypeAlias = str
else:  # so that msgspec refuses other names, and JSON Schemas list these
    DecoderName = Literal[tuple(dict.fromkeys(decoder.name for decoder in TABLE))]


def decoder_of(spec: TaskSpec) -> Decoder:
    """Return the table's entry for a model.toml or a manifest, which was checked by `check_decoder`."""
    return DECODERS[spec.task][spec.decoder]


def check_decoder(task: Task, name: str, detection: DetectionSpec) -> None:
    """Raise a ValueError where the task has no such decoder, or a key that it needs is missing."""
    decoder = DECODERS[task].get(name)
    if decoder is None:
        raise ValueError(f"decoder: {name!r} is not for {task}; expected {' or '.join(DECODERS[task])}")
    decoder.check(detection)
