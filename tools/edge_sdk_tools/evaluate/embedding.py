"""Metrics of embeddings, and `make_gallery`, which writes the vectors of pictures in one folder per name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError, ModelError, OutputError, UsageError, raising
from edge_sdk.tasks.embedding import Embedding, Gallery
from edge_sdk_tools.datasets.dataset import Truth, find_images
from edge_sdk_tools.datasets.images import Skipped
from edge_sdk_tools.evaluate.metrics import TaskMetrics, WorstImage, true_classes, worst_images
from edge_sdk_tools.evaluate.model import open_subject
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Look, Observed, look_at
from edge_sdk_tools.evaluate.statistics import Metric, Statistic, Weights, mean_of, quotient, share_metric
from edge_sdk_tools.jobs.runner import OnProgress, silent

_ROWS_AT_ONCE = 1024  # rows of the table of all pairs in an array: 100 MB for 13,000 images


class EmbeddingMetrics(TaskMetrics):
    """Metrics of the vectors of whole images, and of the names that a gallery assigns to them."""

    agreement_metric = "vector_cosine"
    agreement_name = "cosine of vectors"
    noun = "vectors"

    def keep(self, answers: Answers, _truth: Truth | None) -> Kept:
        """Keep the vectors, each of length 1."""
        results = (answer.result for _, answer in answers)
        return tuple(result.vector.astype(np.float64) for result in results if isinstance(result, Embedding)), None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return the share of images with the right name, and verification accuracy over pairs at the threshold."""
        truths, vectors = true_classes(observed), observed.tables[which]
        least, gallery = observed.threshold(which), Gallery.of(observed.participants[which].subject.labels)
        counts = np.unique(truths, return_counts=True)[1]
        has_pairs = len(counts) > 1 and bool((counts > 1).any())
        if not has_pairs and gallery is None:
            raise DataError(f"{len(truths)} images, expected two or more of one class, and others of another")
        metrics = []
        if gallery is not None:
            owners, cosines = gallery.nearest(vectors.astype(np.float32))
            metrics.append(share_metric("top-1", (owners == truths) & (cosines >= least), is_gated=True))
        if has_pairs:
            metrics.append(Metric("verification accuracy", _verified(vectors, truths, least), is_gated=True))
        return tuple(metrics)

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the mean cosine of the two models' vectors of an image."""
        lengths = [table.shape[1] for table in observed.tables]
        if lengths[0] != lengths[1]:
            raise ModelError(f"vectors of {lengths[0]} and of {lengths[1]} numbers cannot be compared")
        return (Metric(self.agreement_name, mean_of(_cosines(observed).clip(0, 1))),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images with the lowest cosine of the two models' vectors."""
        distance = 1 - _cosines(observed)
        return worst_images(
            observed, distance, count, lambda i: (None, "", f"cosine {1 - distance[i]:.3f} with the teacher")
        )


def _cosines(observed: Observed) -> NDArray[np.float64]:
    return np.asarray((observed.tables[0] * observed.tables[1]).sum(axis=1), np.float64)


def _verified(vectors: NDArray[np.float64], truths: NDArray[np.int64], least: float) -> Statistic:
    """Return the balanced accuracy of verification: pairs of a class have a cosine of at least `least`, others less."""

    def statistic(weights: Weights) -> NDArray[np.float64]:
        totals = np.zeros((4, len(weights)))
        for start in range(0, len(truths), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            same, found = truths[rows, None] == truths, vectors[rows] @ vectors.T >= least
            other = ~same
            same &= np.arange(len(truths))[rows, None] != np.arange(len(truths))  # nothing is a pair with itself
            for total, pairs in zip(totals, (same & found, same, other & ~found, other), strict=True):
                total += ((weights[:, rows] @ pairs) * weights).sum(axis=1)
        return np.asarray((quotient(totals[0], totals[1]) + quotient(totals[2], totals[3])) / 2, np.float64)

    return statistic


class GalleryMade(msgspec.Struct, frozen=True):
    """Numbers of names and vectors of a gallery, and the pictures that could not be read."""

    names: int
    vectors: int
    skipped: tuple[Skipped, ...]


def make_gallery(model: Path, folder: Path, output: Path, on_progress: OnProgress = silent) -> GalleryMade:
    """Write the vectors of all pictures in the subfolders of `folder` to an .npz; a subfolder's name names its vectors.

    A UsageError says that the model's task is another one, that the file exists, or does not end in .npz; a DataError
    that no subfolder has a readable picture, an OutputError that the file cannot be written.
    """
    if output.suffix != ".npz" or output.exists():
        raise UsageError(f"{output}: expected a new file whose name ends in .npz; nothing is overwritten")
    subject = open_subject(model)
    if subject.spec.task != "embedding":
        raise UsageError(f'{model}: its task is {subject.spec.task}, expected task = "embedding"')
    images = find_images([folder], decode=False)
    names = [image.path.relative_to(folder).parts[0] for image in images.images]
    alone = next((image.path for image in images.images if image.path.parent == folder), None)
    if alone is not None:
        raise DataError(f"{alone}: lies in no folder of {folder}, expected one folder a name")

    def open_worker() -> Look[NDArray[np.float32]]:
        run = subject.open()

        def look(_index: int, image: NDArray[np.uint8]) -> NDArray[np.float32]:
            result = run(image).result
            assert isinstance(result, Embedding)
            return result.vector

        return look

    seen = look_at(images, open_worker, lambda done: on_progress("embed", done, len(images)))
    if not seen.values:
        raise DataError(f"{folder}: none of {len(images)} pictures can be read")
    kept = [names[index] for index in seen.indices]
    with raising(OutputError, f"{output}: cannot be written"), output.open("xb") as file:
        np.savez_compressed(file, names=np.array(kept), vectors=np.stack(seen.values))
    return GalleryMade(len(set(kept)), len(kept), (*images.skipped, *seen.skipped))
