"""One pass over the images with one model or two; figures are made of what it keeps elsewhere.

Every image is decoded once. Each thread has models of its own with one thread each, which scales better than operators
that share their work.
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

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.core.frame import Classification, Detections, Image, Segmentation, Tensor
from edge_sdk.tasks.spec import TRAITS, Task
from edge_sdk_tools.datasets.dataset import Dataset, MaskTruth
from edge_sdk_tools.datasets.images import ImageFile, ImageSet, Skipped
from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.model import Answer, Subject
from edge_sdk_tools.evaluate.scores import UNKNOWN, Overlap, overlap_of, probabilities_of

_TINY = 1e-30


class OutputError(msgspec.Struct, frozen=True):
    """The error of one output over all images.

    Attributes:
        output: its number, from 0.
        cosine: mean over the images of the cosine between both models' values, -1 to 1.
        sqnr_db: signal to quantization noise, 10 log10(sum r^2 / sum (r - c)^2) over all values of all images, in
            decibels; None when not a bit differs.
    """

    output: int
    cosine: float
    sqnr_db: float | None


class Products(msgspec.Struct, frozen=True):
    """Sums over one output of one image: r * r, c * c, r * c, (r - c)^2."""

    reference: float
    candidate: float
    mixed: float
    error: float


def products_of(candidate: Sequence[Tensor], reference: Sequence[Tensor]) -> tuple[Products, ...]:
    """One an output; none at all where the shapes differ, or the outputs are no real numbers."""
    if [c.shape for c in candidate] != [r.shape for r in reference]:
        return ()
    if not all(np.issubdtype(a.dtype, np.floating) for a in (*candidate, *reference)):
        return ()
    return tuple(_products(c, r) for c, r in zip(candidate, reference, strict=True))


def output_errors(images: Sequence[tuple[Products, ...]]) -> tuple[OutputError, ...]:
    """One an output; none when there was nothing to compare."""
    return tuple(_error(number, rows) for number, rows in enumerate(zip(*images, strict=False)))


def _products(candidate: Tensor, reference: Tensor) -> Products:
    c, r = candidate.ravel().astype(np.float64), reference.ravel().astype(np.float64)
    difference = r - c
    return Products(float(r @ r), float(c @ c), float(r @ c), float(difference @ difference))


def _error(number: int, rows: Sequence[Products]) -> OutputError:
    cosines = [_cosine(row) for row in rows]
    signal, noise = sum(row.reference for row in rows), sum(row.error for row in rows)
    sqnr = None if noise == 0 else 10 * math.log10(max(signal, _TINY) / noise)
    return OutputError(number, float(np.mean(cosines)), sqnr)


def _cosine(row: Products) -> float:
    length = math.sqrt(row.reference * row.candidate)
    if length == 0:
        return float(row.reference == row.candidate)
    return row.mixed / length


T = TypeVar("T")

Look = Callable[[int, Image], T]
"""What a worker does with one image: its place in the set and the picture in, anything out."""


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """What the images gave."""

    indices: tuple[int, ...]
    values: tuple[T, ...]
    skipped: tuple[Skipped, ...]


def look_at(
    images: ImageSet,
    open_worker: Callable[[], Look[T]],
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Seen[T]:
    """Look at every image, in `jobs` threads, by default as many as this process has cores.

    `open_worker` makes what one thread works with; `on_image` is called with the number done, from any thread.
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
            values = list(threads.map(look, range(len(images))))
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise
    seen = [(i, value) for i, value in enumerate(values) if not isinstance(value, Skipped)]
    return Seen(
        tuple(i for i, _ in seen),
        tuple(value for _, value in seen),
        tuple(value for value in values if isinstance(value, Skipped)),
    )


def _look(look: Look[T], index: int, file: ImageFile) -> T | Skipped:
    try:
        image = file.read()
    except DataError as cause:
        return Skipped(file.path, str(cause).removeprefix(f"{file.path}: "))
    return look(index, image)


WEAKEST = 0.001
"""Curves of precision over recall go down to the weakest detections; detectors are commonly judged from here."""

_SAMPLED = 50_000  # values of an output

Row: TypeAlias = NDArray[np.float64] | Boxes | Overlap | None
"""What is kept of an answer: a classifier's probabilities (the common classes, then the background where there is one);
a detector's boxes; how a class map overlaps the truth."""

ClassTable: TypeAlias = NDArray[np.int16] | NDArray[np.uint8]
"""Own class id -> common class: uint8 (256,) for class maps, which are large; else int16, -1 for none."""


class Record(msgspec.Struct, frozen=True, eq=False):
    """The predictions that are kept of one image.

    Attributes:
        rows: one a model; none for classifiers, whose rows `Observed` holds as one table.
        fingerprints: one a model, equal for equal raw outputs.
        between: how the first model's class map overlaps the second's.
        products: of the raw outputs of both, where their shapes are the same.
    """

    rows: tuple[Row, ...]
    size_wh: tuple[int, int]
    fingerprints: tuple[int, ...] = ()
    between: Overlap | None = None
    products: tuple[Products, ...] = ()


class Participant(msgspec.Struct, frozen=True, eq=False):
    """A model, and of each common class this model's class id, int64 (K,)."""

    subject: Subject
    class_ids: NDArray[np.int64]


class Observed(msgspec.Struct, frozen=True, eq=False):
    """Predictions of all models on all images.

    Attributes:
        participants: in the order of `Record.rows`.
        dataset: only the images that could be read, with their truths.
        tables: of classifiers, one a model: float64 (N, K), or (N, K + 1) with the background last.
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
        """Names of what a classifier may say: the common classes, and the background where one of the models has it."""
        labels = self.participants[0].subject.class_labels
        return (*labels, "background") if any(p.subject.background for p in self.participants) else labels

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        return self.dataset.images.images[index].path


def observe(
    participants: Sequence[Participant],
    dataset: Dataset,
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Observed:
    """Run every model on every image.

    Raises:
        ModelError: an output that is no number.
        DataError: no image can be read.
    """
    started = time.perf_counter()
    seen = look_at(dataset.images, lambda: _Observer(participants, dataset), on_image, jobs)
    seconds = time.perf_counter() - started
    if not seen.values:
        skipped = (*seen.skipped, *dataset.images.skipped)
        raise DataError(f"none of {len(skipped)} images can be read; {skipped[0].path}: {skipped[0].reason}")
    records, tables = _tabulated(seen.values)
    return Observed(tuple(participants), dataset.picked(seen.indices), records, seen.skipped, seconds, tables)


def _tabulated(records: tuple[Record, ...]) -> tuple[tuple[Record, ...], tuple[NDArray[np.float64], ...]]:
    """A thousand classes of many images are kept once: as one table a model, and no longer as rows."""
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
        self._tables = [_class_table(p) for p in participants]
        self._alike = _read_alike(participants)

    def __call__(self, index: int, image: Image) -> Record:
        answers = [self._answer(index, which, image) for which in range(len(self._models))]
        maps = [self._map(answer, table) for answer, table in zip(answers, self._tables, strict=True)]
        truth = self._truth(index, maps)
        rows = tuple(
            self._row(index, *one, truth) for one in zip(self._participants, answers, self._tables, maps, strict=True)
        )
        size_wh = (image.shape[1], image.shape[0])
        fingerprints = tuple(_fingerprint(answer) for answer in answers)
        if len(answers) == 1:
            return Record(rows, size_wh, fingerprints)
        between = None
        if maps[0] is not None and maps[1] is not None:
            between = overlap_of(maps[0], maps[1], len(self._participants[0].class_ids))
        products = products_of(answers[0].outputs, answers[1].outputs) if self._alike else ()
        return Record(rows, size_wh, fingerprints, between, products)

    def _answer(self, index: int, which: int, image: Image) -> Answer:
        answer = self._models[which](image)
        for number, output in enumerate(answer.outputs):
            if np.issubdtype(output.dtype, np.floating) and np.isnan(output).any():
                name, path = self._participants[which].subject.name, self._dataset.images.images[index].path
                raise ModelError(
                    f"{name}: output {number} is NaN for {path}; check the weights with `edge-sdk check`, then "
                    "input.mean and input.std"
                )
        return answer

    def _map(self, answer: Answer, table: ClassTable) -> NDArray[np.uint8] | None:
        if not isinstance(answer.result, Segmentation):
            return None
        # Not an index: numpy would widen every pixel of it to eight bytes.
        mapped = cv2.LUT(answer.result.to_frame(), table)
        return np.asarray(mapped, np.uint8)

    def _truth(self, index: int, maps: Sequence[NDArray[np.uint8] | None]) -> NDArray[np.uint8] | None:
        truths = self._dataset.truths
        truth = truths[index] if truths is not None else None
        answer = maps[0]
        if not isinstance(truth, MaskTruth) or answer is None:
            return None
        mask = truth.read()
        if mask.shape != answer.shape:
            raise DataError(
                f"{truth.path}: mask of {mask.shape[1]}x{mask.shape[0]} pixels for an image of "
                f"{answer.shape[1]}x{answer.shape[0]}, expected the same"
            )
        return mask

    def _row(
        self,
        index: int,
        participant: Participant,
        answer: Answer,
        table: ClassTable,
        class_map: NDArray[np.uint8] | None,
        truth: NDArray[np.uint8] | None,
    ) -> Row:
        result = answer.result
        if isinstance(result, Classification):
            return self._probabilities(participant, answer)
        if isinstance(result, Detections):
            known = table[result.class_id].astype(np.int64)
            keep = known >= 0
            return Boxes(result.xyxy[keep].astype(np.float64), result.confidence[keep].astype(np.float64), known[keep])
        if class_map is None or truth is None:
            return None
        return overlap_of(class_map, truth, len(participant.class_ids))

    def _probabilities(self, participant: Participant, answer: Answer) -> NDArray[np.float64]:
        subject = participant.subject
        row = probabilities_of(answer.outputs[0], subject.spec.decoder)
        order = participant.class_ids + subject.background
        return np.append(row[order], row[:1]) if subject.background else row[order]


def _read_alike(participants: Sequence[Participant]) -> bool:
    subjects = [p.subject for p in participants]
    ordered = all(np.array_equal(p.class_ids, np.arange(len(p.subject.class_labels))) for p in participants)
    return ordered and len({(s.spec.task, s.spec.decoder, len(s.labels), s.background) for s in subjects}) == 1


def _fingerprint(answer: Answer) -> int:
    """A checksum of some values: what stands still there stands still everywhere, and large outputs cost little."""
    value = 0
    for output in answer.outputs:
        every = output.size // _SAMPLED | 1  # odd, and so rarely a divisor of channels or anchors
        value = zlib.crc32(output.reshape(-1)[::every].tobytes(), value)
    return value


def _class_table(participant: Participant) -> ClassTable:
    """`UNKNOWN` of a class map stays what it is."""
    common = np.arange(len(participant.class_ids))
    if TRAITS[participant.subject.spec.task].has_class_map:
        of_map = np.full(256, UNKNOWN, np.uint8)
        of_map[participant.class_ids] = common
        return of_map
    table = np.full(len(participant.subject.class_labels), -1, np.int16)
    table[participant.class_ids] = common
    return table
