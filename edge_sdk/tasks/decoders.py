"""The table of decoders, whose names are the values of `decoder` in a model.toml.

To add one, write its reader and its `Decoder` in a file of its own (or in its family's) and name it in `TABLE`. The
checks of model.toml and manifest, the hints in refusals, and the workstation read this table alone.

Loading this module loads no OpenCV: segmentation's readers, which need it, are loaded when one is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from edge_sdk.core.errors import ModelError
from edge_sdk.tasks.centernet import CENTERFACE, CENTERNET
from edge_sdk.tasks.classification import LOGITS, SIGMOID, SIGMOID_LOGITS, SOFTMAX
from edge_sdk.tasks.detr import DETR, DETR_END_TO_END, DETR_SOFTMAX, END_TO_END
from edge_sdk.tasks.faces import SCRFD, YUNET
from edge_sdk.tasks.fastestdet import FASTESTDET
from edge_sdk.tasks.instances import END_TO_END_POSE, END_TO_END_SEG, YOLOV8_POSE, YOLOV8_SEG
from edge_sdk.tasks.movenet import MOVENET
from edge_sdk.tasks.nanodet import NANODET
from edge_sdk.tasks.oriented import END_TO_END_OBB, YOLOV8_OBB
from edge_sdk.tasks.outputs import COLUMNS, ROWS, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import DetectionSpec, Task, TaskSpec
from edge_sdk.tasks.ssd import EFFICIENTDET, SSD, ULTRAFACE
from edge_sdk.tasks.suppressed import TENSORFLOW, TORCHVISION
from edge_sdk.tasks.yolo import YOLOV4, YOLOV5, YOLOV8, YOLOX


def _score_layouts(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> Sequence[Layout]:
    """Expect one score a class and cell, in planes or cell by cell; the likelier has the input's proportions."""
    planes = ModelOutput((1, label_count, ROWS, COLUMNS), class_axis=1)
    cells = ModelOutput((1, ROWS, COLUMNS, label_count), class_axis=3)
    choices = [planes, cells] if spec.input.layout == "NCHW" else [cells, planes]
    first = got[0] if got else ()
    return [(output,) for output in sorted(choices, key=lambda o: not o.covers(first, spec.input.size_wh))]


def _make_scores(_spec: TaskSpec, label_count: int, layout: Layout) -> Any:
    from edge_sdk.tasks.segmentation import HighestScore

    if label_count == 1:
        shown = "x".join(str(side) for side in layout[0].shape)
        raise ModelError(
            f"decoder logits: output {shown} has one value a cell, expected one a label; if it is a class id, the "
            'decoder is "argmax"; if it is a score, let the model compare it with its threshold and use "argmax" with '
            "two labels"
        )
    return HighestScore(layout[0].class_axis or 0)


def _id_layouts(_spec: TaskSpec, _label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    return [(ModelOutput((1, ROWS, COLUMNS), None),), (ModelOutput((1, 1, ROWS, COLUMNS), None),)]


def _make_ids(_spec: TaskSpec, label_count: int, _layout: Layout) -> Any:
    from edge_sdk.tasks.segmentation import ClassIds

    return ClassIds(label_count)


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
    Decoder(name="logits", task="segmentation", layouts=_score_layouts, make=_make_scores),
    Decoder(name="argmax", task="segmentation", layouts=_id_layouts, make=_make_ids),
)
"""All decoders, in the order in which hints compare outputs with them. YOLO11 heads have YOLOv8's layout."""

DECODERS: dict[Task, dict[str, Decoder]] = {
    task: {decoder.name: decoder for decoder in TABLE if decoder.task == task} for task in get_args(Task)
}
"""Decoders by task, then by name."""

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
