"""Split images into those that calibrate a build and those that measure it; no image content does both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import DataError, UsageError
from edge_sdk_tools.datasets.dataset import ClassTruth, Dataset
from edge_sdk_tools.datasets.finding import find_images
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.datasets.reading import read_dataset

MAX_CALIBRATION_IMAGES = 300
MAX_EVALUATION_IMAGES = 500


class ImageSplit(msgspec.Struct, frozen=True):
    """The calibration images and the evaluation images of a build.

    Attributes:
        found: number of images that were found for calibration.
        calibration: the images that set the scales of the INT8 model.
        evaluation: the images to measure on, with or without labels.
        calibration_classes: the label of every calibration image; empty unless labels.csv or class folders label all.
    """

    found: int
    calibration: ImageSet
    evaluation: Dataset
    calibration_classes: tuple[str, ...] = ()


def split_images(
    spec: ModelSpec, labels: Sequence[str], calibration: Sequence[Path], evaluation: Sequence[Path]
) -> ImageSplit:
    """Choose images from the given folders, or else from those in model.toml.

    Without evaluation images every fourth calibration image is held out for evaluation.

    Raises:
        UsageError: no calibration images are given.
        DataError: there are too few images, or every evaluation image is a calibration image too.
    """
    calibration = calibration or ([Path(spec.data.calibration)] if spec.data.calibration else [])
    evaluation = evaluation or ([Path(spec.data.evaluation)] if spec.data.evaluation else [])
    if not calibration:
        raise UsageError("no calibration images: give --calibration FOLDER or [data] calibration in model.toml")
    found = find_images(calibration)
    if evaluation:
        chosen, measuring = found, _read(spec, labels, evaluation).without(found)
        if not len(measuring):
            raise DataError("every evaluation image is a calibration image too; give others with --evaluation")
    elif len(found) == 1:
        raise DataError(
            f"{', '.join(map(str, calibration))}: one image only ({found.images[0].path}; equal files count once), "
            "expected 2 or more: one calibrates, another measures"
        )
    else:
        chosen, held_out = found.hold_out()
        measuring = Dataset(held_out, None, "images")
    calibrating = chosen.spread(MAX_CALIBRATION_IMAGES)
    classes = _classes(spec, labels, calibration, calibrating) if spec.task == "classification" else ()
    return ImageSplit(len(chosen), calibrating, measuring.spread(MAX_EVALUATION_IMAGES), classes)


def _classes(spec: ModelSpec, labels: Sequence[str], folders: Sequence[Path], images: ImageSet) -> tuple[str, ...]:
    """Return the labels of the images; empty where one is unknown or wrong, because calibration needs no labels."""
    first = int(spec.classification.background_class)
    known: dict[str, str] = {}
    for folder in folders:
        try:
            dataset = _read(spec, labels, [folder])
        except DataError:
            return ()
        for image, truth in zip(dataset.images.images, dataset.truths or (), strict=False):
            if isinstance(truth, ClassTruth):
                known[image.sha256] = labels[truth.class_id + first]
    found = tuple(known[image.sha256] for image in images.images if image.sha256 in known)
    return found if len(found) == len(images) else ()


def _read(spec: ModelSpec, labels: Sequence[str], folders: Sequence[Path]) -> Dataset:
    if len(folders) > 1:
        return Dataset(find_images(folders, decode=False), None, "images")
    return read_dataset(folders[0], labels, spec.task, background_class=bool(spec.classification.background_class))
