"""Choose the models and images of an evaluation.

`pair_up` brings the classes of all models into one order, by the text of their labels. `choose_images` leaves out every
image that calibrated one of the models.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk_tools.datasets.class_names import names_of
from edge_sdk_tools.datasets.dataset import Dataset, find_images
from edge_sdk_tools.datasets.images import ImageSet, is_file, is_folder
from edge_sdk_tools.datasets.reading import read_for
from edge_sdk_tools.evaluate.model import DIGEST_LENGTH, Subject
from edge_sdk_tools.evaluate.predictions import Participant
from edge_sdk_tools.evaluate.tasks import TASKS

_NAMED = 3


def align_labels(
    labels: Sequence[str], others: Sequence[str], renamed: Mapping[str, str] | None = None
) -> NDArray[np.int64]:
    """Return the index in `others` of each of `labels`; a ModelError says that one is not there.

    Labels match if their WordNet ids are equal; otherwise if their whole texts are, without regard to case and without
    the id; otherwise if their first names are ("tench" and "tench, Tinca tinca"). If a label occurs several times
    ("crane" twice), its first place matches the first in `others`, and so on. `renamed` maps some of `labels` to the
    names that they have in `others`.
    """
    if not renamed and list(labels) == list(others):  # also "_" and a blank, which have no words to match by
        return np.arange(len(labels), dtype=np.int64)
    renamed = {_key(mine): theirs for mine, theirs in (renamed or {}).items()}
    _check_renamed(renamed, labels, others)
    wanted = [renamed.get(_key(label), label) for label in labels]
    found: Sequence[int | None] = [None] * len(wanted)
    for key in (lambda text: names_of(text).synset, _key, lambda text: names_of(text).synonyms[0].casefold()):
        found = _look_up(wanted, others, found, key)
    missing = [label for label, index in zip(labels, found, strict=True) if index is None]
    if missing:
        raise ModelError(_missing(missing, labels, others))
    return np.array(found, np.int64)


def _key(text: str) -> str:
    return names_of(text).whole.casefold()


def _look_up(
    wanted: Sequence[str], others: Sequence[str], found: Sequence[int | None], key: Callable[[str], str]
) -> list[int | None]:
    """Return `found` with the missing indices filled by `key`, where it is not empty, from free places in `others`."""
    taken = {index for index in found if index is not None}
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, text in reversed(list(enumerate(others))):
        if index not in taken and key(text):
            places[key(text)].append(index)
    return [
        index if index is not None else (places[key(text)].pop() if places[key(text)] else None)
        for text, index in zip(wanted, found, strict=True)
    ]


def _check_renamed(renamed: Mapping[str, str], labels: Sequence[str], others: Sequence[str]) -> None:
    known, theirs = {_key(label) for label in labels}, {_key(label) for label in others}
    for mine, other in renamed.items():
        if mine not in known:
            raise ModelError(f"teacher.labels: {mine!r} is no label of this model")
        if _key(other) not in theirs:
            raise ModelError(f"teacher.labels: {other!r} is no label of the teacher")


def _missing(missing: Sequence[str], labels: Sequence[str], others: Sequence[str]) -> str:
    named = ", ".join(repr(label) for label in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return (
        f"labels do not match: {len(missing)} of {len(labels)} are none of the other model's {len(others)} "
        f"({named}{more}); expected the same (for a teacher: or pairs in [teacher.labels])"
    )


def pair_up(subjects: Sequence[Subject], renamed: Mapping[str, str] | None = None) -> list[Participant]:
    """Bring the classes of all models into the order of the first one's.

    A ModelError says that the models have different tasks, or labels that do not match.
    """
    first = subjects[0]
    keep = TASKS[first.spec.task].keep
    participants = [Participant(first, np.arange(len(first.class_labels)), keep)]
    for other in subjects[1:]:
        if other.spec.task != first.spec.task:
            raise ModelError(
                f"{first.name} does {first.spec.task} and {other.name} does {other.spec.task}, expected the same: name "
                "another model to compare with, or correct `task` in the model.toml of one of them"
            )
        try:
            ids = align_labels(first.class_labels, other.class_labels, renamed)
            participants.append(Participant(other, ids, keep))
        except ModelError as cause:
            raise ModelError(f"{first.name} and {other.name}: {cause}") from cause
    return participants


def check_there(data: Path | None) -> None:
    """Raise DataError if `data` does not exist; called before any model is loaded."""
    if data is not None and not (is_folder(data) or is_file(data)):
        raise DataError(f"{data}: no such folder, or .json of COCO")


def choose_images(subjects: Sequence[Subject], data: Path, max_images: int | None = None) -> tuple[Dataset, int]:
    """Read the dataset at `data` for the first model, and count the images left out because they calibrated a model.

    A DataError says that no image is left.
    """
    first = subjects[0]
    found = read_for(first.spec, first.labels, data)
    chosen = without_calibration(subjects, found)
    if not len(chosen):
        raise DataError(f"{data}: every image of it calibrated the model, expected others")
    left_out = len(found) - len(chosen)
    return (chosen.spread(max_images) if max_images else chosen), left_out


def without_calibration(subjects: Sequence[Subject], dataset: Dataset) -> Dataset:
    """Return the dataset without images that calibrated a bundle or are in a model.toml's calibration folder.

    Images are compared by content.
    """
    digests = frozenset[str]().union(*(s.calibration for s in subjects))
    known = [image for image in dataset.images.images if image.sha256[:DIGEST_LENGTH] in digests]
    for subject in subjects:
        if isinstance(subject.spec, ModelSpec) and subject.spec.data.calibration:
            with contextlib.suppress(DataError):  # a folder that is missing or empty is reported by the build
                known += find_images([Path(subject.spec.data.calibration)], decode=False).images
    return dataset.without(ImageSet(tuple(known)))
