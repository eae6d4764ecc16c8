"""Anomaly detection: an image score, a score map, or both -> whether a picture is anomalous, and where.

The labels file has two lines: the label of normal pictures, then that of anomalous ones. A model without an image score
gets the maximum of its score map as the score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Image, Inferred, Masks, Result, Tensor
from edge_sdk.tasks.entry import Count, ResultItem, ResultMessage, StageParts, TaskEntry
from edge_sdk.tasks.outputs import COLUMNS, IMAGENET, ROWS, Decoder, Layout, ModelOutput, Shape
from edge_sdk.tasks.spec import TaskSpec, Thresholds

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing

_MOST_OUTLINES = 8


class Anomaly(Result, frozen=True, eq=False, gc=False):
    """Anomaly score and anomalous region of one frame.

    Attributes:
        score: `anomaly.score_range` maps the model's scores to 0-1; the higher, the more anomalous.
        class_id: int64 (1,), 1 if the score reaches the threshold, else 0.
        masks: the region whose scores reach the threshold; None for models without a score map.
    """

    score: float
    class_id: NDArray[np.int64]
    masks: Masks | None = None

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Confidence in the class: the score of an anomalous frame, 1 - score of a normal one; float32 (1,), 0-1."""
        return np.array([self.score if self.class_id[0] else max(0.0, 1 - self.score)], np.float32)

    def polygons(self) -> list[NDArray[np.float32]]:
        """Return the outlines of the anomalous region, the largest first: float32 (points, 2), pixels of the frame."""
        if self.masks is None or not self.class_id[0]:
            return []
        return self.masks.outlines(0, np.array([0, 0, *self.frame.size_wh], np.float32))

    def on(self, image: Image) -> Anomaly:
        """Return the same region for the same picture at another size, uint8 (H, W, 3), BGR."""
        x, y = image.shape[1] / self.frame.image.shape[1], image.shape[0] / self.frame.image.shape[0]
        own, frame = self.masks, msgspec.structs.replace(self.frame, image=image)
        masks = None if own is None else msgspec.structs.replace(own, geometry=own.geometry.on(x, y))
        return msgspec.structs.replace(self, frame=frame, masks=masks)


class Score:
    """Decode stage of anomaly detection."""

    def __init__(self, parts: StageParts) -> None:
        if len(parts.labels) != 2:
            raise ModelError(f"labels has {len(parts.labels)} lines, expected two for anomaly: normal, then anomalous")
        self._places, self._names, self._threshold = parts.places, parts.names, parts.spec.thresholds.confidence
        self._width, self._height = parts.spec.input.size_wh
        self._low, high = parts.spec.anomaly.score_range
        self._span = high - self._low

    def __call__(self, inferred: Inferred, /) -> Anomaly:
        """Read float (1,) or (1, 1), float (1, H, W) or (1, 1, H, W), or both, of one frame."""
        outputs, prepared = [inferred.outputs[place] for place in self._places], inferred.prepared
        score = next((float(output.reshape(-1)[0]) for output in outputs if output.ndim < 3), None)
        cells: Tensor | None = next((output.reshape(output.shape[-2:]) for output in outputs if output.ndim > 2), None)
        masks = None
        if cells is not None:
            rows, columns = cells.shape
            geometry = prepared.geometry.in_cells(columns / self._width, rows / self._height)
            beyond = self._scaled(cells[np.newaxis].astype(np.float32)) - np.float32(self._threshold)
            masks = Masks(np.ones((1, 1), np.float32), beyond, geometry)
            if score is None:
                seen_x, seen_y = geometry.cells_of_picture(prepared.frame.size_wh, (columns, rows))
                score = float(cells[seen_y, seen_x].max())
        found = self._scaled(score or 0.0)
        return Anomaly(
            prepared.frame,
            inferred.inference_ns,
            found,
            np.array([int(found >= self._threshold)]),
            masks,
            is_finite=math.isfinite(found) and (cells is None or math.isfinite(cells.max())),
            names=self._names,
        )

    def _scaled(self, score: Any) -> Any:
        return (score - self._low) / self._span


def _layouts(_spec: TaskSpec, _label_count: int, _got: Sequence[Shape]) -> Sequence[Layout]:
    layouts: list[Layout] = []
    for one in ((1,), (1, 1)):
        score = ModelOutput(one, None)
        for shape in ((1, 1, ROWS, COLUMNS), (1, ROWS, COLUMNS)):
            cells = ModelOutput(shape, None)
            # Anomalib exports four outputs: score, label, map, mask; label and mask have the shapes of score and map.
            layouts += [(score, score, cells, cells), (score, cells), (score,), (cells,)]
    return sorted(layouts, key=len, reverse=True)


SCORE = Decoder(
    name="score",
    task="anomaly",
    layouts=_layouts,
    make=lambda _spec, _count, _layout: None,
    usual_input={"resize": "stretch", **IMAGENET},
    usual_thresholds=Thresholds(0.5),
    usual_labels=("normal", "anomaly"),
    is_vague=True,
)


class AnomalyItem(ResultItem, frozen=True, gc=False):
    """The anomaly decision of a frame: class_id is 1 for an anomalous frame, 0 for a normal one.

    Models with a score map also give `polygons`: outlines of the anomalous region, the largest first, in whole pixels.
    """

    class_id: Count
    score: float
    polygons: list[list[tuple[int, int]]] | msgspec.UnsetType = msgspec.UNSET

    @property
    def strength(self) -> float:
        """The score."""
        return self.score


class AnomalyMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="anomaly"):
    """The anomaly decision of one frame; the list is empty if the score is not finite."""

    anomalies: list[AnomalyItem]


def _items(result: Anomaly, label: Callable[[int], str]) -> list[AnomalyItem]:
    if not result.is_finite:
        return []
    outlines = [outline.astype(int).tolist() for outline in result.polygons()[:_MOST_OUTLINES]]
    class_id = int(result.class_id[0])
    polygons = msgspec.UNSET if result.masks is None else outlines
    return [AnomalyItem(label(class_id), class_id, round(result.score, 4), polygons)]


def _draw(drawing: Drawing, result: Anomaly) -> None:
    class_id = int(result.class_id[0])
    drawing.fill(result.polygons(), drawing.colour(class_id))
    drawing.column([(f"{drawing.name(class_id)} {result.score:.2f}", drawing.colour(class_id))])


ANOMALY = TaskEntry("anomaly", Anomaly, AnomalyMessage, _items, _draw, Score)
