"""Which images calibrate a build and which measure it: no content does both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.errors import DataError, UsageError
from edge_sdk.model_spec import ModelSpec
from edge_sdk_tools.dataset import Dataset, ImageSet, find_images, read_dataset

MAX_CALIBRATION_IMAGES = 300
MAX_EVALUATION_IMAGES = 500


class ImageSplit(msgspec.Struct, frozen=True):
    """The two sets.

    Attributes:
        found: how many could have calibrated.
        calibration: what sets the scales of the INT8 model.
        evaluation: what measures, labelled or not.
    """

    found: int
    calibration: ImageSet
    evaluation: Dataset


def split_images(
    spec: ModelSpec, labels: Sequence[str], calibration: Sequence[Path], evaluation: Sequence[Path]
) -> ImageSplit:
    """Choose images of the folders given, or else of model.toml's; without evaluation images every fourth measures.

    Args:
        spec: says where images are when no folder is given.
        labels: of the model, in output order.
        calibration: folders of images.
        evaluation: folders of images; a single one may be labelled in any way that `read_dataset` knows.

    Raises:
        UsageError: nothing to calibrate with is named.
        DataError: there are too few images, or the two sets are the same.
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
        raise DataError(f"{found.images[0].path}: one image only, expected 2 or more: one calibrates, another measures")
    else:
        chosen, held_out = found.hold_out()
        measuring = Dataset(held_out, None, "images")
    return ImageSplit(len(chosen), chosen.spread(MAX_CALIBRATION_IMAGES), measuring.spread(MAX_EVALUATION_IMAGES))


def _read(spec: ModelSpec, labels: Sequence[str], folders: Sequence[Path]) -> Dataset:
    if len(folders) > 1:
        return Dataset(find_images(folders, decode=False), None, "images")
    return read_dataset(folders[0], labels, spec.task, background_class=bool(spec.classification.background_class))
