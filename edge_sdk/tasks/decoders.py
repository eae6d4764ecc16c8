"""The table of decoders, whose names are the values of `decoder` in a model.toml, and `make_stage`, which uses it.

To add a decoder, write its reader and its `Decoder` in its family's file (or in a new one) and list it in `TABLE`. The
checks of model.toml and manifest, the hints in errors and the workstation read this table alone. `make_stage` builds
the stage that decodes a model's outputs. For outputs that the decoder cannot read it raises an error that says whether
only the number of labels is wrong, and which task or decoder fits the outputs. Importing this module does not import
OpenCV.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Inferred, Result
from edge_sdk.core.logs import counted
from edge_sdk.core.protocols import Stage
from edge_sdk.tasks.anomaly import SCORE
from edge_sdk.tasks.centernet import CENTERFACE, CENTERNET
from edge_sdk.tasks.classification import LOGITS, SIGMOID, SIGMOID_LOGITS, SOFTMAX
from edge_sdk.tasks.detection import TASKS
from edge_sdk.tasks.detr import DETR, DETR_END_TO_END, DETR_SOFTMAX, END_TO_END
from edge_sdk.tasks.embedding import VECTOR
from edge_sdk.tasks.entry import StageParts
from edge_sdk.tasks.faces import SCRFD, YUNET
from edge_sdk.tasks.instances import END_TO_END_POSE, END_TO_END_SEG, MOVENET, YOLOV8_POSE, YOLOV8_SEG
from edge_sdk.tasks.nanodet import NANODET
from edge_sdk.tasks.oriented import DB, END_TO_END_OBB, YOLOV8_OBB
from edge_sdk.tasks.outputs import BareOutput, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.segmentation import ARGMAX, CELL_LOGITS
from edge_sdk.tasks.spec import TRAITS, DetectionSpec, Task, TaskSpec, has_background, labels_by_id
from edge_sdk.tasks.ssd import EFFICIENTDET, SSD, TENSORFLOW, TORCHVISION, ULTRAFACE
from edge_sdk.tasks.text import CTC
from edge_sdk.tasks.yolo import FASTESTDET, YOLOV4, YOLOV5, YOLOV8, YOLOX

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
    DB,
    CELL_LOGITS,
    ARGMAX,
    VECTOR,
    CTC,
    SCORE,
)
"""All decoders, in the order in which hints try them on a model's outputs. `YOLOV8` also reads YOLO11."""

DECODERS: dict[Task, dict[str, Decoder]] = {
    task: {decoder.name: decoder for decoder in TABLE if decoder.task == task} for task in get_args(Task)
}
"""Decoders by task, then by name."""

if TYPE_CHECKING:
    DecoderName: TypeAlias = str
else:  # so that msgspec refuses other names, and JSON Schemas list these
    DecoderName = Literal[tuple(dict.fromkeys(decoder.name for decoder in TABLE))]


def decoder_of(spec: TaskSpec) -> Decoder:
    """Return the decoder of a model.toml or a manifest that `check_decoder` has accepted."""
    return DECODERS[spec.task][spec.decoder]


def thresholds_of(spec: TaskSpec) -> tuple[str, ...]:
    """Return the keys of the section [thresholds] that apply to a model."""
    own = decoder_of(spec).thresholds
    return TRAITS[spec.task].thresholds if own is None else own


def decoders_beside(table: Mapping[str, object]) -> Collection[str]:
    """Return the names of the decoders of the task that a table with the key `task` names; of all without one."""
    task = next((task for task in DECODERS if task == table.get("task")), None)
    return DECODERS[task] if task else dict.fromkeys(decoder.name for decoder in TABLE)


def check_decoder(task: Task, name: str, detection: DetectionSpec) -> None:
    """Raise ValueError if the task has no decoder of this name, or [detection] lacks a key that the decoder needs."""
    decoder = DECODERS[task].get(name)
    if decoder is None:
        raise ValueError(f"decoder: {name!r} is not for {task}; expected {' or '.join(DECODERS[task])}")
    decoder.check(detection)


class WrongLabelsError(ModelError):
    """The outputs fit another number of labels, `class_count`; the message's next step follows a semicolon."""

    def __init__(self, message: str, class_count: int) -> None:
        super().__init__(message)
        self.class_count = class_count


def make_stage(spec: TaskSpec, labels: Sequence[str] | int, output_shapes: Sequence[Shape]) -> Stage[Inferred, Result]:
    """Build the decode stage for these outputs; with only a number of labels, results have no class names.

    Raises:
        WrongLabelsError: the outputs fit another number of labels.
        ModelError: the decoder cannot read the outputs; the message has the expected and the actual shapes.
    """
    names = {} if isinstance(labels, int) else labels_by_id(spec, labels)
    lines = ("",) * labels if isinstance(labels, int) else labels
    layout, places = _find(spec, len(lines), output_shapes)
    decoder = decoder_of(spec)
    read = decoder.make(spec, len(lines), layout)
    return TASKS[spec.task].stage(StageParts(read, places, decoder, spec, lines, names))


def _find(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> tuple[Layout, tuple[int, ...]]:
    """Return the matching layout and its outputs' indices; raise the errors of `make_stage` if none matches."""
    decoder = decoder_of(spec)
    found = decoder.find(spec, label_count, got)
    if found is not None:
        return found
    counts = (o.class_count(got[place]) for o, place in decoder.class_outputs(spec, label_count, got))
    for count in dict.fromkeys(count for count in counts if count is not None and count > 0):
        found = decoder.find(spec, count, got)
        if found is not None:
            decoder.make(spec, count, found[0])  # raises errors that another number of labels would not fix
            output, place = next((o, p) for o, p in zip(*found, strict=True) if o.class_axis is not None)
            raise WrongLabelsError(_wrong_labels(spec, label_count, count, got[place], output), count)
    expected = [_show([output.shape for output in layout]) for layout in decoder.layouts(spec, label_count, got)]
    raise ModelError(
        f"decoder {spec.decoder}: the model's outputs have shapes {_show(got)}, expected {' or '.join(expected)}"
        + (
            _looks_like(spec, label_count, got)
            or "; check decoder, input.size_wh and the number of labels in model.toml"
        )
    )


def _wrong_labels(spec: TaskSpec, label_count: int, class_count: int, got: Shape, expected: ModelOutput) -> str:
    """Return the error message for a number of labels that does not fit the model's outputs."""
    classes = "1 class" if class_count == 1 else f"{class_count} classes"
    said = f"labels has {counted(label_count, 'line')}, the model has {classes} (output {_show([got])}"
    if TRAITS[spec.task].has_objects and expected.others:
        said = f"{said}, {expected.sum_of(class_count)} for {spec.decoder}"
    return f"{said}); {labels_hint(spec, label_count, class_count)}"


def labels_hint(spec: TaskSpec, label_count: int, class_count: int) -> str:
    """Return the next step for too many or too few labels: the likeliest cause, where their number shows one."""
    missing = class_count - label_count
    if spec.decoder == "ssd" and spec.detection.background_class and missing == -1:
        return (
            'is the first line "background"? Then take it out, ssd never reports it; is no score the background\'s? '
            "Then set background_class = false under [detection]"
        )
    if TRAITS[spec.task].has_objects or abs(missing) != 1:
        return "expected one line a class, in output order"
    if has_background(spec):
        if missing > 0:
            return 'is the line for output 0 missing? Then write "background" as line 1'
        return "is one of the lines empty, or there twice? Then take it out"
    if missing > 0:
        flag = " and [classification] background_class = true" if TRAITS[spec.task].is_of_whole_picture else ""
        return f'is the first class "background"? Then it needs a line of its own{flag}'
    return 'is the first line "background", or another one empty or there twice? Then take it out'


def _looks_like(spec: TaskSpec, label_count: int, got: Sequence[Shape]) -> str:
    """Return a hint if another decoder reads exactly these shapes; prefer decoders of the same task.

    Segmentation is tried only with two or more labels.
    """
    for other in sorted(TABLE, key=lambda decoder: decoder.task != spec.task):
        is_same = (other.task, other.name) == (spec.task, spec.decoder)
        if is_same or other.is_vague or (TRAITS[other.task].has_class_map and label_count < 2):
            continue
        found = other.find(spec, label_count, got) if other.is_likely(spec, label_count, got) else None
        if found is None or other.said == "obb":  # an oriented box is any detector's row with one more number
            continue
        if other.is_shown([BareOutput(got[place]) for place in found[1]]) is not False:
            needs = f" and give {other.needs}" if other.needs else ""
            if other.task == spec.task:
                return f"; this looks like {other.name}: correct decoder{needs} in model.toml"
            return f"; this looks like {other.task} with {other.name}: correct task and decoder{needs} in model.toml"
    return ""


def _show(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(str(side) for side in shape) for shape in shapes)
