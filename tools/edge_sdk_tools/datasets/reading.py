"""Read labelled images: a table lists the formats, and the first one that is present and fits the task is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets import class_folders, yolo
from edge_sdk_tools.datasets.class_names import ClassNames
from edge_sdk_tools.datasets.coco import coco_files, read_coco
from edge_sdk_tools.datasets.dataset import Dataset, Format
from edge_sdk_tools.datasets.finding import Found, Labelled, gather, no_images
from edge_sdk_tools.datasets.images import ImageSet, files_below, is_candidate, is_file, is_folder


class LabelFormat(NamedTuple):
    """One format of labels.

    Attributes:
        task: the task that the labels are for.
        sign: what the format is recognised by, in words.
        is_there: returns whether a folder has this format.
        read: reads the images and labels of a folder.
    """

    task: Task
    sign: str
    is_there: Callable[[Path, ClassNames], bool]
    read: Callable[[Path, ClassNames], Labelled]


def _has_folders(folder: Path, *names: str) -> bool:
    return all(is_folder(folder / name) for name in names)


FORMATS: dict[Format, LabelFormat] = {
    "labels.csv": LabelFormat(
        "classification",
        "labels.csv",
        lambda folder, _: is_file(folder / class_folders.NAME),
        class_folders.read_labels_csv,
    ),
    "class folders": LabelFormat(
        "classification", "a folder a class", class_folders.are_class_folders, class_folders.read_class_folders
    ),
    "coco": LabelFormat("detection", "a COCO .json", lambda folder, _: bool(coco_files(folder)), read_coco),
    "yolo": LabelFormat(
        "detection",
        "images/ beside labels/",
        lambda folder, _: _has_folders(folder, yolo.IMAGES, yolo.LABELS),
        yolo.read_yolo,
    ),
    "masks": LabelFormat(
        "segmentation",
        "images/ beside masks/",
        lambda folder, _: _has_folders(folder, yolo.IMAGES, yolo.MASKS),
        yolo.read_masks,
    ),
}
"""All formats, in the order in which they are tried."""

_KIND: dict[Task, str] = {"classification": "classes", "detection": "boxes", "segmentation": "masks"}


def read_dataset(path: Path, labels: Sequence[str], task: Task, *, background_class: bool = False) -> Dataset:
    """Read a dataset: images with their labels, if there are any.

    Images are not decoded here, so reading one later may still show that it is damaged.

    Args:
        path: a folder, or a COCO .json; docs/data.md shows each format.
        labels: labels of the model in output order, with the background where there is one.
        task: the task of the model, which must fit the labels of the dataset.
        background_class: whether the first label is "background", which does not count as a class.

    Raises:
        DataError: the dataset is invalid or has no usable image; the message names file, line and what was expected.
    """
    names = ClassNames(labels, background_class=background_class)
    chosen = _choose(path, names, task)
    if chosen == "images":
        labelled = Labelled([Found(file) for file in filter(is_candidate, files_below(path))])
    else:
        labelled = FORMATS[chosen].read(path, names)
    dataset = gather(labelled.found, chosen, decode=False)
    skipped = tuple(sorted((*labelled.skipped, *dataset.images.skipped), key=lambda s: s.path))
    if not dataset.images:
        raise no_images(str(path), skipped)
    return msgspec.structs.replace(dataset, images=ImageSet(dataset.images.images, skipped))


def _choose(path: Path, names: ClassNames, task: Task) -> Format:
    """Return the first format that is present and fits the task; plain images where there are no labels at all."""
    there = _formats(path, names, task)
    fitting = [known for known in there if FORMATS[known].task == task]
    if fitting:
        return fitting[0]
    if there:
        first = FORMATS[there[0]]
        wanted = ", ".join(known.sign for known in FORMATS.values() if known.task == task)
        raise DataError(
            f"{path}: holds {_KIND[first.task]} ({first.sign}), but the model's task is {task}; expected {_KIND[task]} "
            f"({wanted}), or images without labels"
        )
    return "images"


def _formats(path: Path, names: ClassNames, task: Task) -> list[Format]:
    """Return the formats that are present.

    Class folders are tried only for classification, because a folder `train` is also the name of a class of COCO.
    """
    if not is_folder(path):
        if not is_file(path):
            raise DataError(f"{path}: no such folder, or .json of COCO")
        if path.suffix.lower() != ".json":
            raise DataError(f"{path}: is a file, expected a folder of images or the .json of COCO")
        return ["coco"]
    return [
        name
        for name, known in FORMATS.items()
        if (name != "class folders" or task == known.task) and known.is_there(path, names)
    ]
