"""Run one model or two over the images and keep what their figures are computed from.

Every image is decoded once. Each worker thread has models of its own, which run on one thread each: that scales better
than operators that share their work.
"""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets.dataset import Dataset, Truth
from edge_sdk_tools.datasets.images import ImageFile, ImageSet, Skipped
from edge_sdk_tools.evaluate.model import Answer, Subject

_TINY = 1e-30


class OutputError(msgspec.Struct, frozen=True):
    """The error of one `output`, counted from 0: the mean over all images of the cosine between both models' values.

    `sqnr_db` is the signal-to-quantization-noise ratio in decibels, 10 log10(sum r^2 / sum (r - c)^2) over all values
    of all images; None if all values are equal.
    """

    output: int
    cosine: float
    sqnr_db: float | None


class Products(msgspec.Struct, frozen=True):
    """Sums over one output r of the reference and c of the candidate, for one image: of r^2, c^2, r c and (r - c)^2."""

    reference: float
    candidate: float
    mixed: float
    error: float

    @classmethod
    def of(cls, candidate: NDArray[np.generic], reference: NDArray[np.generic]) -> Products:
        """Return the sums over two arrays of numbers of the same shape."""
        c, r = candidate.ravel().astype(np.float64), reference.ravel().astype(np.float64)
        difference = r - c
        # Not `@`: BLAS would spread each product over cores that other images keep busy, at nine times the CPU time.
        return cls(*(float(np.einsum("i,i", a, b)) for a, b in ((r, r), (c, c), (r, c), (difference, difference))))

    @property
    def cosine(self) -> float:
        """The cosine between both, -1 to 1; if one is all zeros, 1 if the other is too, else 0."""
        length = math.sqrt(self.reference * self.candidate)
        if length == 0:
            return float(self.reference == self.candidate)
        return min(1.0, max(-1.0, self.mixed / length))


def products_of(candidate: Sequence[Tensor], reference: Sequence[Tensor]) -> tuple[Products, ...]:
    """Return one entry for each output; none if the shapes differ or an output has no floating-point numbers."""
    are_floats = all(np.issubdtype(a.dtype, np.floating) for a in (*candidate, *reference))
    if not are_floats or [c.shape for c in candidate] != [r.shape for r in reference]:
        return ()
    return tuple(Products.of(c, r) for c, r in zip(candidate, reference, strict=True))


def output_errors(images: Sequence[tuple[Products, ...]]) -> tuple[OutputError, ...]:
    """Return the error of each output over all images; none if there was nothing to compare."""
    errors = []
    for number, rows in enumerate(zip(*images, strict=False)):
        signal, noise = sum(row.reference for row in rows), sum(row.error for row in rows)
        sqnr = None if noise == 0 else 10 * math.log10(max(signal, _TINY) / noise)
        errors.append(OutputError(number, float(np.mean([row.cosine for row in rows])), sqnr))
    return tuple(errors)


T = TypeVar("T")

Look = Callable[[int, Image], T]
"""A worker's function of one image: takes its index in the set and the image, returns what is kept of it."""


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """What the workers returned for the images that could be read, their indices, and the images that could not."""

    indices: tuple[int, ...]
    values: tuple[T, ...]
    skipped: tuple[Skipped, ...]


def look_at(
    images: ImageSet,
    open_worker: Callable[[], Look[T]],
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Seen[T]:
    """Call a worker's function on every image, in `jobs` threads, by default one for each core of this process.

    `open_worker` makes the function of one thread; `on_image` gets the number of images done, from any thread.
    """
    jobs = min(jobs or len(os.sched_getaffinity(0)), max(1, len(images)))
    own = threading.local()
    counting = threading.Lock()
    done = 0

    def look(index: int) -> T | Skipped:
        nonlocal done
        if not hasattr(own, "look"):
            own.look = open_worker()
        value = _look(own.look, index, images.images[index])
        with counting:
            done += 1
            on_image(done)
        return value

    with ThreadPoolExecutor(jobs) as threads:
        try:
            values = dict(enumerate(threads.map(look, range(len(images)))))
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    skipped = tuple(value for value in values.values() if isinstance(value, Skipped))
    seen = {index: value for index, value in values.items() if not isinstance(value, Skipped)}
    return Seen(tuple(seen), tuple(seen.values()), skipped)


def _look(look: Look[T], index: int, file: ImageFile) -> T | Skipped:
    try:
        image = file.read()
    except DataError as cause:
        return Skipped(file.path, str(cause).removeprefix(f"{file.path}: "))
    return look(index, image)


WEAKEST = 0.001
"""Confidence from which detections count in curves of precision over recall, as detectors are commonly judged."""

_SAMPLED = 50_000  # values of an output that its fingerprint covers, about


class Record(msgspec.Struct, frozen=True, eq=False):
    """The predictions that are kept of one image.

    Attributes:
        rows: one for each model, as its task keeps it; none where these are arrays, which `Observed.tables` holds.
        fingerprints: one for each model, equal for equal raw outputs.
        between: what the task keeps of both answers together.
        products: sums over the raw outputs of both models, where their shapes are the same.
    """

    rows: tuple[object, ...]
    fingerprints: tuple[int, ...] = ()
    between: object = None
    products: tuple[Products, ...] = ()


class Participant(msgspec.Struct, frozen=True, eq=False):
    """A model, its class id for each common class, int64 (K,), and what its task keeps of an image."""

    subject: Subject
    class_ids: NDArray[np.int64]
    keep: Keep


Answers: TypeAlias = Sequence[tuple[Participant, Answer]]
"""The answers of all models to one image."""

Kept: TypeAlias = tuple[tuple[object, ...], object]
"""What is kept of the answers to one image: the `rows` of a `Record`, and what lies `between` two models."""

Keep: TypeAlias = Callable[[Answers, Truth | None], Kept]
"""A function that takes the answers to one image and its truth, and returns what is kept of them."""


class Observed(msgspec.Struct, frozen=True, eq=False):
    """Predictions of all models on all images.

    Attributes:
        dataset: the images that could be read, with their truths; each has one of the `records`.
        seconds: how long all of it took.
        tables: if the task keeps arrays, one for each model, float64 (N, values). That of a classifier has the
            probabilities of the common classes, then of the background where there is one.
    """

    participants: tuple[Participant, ...]
    dataset: Dataset
    records: tuple[Record, ...]
    skipped: tuple[Skipped, ...]
    seconds: float
    tables: tuple[NDArray[np.float64], ...] = ()

    @property
    def task(self) -> Task:
        """The models' task."""
        return self.participants[0].subject.spec.task

    @property
    def classes(self) -> int:
        """The number of classes that are compared."""
        return len(self.participants[0].class_ids)

    @property
    def answers(self) -> tuple[str, ...]:
        """What a classifier may answer: the common classes, and the background if one of the models has it."""
        labels = self.participants[0].subject.class_labels
        return (*labels, "background") if any(p.subject.background for p in self.participants) else labels

    def threshold(self, which: int = 0) -> float:
        """Return the least confidence that counts for one of the models."""
        return self.participants[which].subject.spec.thresholds.confidence

    def picked(self, places: Sequence[int]) -> Observed:
        """Return the predictions on the images at the indices `places`."""
        return msgspec.structs.replace(
            self,
            dataset=self.dataset.picked(places),
            records=tuple(self.records[i] for i in places),
            tables=tuple(table[list(places)] for table in self.tables),
        )

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        return self.dataset.images.images[index].path


def observe(
    participants: Sequence[Participant],
    dataset: Dataset,
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Observed:
    """Run every model on all images; a ModelError says that an output is NaN, a DataError that no image can be read."""
    started = time.perf_counter()
    seen = look_at(dataset.images, lambda: _Observer(participants, dataset), on_image, jobs)
    seconds = time.perf_counter() - started
    if not seen.values:
        skipped = (*seen.skipped, *dataset.images.skipped)
        raise DataError(f"none of {len(skipped)} images can be read; {skipped[0].path}: {skipped[0].reason}")
    records, tables = _tabulated(seen.values)
    return Observed(tuple(participants), dataset.picked(seen.indices), records, seen.skipped, seconds, tables)


def _tabulated(records: tuple[Record, ...]) -> tuple[tuple[Record, ...], tuple[NDArray[np.float64], ...]]:
    """Move rows that are arrays, such as those of a thousand classes, into one table for each model."""
    if not isinstance(records[0].rows[0], np.ndarray):
        return records, ()
    columns = zip(*(record.rows for record in records), strict=True)
    tables = tuple(np.stack([row for row in column if isinstance(row, np.ndarray)]) for column in columns)
    return tuple(msgspec.structs.replace(record, rows=()) for record in records), tables


class _Observer:
    def __init__(self, participants: Sequence[Participant], dataset: Dataset) -> None:
        curves = dataset.truths is not None
        self._dataset = dataset
        self._participants = participants
        self._models = [
            p.subject.open(min(WEAKEST, p.subject.spec.thresholds.confidence) if curves else None) for p in participants
        ]
        subjects = [p.subject for p in participants]
        kinds = {(s.spec.task, s.spec.decoder, len(s.labels), s.background) for s in subjects}
        ordered = all(np.array_equal(p.class_ids, np.arange(len(p.subject.class_labels))) for p in participants)
        self._alike = len(participants) == 2 and ordered and len(kinds) == 1

    def __call__(self, index: int, image: Image) -> Record:
        answers = [self._answer(index, which, image) for which in range(len(self._models))]
        truths = self._dataset.truths
        answered = list(zip(self._participants, answers, strict=True))
        try:
            rows, between = self._participants[0].keep(answered, truths[index] if truths else None)
        except DataError as cause:
            raise DataError(f"{self._dataset.images.images[index].path}: {cause}") from None
        fingerprints = tuple(_fingerprint(answer) for answer in answers)
        products = products_of(answers[0].outputs, answers[1].outputs) if self._alike else ()
        return Record(rows, fingerprints, between, products)

    def _answer(self, index: int, which: int, image: Image) -> Answer:
        answer = self._models[which](image)
        for number, output in enumerate(answer.outputs):
            # Minus infinity is what some models use for "never".
            if np.issubdtype(output.dtype, np.floating) and not np.isfinite(output.max(initial=0)):
                name, path = self._participants[which].subject.name, self._dataset.images.images[index].path
                raise ModelError(
                    f"{name}: output {number} is NaN or infinite for {path}; check the weights with `edge-sdk check`, "
                    "then input.mean and input.std"
                )
        return answer


def _fingerprint(answer: Answer) -> int:
    """Return a checksum of a sample of all outputs' values, so that large outputs cost little."""
    value = 0
    for output in answer.outputs:
        every = output.size // _SAMPLED | 1  # odd, and so rarely a divisor of channels or anchors
        value = zlib.crc32(output.reshape(-1)[::every].tobytes(), value)
    return value
