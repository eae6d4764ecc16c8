"""Read labelled images by the table of formats, and split a build's images into those that calibrate, choose and claim.

The first format that is present and fits the task is read. No image content both calibrates and measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import DataError, UsageError
from edge_sdk.tasks.spec import TRAITS, Task, TaskSpec, has_background
from edge_sdk_tools.datasets.class_names import ClassNames
from edge_sdk_tools.datasets.dataset import ClassTruth, Dataset, Format, Found, Labelled, find_images, gather, no_images
from edge_sdk_tools.datasets.formats import FORMATS
from edge_sdk_tools.datasets.images import ImageSet, files_below, is_candidate, is_file, is_folder


def read_for(spec: TaskSpec, labels: Sequence[str], path: Path) -> Dataset:
    """Read a dataset for a model, as `read_dataset` does."""
    points = spec.detection.keypoints[0] if spec.detection.keypoints else 0
    return read_dataset(path, labels, spec.task, background_class=has_background(spec), keypoints=points)


def read_dataset(
    path: Path, labels: Sequence[str], task: Task, *, background_class: bool = False, keypoints: int = 0
) -> Dataset:
    """Read a dataset: images with their labels, if there are any; docs/data.md shows each format.

    `labels` are the model's in output order, with the background where `background_class` says that there is one, and
    must fit the dataset, as the task and the number of `keypoints` must. Images are not decoded, so reading one may
    still show that it is damaged. A DataError says with file and line what is invalid, or that no image is usable.
    """
    names = ClassNames(labels, background_class=background_class, keypoints=keypoints)
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
    wanted = TRAITS[task].truths
    fitting = [known for known in there if FORMATS[known].truths == wanted]
    if fitting:
        return fitting[0]
    if there:
        first = FORMATS[there[0]]
        signs = ", ".join(known.sign for known in FORMATS.values() if known.truths == wanted)
        expected = f"expected {wanted} ({signs}), or images without labels"
        raise DataError(f"{path}: holds {first.truths} ({first.sign}), but the model's task is {task}; {expected}")
    return "images"


def _formats(path: Path, names: ClassNames, task: Task) -> list[Format]:
    """Return the formats that are present."""
    if not is_folder(path):
        if not is_file(path):
            raise DataError(f"{path}: no such folder, or .json of COCO")
        if path.suffix.lower() != ".json":
            hint = "; give the folder that its val: names" if path.suffix.lower() in (".yaml", ".yml") else ""
            raise DataError(f"{path}: is a file, expected a folder of images or the .json of COCO{hint}")
        return ["coco"]
    # Class folders count only where classes are wanted: a folder `train` has the name of a class of COCO.
    return [
        name
        for name, known in FORMATS.items()
        if (name != "class folders" or TRAITS[task].truths == known.truths) and known.is_there(path, names)
    ]


MAX_CALIBRATION_IMAGES = 300
MAX_EVALUATION_IMAGES = 500

ENOUGH_TO_SPLIT = 200
"""Images from which one half chooses the recipe and the other makes the claim. Of fewer than a hundred one image is
more than 1 %, the default gate, so that a smaller half could neither hold the gate nor claim that it is held."""


class ImageSplit(msgspec.Struct, frozen=True):
    """The images of a build by their purpose.

    Attributes:
        found: number of images that were found for calibration.
        choice: by which recipes are judged.
        claim: on which what was chosen is measured; `choice` itself where there are few images.
        calibration_classes: the label of every calibration image; empty unless labels.csv or class folders label all.
        warnings: what to know about the split, each a line.
    """

    found: int
    calibration: ImageSet
    choice: Dataset
    claim: Dataset
    calibration_classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def has_claim(self) -> bool:
        """Whether the images of the claim chose nothing."""
        return self.claim is not self.choice


def split_images(
    spec: ModelSpec, labels: Sequence[str], calibration: Sequence[Path], evaluation: Sequence[Path]
) -> ImageSplit:
    """Choose images from the given folders, or else from those in model.toml.

    Without evaluation images every second of the calibration images measures where they have labels, class by class,
    and else every fourth. Of `ENOUGH_TO_SPLIT` images that measure, half make the claim. A UsageError says that no
    calibration images are given, a DataError that there are too few, or that every evaluation image calibrates too.
    """
    warnings: list[str] = []
    calibration = calibration or ([Path(spec.data.calibration)] if spec.data.calibration else [])
    evaluation = evaluation or ([Path(spec.data.evaluation)] if spec.data.evaluation else [])
    if not calibration:
        raise UsageError("no calibration images: give --calibration FOLDER or [data] calibration in model.toml")
    found = find_images(calibration)
    has_classes = TRAITS[spec.task].is_of_whole_picture
    labelled, unread = _labelled(spec, labels, calibration, found) if has_classes or not evaluation else (None, "")
    if evaluation:
        given = _read(spec, labels, evaluation)
        chosen, measuring = found, given.without(found)
        if not len(measuring):
            raise DataError(
                "every evaluation image is a calibration image too; give others with --evaluation, or leave it out: "
                "then the calibration images are split"
            )
        if len(measuring) < len(given):
            shared = f"{len(given) - len(measuring)} of {len(given)} evaluation images are calibration images too"
            warnings.append(f"{shared}: they calibrate, and {len(measuring)} measure")
    elif len(found) == 1:
        raise DataError(
            f"{', '.join(map(str, calibration))}: one image only ({found.images[0].path}; equal files count once), "
            "expected 2 or more: one calibrates, another measures"
        )
    elif labelled is not None and len(labelled) > 1:
        _, measuring = labelled.stratified_split(2)
        chosen = found.without(measuring.images)
    else:
        chosen, held_out = found.hold_out()
        measuring = Dataset(held_out, None, "images")
        warnings += [unread] if unread else []
    calibrating = chosen.spread(MAX_CALIBRATION_IMAGES)
    classes = _classes(labelled, labels[int(spec.classification.background_class) :], calibrating)
    parts = measuring.stratified_split(2) if len(measuring) >= ENOUGH_TO_SPLIT else [measuring]
    parts = [part.spread(MAX_EVALUATION_IMAGES) for part in parts]
    return ImageSplit(len(chosen), calibrating, parts[0], parts[-1], classes, tuple(warnings))


def _labelled(
    spec: ModelSpec, labels: Sequence[str], folders: Sequence[Path], found: ImageSet
) -> tuple[Dataset | None, str]:
    """Return the calibration images that have labels; None where there are none, and why they cannot be read."""
    try:
        dataset = _read(spec, labels, folders)
    except DataError as cause:
        what = "the labels of the calibration images are not read, and no figure is measured by them"
        return None, f"{what}: {cause}"
    known = {image.sha256 for image in found.images}
    places = [i for i, image in enumerate(dataset.images.images) if image.sha256 in known]
    return dataset.picked(places) if dataset.truths is not None else None, ""


def _classes(labelled: Dataset | None, labels: Sequence[str], images: ImageSet) -> tuple[str, ...]:
    """Return the labels of the images; empty where one is unknown, because calibration needs no labels."""
    truths = zip(labelled.images.images, labelled.truths or (), strict=True) if labelled else ()
    known = {image.sha256: labels[truth.class_id] for image, truth in truths if isinstance(truth, ClassTruth)}
    found = tuple(known[image.sha256] for image in images.images if image.sha256 in known)
    return found if len(found) == len(images) else ()


def _read(spec: ModelSpec, labels: Sequence[str], folders: Sequence[Path]) -> Dataset:
    if len(folders) > 1:
        return Dataset(find_images(folders, decode=False), None, "images")
    return read_for(spec, labels, folders[0])
