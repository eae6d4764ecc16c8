"""Text recognition: one row of scores for each step along a line of text -> the characters of the line.

The labels are the dictionary of the model's training, one character per line, as in PaddleOCR. The first score of each
step is that of CTC's blank; scores after those of the dictionary are those of a space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.frame import Inferred, Result
from edge_sdk.tasks.boxes import softmax
from edge_sdk.tasks.entry import Labels, ResultItem, ResultMessage, StageParts, TaskEntry, Unit
from edge_sdk.tasks.outputs import SYMMETRIC, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec, Thresholds

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing

_BLANK = 0
_SPACES = 3  # most scores without a line in the dictionary: the blank's, and those of spaces


class Text(Result, frozen=True, eq=False, gc=False):
    """The text that one frame shows.

    Attributes:
        text: the recognized text; empty if its confidence is below the threshold.
        confidence: float32 (1,), 0-1: the mean probability of the text's characters; 0 without any.
    """

    text: str
    confidence: NDArray[np.float32]

    @property
    def labels(self) -> list[str]:
        """A list with the text; an empty list if the text is empty."""
        return [self.text] if self.text else []

    def summary(self, _label: Callable[[int], str]) -> str | None:
        """Return the text; None if it is empty."""
        return self.text or None


class ReadText:
    """Decode stage of text recognition: greedy CTC decoding."""

    def __init__(self, parts: StageParts) -> None:
        self._place, self._least = parts.places[0], parts.spec.thresholds.confidence
        self._characters = characters_of(parts.labels)

    def __call__(self, inferred: Inferred, /) -> Text:
        """Read float (1, T, C) or (T, 1, C) of one frame: probabilities, or logits, to which softmax is applied."""
        output = inferred.outputs[self._place]
        text, confidence = greedy_text(output.reshape(-1, output.shape[-1]), self._characters)
        found = text if confidence >= self._least else ""
        sure = np.array([confidence], np.float32)
        is_finite = math.isfinite(output.max())
        return Text(inferred.prepared.frame, inferred.inference_ns, found, sure, is_finite=is_finite)


def characters_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the characters of a dictionary, with the spaces that `Labels` strips from its lines."""
    lines = labels.data.decode("utf-8-sig").split("\n") if isinstance(labels, Labels) else labels
    characters = [line.removesuffix("\r") or " " for line in lines]
    return tuple(characters[:-1] if isinstance(labels, Labels) and not lines[-1] else characters)


def greedy_text(scores: NDArray[np.float32], characters: Sequence[str]) -> tuple[str, float]:
    """Decode float (T, C) greedily: the most likely character of each step, without repetitions and blanks.

    Returns:
        The text, and the mean probability of its characters, 0-1; 0 for an empty text.
    """
    best = scores.argmax(axis=1)
    is_new = np.append(True, best[1:] != best[:-1]) & (best != _BLANK)
    steps = np.flatnonzero(is_new)
    if not len(steps):
        return "", 0.0
    chosen = best[steps] - 1
    text = "".join(characters[place] if place < len(characters) else " " for place in chosen.tolist())
    rows = scores[steps]
    if not math.isclose(float(rows[0].sum()), 1, abs_tol=0.02):
        rows = softmax(rows)
    sure = float(rows[np.arange(len(steps)), best[steps]].mean())
    return text, min(1.0, sure) if math.isfinite(sure) else 0.0


def _layouts(_spec: TaskSpec, label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    return [
        (ModelOutput(shape, 2, others=others),)
        for others in range(1, _SPACES + 1)
        for shape in ((1, "T", label_count + others), ("T", 1, label_count + others))
    ]


CTC = Decoder(
    name="ctc",
    task="text",
    layouts=_layouts,
    make=lambda _spec, _count, _layout: None,
    usual_input={"pad_anchor": "top_left", "color": "BGR", **SYMMETRIC},
    usual_thresholds=Thresholds(0.5),
    is_vague=True,
    is_shown=lambda seen: seen[0].operator == "Softmax" or None,
)


class TextItem(ResultItem, frozen=True, gc=False):
    """One line of text, in `label`; confidence is the mean probability of its characters."""

    confidence: Unit


class TextMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="text"):
    """The text that one frame shows; the list is empty if there is none."""

    texts: list[TextItem]


def _items(result: Text, _label: Callable[[int], str]) -> list[TextItem]:
    return [TextItem(text, round(float(result.confidence[0]), 4)) for text in result.labels]


def _draw(drawing: Drawing, result: Text) -> None:
    drawing.column((f"{text} {result.confidence[0]:.0%}", drawing.colour(0)) for text in result.labels)


TEXT = TaskEntry("text", Text, TextMessage, _items, _draw, ReadText)
