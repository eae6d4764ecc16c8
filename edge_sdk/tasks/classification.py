"""Classification: one row of scores -> the most likely classes, or all likely enough, and how these are published."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Classification, Inferred
from edge_sdk.tasks.entry import ResultItem, ResultMessage, StageParts, TaskEntry, Unit, rounded
from edge_sdk.tasks.outputs import NORMALISING, Decoder, Layout, ModelOutput, SeenOutput, Shape
from edge_sdk.tasks.spec import ClassificationSpec, TaskSpec

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing

Floats = NDArray[np.float32]

_TOP_CLASSES = 3  # that are drawn


def highest(scores: Floats, count: int) -> NDArray[np.int64]:
    """Return the outputs of the `count` highest of float (classes,) scores, the highest first: int64 (count,).

    Of equal scores the output that comes first stands first, in what `run` publishes and in what `evaluate` counts. A
    NaN counts as the highest, so that it is always among them.
    """
    found = scores.argpartition(-count)[-count:]
    least = scores[found[0]]
    if np.count_nonzero(scores >= least) != count:  # equals of the last one, or a NaN
        found = np.flatnonzero(~(scores < least))[::-1]
        return found[scores[found].argsort(kind="stable")[::-1][:count]]
    found.sort()
    return found[(-scores[found]).argsort(kind="stable")]


class Classify:
    """The decode stage of a classifier; `read` turns float (classes,) and ids, the highest first, into confidences."""

    def __init__(
        self,
        read: Callable[[Floats, NDArray[np.int64]], Floats],
        spec: ClassificationSpec,
        class_count: int,
        names: Mapping[int, str],
    ) -> None:
        self._read, self._names = read, names
        self._top_k = min(spec.top_k, class_count)
        self._offset = 1 if spec.background_class else 0

    def __call__(self, inferred: Inferred, /) -> Classification:
        """Read float (1, classes) of one frame."""
        scores: Floats = inferred.outputs[0].reshape(-1)
        top = highest(scores, self._top_k)
        confidences = self._read(scores, top)
        return Classification(
            inferred.prepared.frame,
            inferred.inference_ns,
            confidences.astype(np.float32, copy=False),
            top - self._offset if self._offset else top,
            is_finite=math.isfinite(confidences.sum()),
            names=self._names,
        )


class ClassifyEach:
    """The decode stage of a classifier whose classes do not exclude each other: all that reach the threshold.

    `read` turns float (classes,) into confidences 0-1.
    """

    def __init__(self, read: Callable[[Floats], Floats], spec: TaskSpec, names: Mapping[int, str]) -> None:
        self._read, self._names = read, names
        self._least = np.float32(spec.thresholds.confidence)
        self._offset = int(spec.classification.background_class)

    def __call__(self, inferred: Inferred, /) -> Classification:
        """Read float (1, classes) of one frame."""
        confidences = self._read(inferred.outputs[0].reshape(-1)).astype(np.float32, copy=False)
        likely = np.flatnonzero(confidences >= self._least)
        found = likely[(-confidences[likely]).argsort(kind="stable")]
        return Classification(
            inferred.prepared.frame,
            inferred.inference_ns,
            confidences[found],
            found - self._offset,
            is_finite=math.isfinite(confidences.sum()),
            names=self._names,
        )


def _sigmoid(logits: Floats) -> Floats:
    """Return 1 / (1 + exp(-logits)), by tanh, which cannot overflow."""
    half = np.float32(0.5)
    probabilities: Floats = np.tanh(logits * half) * half + half
    return probabilities


class Softmax:
    """Reads logits: confidences are their softmax over all classes."""

    def __init__(self, class_count: int) -> None:
        self._powers = np.empty(class_count, np.float32)

    def __call__(self, logits: Floats, top: NDArray[np.int64], /) -> Floats:
        """Return the probabilities of `top`, whose first is the largest; subtracting it keeps exp from overflowing."""
        powers = np.subtract(logits, logits[top[0]], out=self._powers)
        np.exp(powers, out=powers)
        probabilities: Floats = powers[top] / powers.sum()
        return probabilities


def _layouts(_spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    return [(ModelOutput((1, label_count)),)]


def _several(class_count: int) -> int:
    if class_count < 2:
        raise ModelError(
            "the model has one output, and the likeliest of one class is always that class; export it with one output "
            "for yes and one for no"
        )
    return class_count


_IMAGENET: dict[str, Any] = {
    "resize": "center_crop",
    "crop_fraction": 0.875,
    "mean": (123.675, 116.28, 103.53),
    "std": (58.395, 57.12, 57.375),
}

_ACTIVATIONS = {"Softmax": "softmax", "Sigmoid": "sigmoid", **dict.fromkeys(NORMALISING, "vector")}


def _is_activated_as(decoder: str) -> Callable[[Sequence[SeenOutput]], bool]:
    return lambda seen: _ACTIVATIONS.get(seen[0].operator, "logits") == decoder


LOGITS = Decoder(
    name="logits",
    task="classification",
    layouts=_layouts,
    make=lambda _spec, count, _layout: Softmax(_several(count)),
    usual_input=_IMAGENET,
    reads_first=True,
    is_shown=_is_activated_as("logits"),
)
SOFTMAX = Decoder(
    name="softmax",
    task="classification",
    layouts=_layouts,
    make=lambda _spec, count, _layout: operator.getitem if _several(count) else None,
    usual_input=_IMAGENET,
    reads_first=True,
    is_shown=_is_activated_as("softmax"),
)
SIGMOID = Decoder(
    name="sigmoid",
    task="classification",
    layouts=_layouts,
    make=lambda _spec, _count, _layout: lambda probabilities: probabilities,
    usual_input=_IMAGENET,
    reads_first=True,
    is_shown=_is_activated_as("sigmoid"),
)
SIGMOID_LOGITS = Decoder(
    name="sigmoid_logits",
    task="classification",
    layouts=_layouts,
    make=lambda _spec, _count, _layout: _sigmoid,
    usual_input=_IMAGENET,
    reads_first=True,
    is_shown=lambda _seen: False,
)


class ClassItem(ResultItem, frozen=True, gc=False):
    """One class; class_id -1 is the background of a model that has one."""

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


def _stage(parts: StageParts) -> Classify | ClassifyEach:
    if parts.decoder in (SIGMOID, SIGMOID_LOGITS):
        return ClassifyEach(parts.read, parts.spec, parts.names)
    return Classify(parts.read, parts.spec.classification, len(parts.labels), parts.names)


CLASSIFICATION = TaskEntry(
    task="classification",
    result=Classification,
    message=ClassificationMessage,
    items=_items,
    draw=_draw,
    stage=_stage,
)
