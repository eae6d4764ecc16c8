"""Labelled images in: tells the formats apart.

Owns the choice of the format, and which formats hold what a task needs. What is in them is read by their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk.tasks.spec import Task
from edge_sdk_tools.datasets import class_folders, yolo
from edge_sdk_tools.datasets.class_folders import are_class_folders, read_class_folders
from edge_sdk_tools.datasets.class_names import ClassNames
from edge_sdk_tools.datasets.coco import coco_files, read_coco
from edge_sdk_tools.datasets.dataset import Dataset, Format
from edge_sdk_tools.datasets.finding import Found, Labelled, gather, no_images
from edge_sdk_tools.datasets.images import ImageSet, files_below, is_candidate, is_file, is_folder

_OF_TASK: dict[Task, tuple[Format, ...]] = {
    "classification": ("labels.csv", "class folders"),
    "detection": ("coco", "yolo"),
    "segmentation": ("masks",),
}
"""What a task needs, in the order in which it is looked for."""

_READERS: dict[Format, Callable[[Path, ClassNames], Labelled]] = {
    "images": lambda folder, _names: Labelled([Found(path) for path in filter(is_candidate, files_below(folder))]),
    "labels.csv": class_folders.read_labels_csv,
    "class folders": read_class_folders,
    "coco": read_coco,
    "yolo": yolo.read_yolo,
    "masks": yolo.read_masks,
}

_KIND: dict[Task, str] = {"classification": "classes", "detection": "boxes", "segmentation": "masks"}

_SIGNS: dict[Format, str] = {
    "labels.csv": "labels.csv",
    "class folders": "a folder a class",
    "coco": "a COCO .json",
    "yolo": "images/ beside labels/",
    "masks": "images/ beside masks/",
}


def read_dataset(path: Path, labels: Sequence[str], task: Task, *, background_class: bool = False) -> Dataset:
    """Read images and what is known of them.

    Nothing is decoded: whoever reads an image may still find it damaged.

    Args:
        path: a folder, or the .json of COCO; docs/data.md shows each format.
        labels: of the model, in output order, with the background where there is one.
        task: what the model does, and so which labels make sense.
        background_class: the first label is "background", which is no class.

    Raises:
        DataError: when something is wrong with it, or holds no usable image; it names file, line and what was expected.
    """
    names = ClassNames(labels, background_class=background_class)
    chosen = _choose(path, names, task)
    labelled = _READERS[chosen](path, names)
    dataset = gather(labelled.found, chosen, decode=False)
    skipped = tuple(sorted((*labelled.skipped, *dataset.images.skipped), key=lambda s: s.path))
    if not dataset.images:
        raise no_images(str(path), skipped)
    return msgspec.structs.replace(dataset, images=ImageSet(dataset.images.images, skipped))


def _choose(path: Path, names: ClassNames, task: Task) -> Format:
    """The first format that is there and fits the task; plain images where there is no label at all."""
    there = _formats(path, names if task == "classification" else None)
    fitting = [known for known in _OF_TASK[task] if known in there]
    if fitting:
        return fitting[0]
    if there:
        kind = next(_KIND[other] for other, formats in _OF_TASK.items() if there[0] in formats)
        wanted = ", ".join(_SIGNS[known] for known in _OF_TASK[task])
        raise DataError(
            f"{path}: holds {kind} ({_SIGNS[there[0]]}), but the model's task is {task}; expected {_KIND[task]} "
            f"({wanted}), or images without labels"
        )
    return "images"


def _formats(path: Path, names: ClassNames | None) -> list[Format]:
    """What is there; class folders are looked for only where `names` are given: `train` is a class of COCO too."""
    if not is_folder(path):
        if not is_file(path):
            raise DataError(f"{path}: no such folder, or .json of COCO")
        if path.suffix.lower() != ".json":
            raise DataError(f"{path}: is a file, expected a folder of images or the .json of COCO")
        return ["coco"]
    has_images = is_folder(path / yolo.IMAGES)
    signs: dict[Format, bool] = {
        "labels.csv": is_file(path / class_folders.NAME),
        "coco": bool(coco_files(path)),
        "yolo": has_images and is_folder(path / yolo.LABELS),
        "masks": has_images and is_folder(path / yolo.MASKS),
        "class folders": names is not None and are_class_folders(path, names),
    }
    return [known for known, is_there in signs.items() if is_there]
