"""Who takes part in an evaluation, and on which images.

Owns that all models' classes are brought into one order, and that no image measures what it calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk_tools.dataset import Dataset, ImageFile, ImageSet, find_images, read_dataset
from edge_sdk_tools.dataset.walk import is_file, is_folder
from edge_sdk_tools.evaluate.alignment import align_labels
from edge_sdk_tools.evaluate.observe import Participant
from edge_sdk_tools.evaluate.subject import DIGEST_LENGTH, Subject


def pair_up(subjects: Sequence[Subject], renamed: Mapping[str, str] | None = None) -> list[Participant]:
    """Bring the classes of all models into the first one's order.

    Args:
        subjects: the model in question, then what it is compared with.
        renamed: the first model's label -> what the other calls it.

    Raises:
        ModelError: other tasks, or labels that do not match.
    """
    first = subjects[0]
    participants = [Participant(first, np.arange(len(first.class_labels)))]
    for other in subjects[1:]:
        if other.spec.task != first.spec.task:
            raise ModelError(
                f"{first.name} does {first.spec.task} and {other.name} does {other.spec.task}, expected the same: name "
                "another model to compare with, or mend `task` in the model.toml of one of them"
            )
        try:
            participants.append(Participant(other, align_labels(first.class_labels, other.class_labels, renamed)))
        except ModelError as cause:
            raise ModelError(f"{first.name} and {other.name}: {cause}{_background_unsaid([first, other])}") from cause
    return participants


def _background_unsaid(subjects: Sequence[Subject]) -> str:
    """Why labels often do not match: one model's background is a class to the other."""
    for subject in subjects:
        if subject.spec.task == "classification" and subject.class_labels[0].strip("_ ").casefold() == "background":
            return (
                f"; the first label of {subject.name} is {subject.class_labels[0]!r}: is [classification] "
                "background_class = true missing in its model.toml?"
            )
    return ""


def check_there(data: Path | None) -> None:
    """Say that there are no images at all before any model is loaded.

    Raises:
        DataError: nothing is at `data`.
    """
    if data is not None and not (is_folder(data) or is_file(data)):
        raise DataError(f"{data}: no such folder, or .json of COCO")


def choose_images(subjects: Sequence[Subject], data: Path, max_images: int | None = None) -> tuple[Dataset, int]:
    """Read `data` for the first model, without what calibrated any of them.

    Returns:
        The images, and how many were left out.

    Raises:
        DataError: nothing is left.
    """
    first = subjects[0]
    found = read_dataset(data, first.labels, first.spec.task, background_class=bool(first.background))
    chosen = without_calibration(subjects, found)
    if not len(chosen):
        raise DataError(f"{data}: every image of it calibrated the model, expected others")
    left_out = len(found) - len(chosen)
    return (chosen.spread(max_images) if max_images else chosen), left_out


def without_calibration(subjects: Sequence[Subject], dataset: Dataset) -> Dataset:
    """Leave out the images that calibrated a bundle, or lie in a model.toml's calibration folder, by their content."""
    return dataset.without(_calibration_images(subjects, dataset))


def _calibration_images(subjects: Sequence[Subject], found: Dataset) -> ImageSet:
    digests = frozenset[str]().union(*(s.calibration for s in subjects))
    known = tuple(i for i in found.images.images if i.sha256[:DIGEST_LENGTH] in digests)
    folders = [
        Path(s.spec.data.calibration) for s in subjects if isinstance(s.spec, ModelSpec) and s.spec.data.calibration
    ]
    return ImageSet(known + tuple(image for folder in folders for image in _images_in(folder)))


def _images_in(folder: Path) -> tuple[ImageFile, ...]:
    """None where the folder is not there or empty: whoever calibrates will say so, who measures need not."""
    try:
        return find_images([folder], decode=False).images
    except DataError:
        return ()
