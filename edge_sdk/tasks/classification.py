"""Classification: one row of scores -> the top-k classes, or all above the threshold, and their messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Classification, Inferred
from edge_sdk.tasks.boxes import Floats, sigmoid
from edge_sdk.tasks.entry import ResultItem, ResultMessage, StageParts, TaskEntry, Unit, rounded
from edge_sdk.tasks.outputs import IMAGENET, NORMALISING, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing

_TOP_CLASSES = 3  # most classes drawn on a picture


def highest(scores: Floats, count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` highest of float (classes,) scores, the highest first: int64 (count,).

    Equal scores are ordered by index; `run` and `evaluate` both rely on this order. A NaN ranks as the highest, so that
    the result always contains it.
    """
    more = min(count + 1, len(scores))
    found = scores.argpartition(-more)[-more:]
    found.sort()
    found = found[(-scores[found]).argsort(kind="stable")]
    if more > count and scores[found[count]] < scores[found[count - 1]]:
        return found[:count]
    # The last one may have equals that were not found, or there is a NaN.
    found = np.flatnonzero(~(scores < scores[found[-1]]))[::-1]
    return found[scores[found].argsort(kind="stable")[::-1][:count]]


class Classify:
    """Decode stage of a classifier.

    `read` converts float (classes,) to the indices of the reported outputs, most likely first, and their confidences
    0-1. `offset`, 1 with a background class, is subtracted from the indices to give class ids.
    """

    def __init__(
        self, read: Callable[[Floats], tuple[NDArray[np.int64], Floats]], offset: int, names: Mapping[int, str]
    ) -> None:
        self._read, self._offset, self._names = read, offset, names

    def __call__(self, inferred: Inferred, /) -> Classification:
        """Read float (1, classes) of one frame."""
        found, confidences = self._read(inferred.outputs[0].reshape(-1))
        return Classification(
            inferred.prepared.frame,
            inferred.inference_ns,
            confidences.astype(np.float32, copy=False),
            found - self._offset if self._offset else found,
            is_finite=math.isfinite(confidences.sum()),
            names=self._names,
        )


def _read_softmax(top_k: int, powers: Floats, logits: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Read logits; the confidences are their softmax over all classes. `powers`, (classes,), is overwritten."""
    top = highest(logits, top_k)
    np.subtract(logits, logits[top[0]], out=powers)  # the largest, so that exp does not overflow
    np.exp(powers, out=powers)
    return top, powers[top] / powers.sum()


def _read_probabilities(top_k: int, probabilities: Floats) -> tuple[NDArray[np.int64], Floats]:
    top = highest(probabilities, top_k)
    return top, probabilities[top]


def _read_each(least: np.float32, probabilities: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return every class whose probability reaches the threshold or is NaN, for classes that do not exclude others."""
    likely = np.flatnonzero(~(probabilities < least))
    found = likely[(-probabilities[likely]).argsort(kind="stable")]
    return found, probabilities[found]


def _layouts(_spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    return [(ModelOutput((1, label_count)),)]


def _top_k(spec: TaskSpec, class_count: int) -> int:
    if class_count < 2:
        raise ModelError(
            "the model has one output, and the likeliest of one class is always that class; export it with one output "
            "for yes and one for no"
        )
    return min(spec.classification.top_k, class_count)


_ACTIVATIONS = {"Softmax": "softmax", "Sigmoid": "sigmoid", **dict.fromkeys(NORMALISING, "vector")}


def _decoder(
    name: str, make: Callable[[TaskSpec, int, Layout], Callable[[Floats], tuple[NDArray[np.int64], Floats]]]
) -> Decoder:
    return Decoder(
        name=name,
        task="classification",
        layouts=_layouts,
        make=make,
        usual_input={"resize": "center_crop", "crop_fraction": 0.875, **IMAGENET},
        reads_first=True,
        thresholds=("confidence",) if name.startswith("sigmoid") else None,
        is_shown=lambda seen: _ACTIVATIONS.get(seen[0].operator, "logits") == name,
    )


LOGITS = _decoder(
    "logits", lambda spec, count, _: partial(_read_softmax, _top_k(spec, count), np.empty(count, np.float32))
)
SOFTMAX = _decoder("softmax", lambda spec, count, _: partial(_read_probabilities, _top_k(spec, count)))
SIGMOID = _decoder("sigmoid", lambda spec, _count, _: partial(_read_each, np.float32(spec.thresholds.confidence)))
SIGMOID_LOGITS = _decoder(
    "sigmoid_logits",
    lambda spec, _count, _: lambda logits: _read_each(np.float32(spec.thresholds.confidence), sigmoid(logits)),
)


class ClassItem(ResultItem, frozen=True, gc=False):
    """One class; class_id -1 is the background class of models that have one."""

    class_id: Annotated[int, Meta(ge=-1)]
    confidence: Unit


class ClassificationMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="classification"):
    """The most likely classes of one frame, most likely first."""

    shown: ClassVar[int] = 2
    news: ClassVar[int] = 1

    classes: list[ClassItem]


def _items(result: Classification, label: Callable[[int], str]) -> list[ClassItem]:
    rows, ids = rounded(result.confidence[:, np.newaxis], result.class_id)
    return list(map(ClassItem, map(label, ids), ids, rows[:, 0].tolist()))


def _draw(drawing: Drawing, result: Classification) -> None:
    found = list(zip(result.class_id.tolist(), result.confidence.tolist(), strict=True))[:_TOP_CLASSES]
    drawing.column((f"{drawing.name(class_id)} {share:.0%}", drawing.colour(class_id)) for class_id, share in found)


def _stage(parts: StageParts) -> Classify:
    return Classify(parts.read, int(parts.spec.classification.background_class), parts.names)


CLASSIFICATION = TaskEntry("classification", Classification, ClassificationMessage, _items, _draw, _stage)
