"""What a picture is, and the words for what is none."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import CameraError, UsageError

Image: TypeAlias = NDArray[np.uint8]
"""uint8 (H, W, 3), BGR, 0-255: what cameras and OpenCV deliver."""

_EXPECTED = "expected a numpy array of uint8 (height, width, 3), BGR, of one pixel at least"


def check_image(image: object) -> None:
    """Refuse what is no picture, whoever's source it comes from. Strides may be any: OpenCV copies what it must.

    Raises:
        CameraError: it is none.
    """
    found = _misfit_of(image)
    if found is not None:
        raise CameraError(f"the source gave a frame whose image is {found}, {_EXPECTED}; convert it in the source")


def as_picture(image: NDArray[Any] | None) -> Image:
    """What a program gave for a picture, itself; of what is none it says how it becomes one.

    Raises:
        UsageError: it is none.
    """
    found = _misfit_of(image)
    if found is not None:
        raise UsageError(f"the picture is {found}, {_EXPECTED}; {_way_of(image)}")
    return cast("Image", image)


def _misfit_of(image: object) -> str | None:
    if not isinstance(image, np.ndarray):
        return type(image).__name__
    is_picture = image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size
    return None if is_picture else f"{image.dtype} {image.shape}"


def _way_of(image: object) -> str:
    """From what was given to a picture."""
    if image is None:
        return "cv2.imread gives None where there is no file that it can read"
    if not isinstance(image, np.ndarray):
        return "cv2.imread(path) reads one from a file, numpy.asarray makes an array of what can be one"
    if not image.size:
        return "it has no pixels"
    if image.dtype != np.uint8:
        return "bring it to 0-255, then .astype(numpy.uint8)"
    if image.ndim == 2 or image.shape[2:] == (1,):
        return "cv2.cvtColor(image, cv2.COLOR_GRAY2BGR) makes three channels of one"
    if image.shape[2:] == (4,):
        return "cv2.cvtColor(image, cv2.COLOR_BGRA2BGR) leaves the fourth channel out; of RGBA COLOR_RGBA2BGR does"
    return "one picture at a time, its channels last"
