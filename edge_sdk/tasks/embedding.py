"""Embeddings: a vector -> the name of the nearest vector of a gallery.

A gallery is the labels file of an embedding model: an .npz with `names`, strings (N,), and `vectors`, float (N, D);
several vectors may have the same name. `edge-sdk gallery` makes one. Without a gallery every picture is `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Inferred, Result
from edge_sdk.tasks.boxes import Floats
from edge_sdk.tasks.entry import Labels, ResultItem, ResultMessage, StageParts, TaskEntry, Unit, gallery_arrays
from edge_sdk.tasks.outputs import NORMALISING, SYMMETRIC, Decoder, ModelOutput
from edge_sdk.tasks.spec import UNKNOWN, Thresholds

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing


class Embedding(Result, frozen=True, eq=False, gc=False):
    """The vector of one frame, and the nearest name of the gallery.

    Attributes:
        vector: float32 (D,), of length 1.
        class_id: int64 (1,), the index of the name among the labels; -1 if no cosine reaches the threshold.
        confidence: float32 (1,), cosine similarity with the gallery's nearest vector, 0-1; negative values become 0.
        publishes_vector: whether the message holds the vector.
    """

    vector: Floats
    class_id: NDArray[np.int64]
    confidence: Floats
    publishes_vector: bool = False


class Gallery:
    """Vectors with names.

    Args:
        vectors: float32 (N, D), each of length 1.
        owners: int64 (N,), index of each vector's label.
    """

    def __init__(self, vectors: Floats, owners: NDArray[np.int64]) -> None:
        self.vectors, self.owners = vectors, owners

    @classmethod
    def of(cls, labels: Sequence[str]) -> Gallery | None:
        """Read the gallery of a labels file; return None for a text file of names; raise ModelError if it is broken."""
        if not isinstance(labels, Labels) or labels.suffix != ".npz":
            return None
        try:
            names, vectors = gallery_arrays(labels.data, "names", "vectors")
            vectors = normalised(np.asarray(vectors, np.float32))
        except ValueError as cause:
            raise ModelError(f"the gallery holds no vectors: {cause}") from cause
        if not names.size or vectors.ndim != 2 or names.shape != vectors.shape[:1] or not np.isfinite(vectors).all():
            raise ModelError(f"the gallery has vectors {vectors.shape}, expected one of finite numbers a name")
        places = {label: place for place, label in enumerate(labels)}
        return cls(vectors, np.array([places[str(name)] for name in names.tolist()], np.int64))

    def nearest(self, vectors: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the label index, int64 (M,), and cosine, float32 (M,), of the vector nearest to each of (M, D)."""
        cosines: Floats = vectors @ self.vectors.T
        best = cosines.argmax(axis=1)
        return self.owners[best], cosines[np.arange(len(best)), best]


def normalised(vectors: Floats) -> Floats:
    """Return the vectors, float (..., D), scaled to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    result: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths != 0)
    return result


class Embed:
    """Decode stage of embedding models."""

    def __init__(self, parts: StageParts) -> None:
        self._place, self._spec, self._names = parts.places[0], parts.spec, parts.names
        self._gallery = Gallery.of(parts.labels)

    def __call__(self, inferred: Inferred, /) -> Embedding:
        """Read float (1, D) of one frame; raise ModelError if the gallery's vectors have another dimension."""
        vector = normalised(inferred.outputs[self._place].reshape(1, -1).astype(np.float32))
        ids, cosines = np.full(1, -1), np.zeros(1, np.float32)
        if self._gallery is not None:
            if self._gallery.vectors.shape[1] != vector.shape[1]:
                raise ModelError(
                    f"the gallery's vectors have {self._gallery.vectors.shape[1]} numbers, the model's "
                    f"{vector.shape[1]}; make the gallery with this model: edge-sdk gallery"
                )
            ids, cosines = self._gallery.nearest(vector)
            cosines = cosines.clip(0, 1)
            ids = np.where(cosines >= self._spec.thresholds.confidence, ids, -1)
        return Embedding(
            inferred.prepared.frame,
            inferred.inference_ns,
            vector[0],
            ids,
            cosines,
            self._spec.embedding.vector,
            is_finite=math.isfinite(vector.sum()),
            names=self._names,
        )


VECTOR = Decoder(
    name="vector",
    task="embedding",
    layouts=lambda _spec, _count, _got: [(ModelOutput((1, "D"), None),), (ModelOutput((1, "D", 1, 1), None),)],
    make=lambda _spec, _count, _layout: None,
    usual_input={"resize": "stretch", **SYMMETRIC},
    usual_thresholds=Thresholds(0.4),
    usual_labels=(UNKNOWN,),
    is_vague=True,
    is_shown=lambda seen: seen[0].operator in NORMALISING or None,
)


class MatchItem(ResultItem, frozen=True, gc=False):
    """The gallery's name nearest to the frame; class_id -1 is `unknown`, confidence the cosine of both vectors.

    `vector`, of length 1, is present if `embedding.vector` is set in model.toml.
    """

    class_id: Annotated[int, Meta(ge=-1)]
    confidence: Unit
    vector: list[float] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingMessage(ResultMessage, frozen=True, gc=False, kw_only=True, tag="embedding"):
    """The gallery's name nearest to one frame."""

    matches: list[MatchItem]


def _items(result: Embedding, label: Callable[[int], str]) -> list[MatchItem]:
    if not result.is_finite:
        return []
    vector = np.round(result.vector.astype(np.float64), 5).tolist() if result.publishes_vector else msgspec.UNSET
    confidence = round(float(result.confidence[0]), 4)
    class_id = int(result.class_id[0])
    return [MatchItem(label(class_id), class_id, confidence, vector)]


def _draw(drawing: Drawing, result: Embedding) -> None:
    class_id = int(result.class_id[0])
    drawing.column([(f"{drawing.name(class_id)} {result.confidence[0]:.0%}", drawing.colour(class_id))])


EMBEDDING = TaskEntry("embedding", Embedding, EmbeddingMessage, _items, _draw, Embed)
