"""Probes: the inputs on which a model is compared before and after its import.

Owns their choice. They differ as much as inputs can, so that a graph which kept one branch of several meets another:
constants, noise of several scales, pictures made here, and real images through the device's own prepare stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.dataset import ImageFile, ImageSet, find_images
from edge_sdk_tools.dataset.walk import is_folder

MAX_IMAGES = 16
_NOISE_SCALES = (0.1, 1.0, 10.0)


class Probe(msgspec.Struct, frozen=True, eq=False):
    """One input.

    Attributes:
        name: for people: `ones`, `noise x10`, or an image's file name.
        make: gives the input anew: float32 of model.toml's tensor shape, batch 1 unless the name says otherwise.
        is_image: whether it comes from a real image.
    """

    name: str
    make: Callable[[], Tensor]
    is_image: bool = False


def make_probes(spec: InputSpec, images: ImageSet, *, batch: bool = False) -> tuple[Probe, ...]:
    """Choose the probes of a model.

    Args:
        spec: the model's input.
        images: at most `MAX_IMAGES` of them are taken, evenly spread.
        batch: add one of two pictures at once.
    """
    shape = spec.tensor_shape
    numbers = [
        Probe("zeros", partial(np.zeros, shape, np.float32)),
        Probe("ones", partial(np.ones, shape, np.float32)),
        *(Probe(f"noise x{scale:g}", partial(_noise, shape, scale)) for scale in _NOISE_SCALES),
    ]
    pictures = [Probe(name, partial(_made_picture, spec, make)) for name, make in _PICTURES.items()]
    real = [
        Probe(image.path.name, partial(_real_picture, spec, image), is_image=True)
        for image in images.spread(MAX_IMAGES).images
    ]
    both = [Probe("batch of 2", partial(_two_pictures, spec))] if batch else []
    return (*numbers, *pictures, *real, *both)


def probe_images(spec: ModelSpec, folders: Sequence[Path]) -> ImageSet:
    """The real images to compare on: those of `folders`, else model.toml's calibration folder where it is there.

    Raises:
        DataError: when one of `folders` is not there or holds no image.
    """
    if folders:
        return find_images(folders)
    calibration = Path(spec.data.calibration) if spec.data.calibration else None
    return find_images([calibration]) if calibration and is_folder(calibration) else ImageSet(())


def _noise(shape: tuple[int, ...], scale: float) -> Tensor:
    noise: Tensor = np.random.default_rng(1).standard_normal(shape, np.float32) * np.float32(scale)
    return noise


def _made_picture(spec: InputSpec, make: Callable[[tuple[int, int, int]], Image]) -> Tensor:
    width, height = spec.size_wh
    return Prepare(spec).normalise(make((height, width, 3)))


def _real_picture(spec: InputSpec, image: ImageFile) -> Tensor:
    prepare = Prepare(spec)
    return prepare.normalise(prepare.resize(image.read()))


def _two_pictures(spec: InputSpec) -> Tensor:
    two: Tensor = np.concatenate([_made_picture(spec, _white), _made_picture(spec, _random_pixels)])
    return two


def _black(shape: tuple[int, int, int]) -> Image:
    return np.zeros(shape, np.uint8)


def _white(shape: tuple[int, int, int]) -> Image:
    return np.full(shape, 255, np.uint8)


def _random_pixels(shape: tuple[int, int, int]) -> Image:
    return np.random.default_rng(2).integers(0, 256, shape, np.uint8)


_PICTURES = {"black": _black, "white": _white, "random pixels": _random_pixels}
