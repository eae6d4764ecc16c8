"""Masks: a class a pixel, read when asked for."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_sdk.errors import DataError
from edge_sdk_tools.dataset import IGNORE, Dataset, MaskTruth, read_dataset
from tests.support.projects import write_pictures

LABELS = ("road", "car", "sky")
IDS = np.resize(np.array([0, 1, 2, IGNORE], np.uint8), (40, 48))


def _png(ids: np.ndarray = IDS, mode: str = "L", **more: object) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(ids)
    if mode == "P":
        # Colours in an order that no conversion to grey levels could come back from.
        image.putpalette([(7 * i + c) % 256 for i in range(256) for c in (200, 90, 30)])
    elif mode != "L":
        image = image.convert(mode)
    image.save(buffer, "PNG", **more)
    return buffer.getvalue()


def _masks(folder: Path, data: bytes) -> Path:
    write_pictures(folder / "images", 1)
    (folder / "masks").mkdir()
    (folder / "masks" / "000.png").write_bytes(data)
    return folder


def _mask(dataset: Dataset) -> MaskTruth:
    assert dataset.truths is not None
    [truth] = dataset.truths
    assert isinstance(truth, MaskTruth)
    return truth


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (_png(), IDS),
        (_png(mode="P"), IDS),
        (_png(IDS % 3, mode="P", bits=2), IDS % 3),
        (_png(IDS % 2, bits=1, mode="P"), IDS % 2),
    ],
)
def test_masks_are_class_ids(tmp_path: Path, data: bytes, ids: np.ndarray) -> None:
    dataset = read_dataset(_masks(tmp_path, data), LABELS, "segmentation")
    mask = _mask(dataset).read()
    assert dataset.format == "masks"
    assert mask.dtype == np.uint8
    assert np.array_equal(mask, ids)


def test_masks_lie_as_their_images_do(tmp_path: Path) -> None:
    _masks(tmp_path, _png())
    write_pictures(tmp_path / "images" / "deep", 2, first=5)
    (tmp_path / "masks" / "deep").mkdir()
    (tmp_path / "masks" / "deep" / "006.png").write_bytes(_png())
    (tmp_path / "masks" / "007.png").write_bytes(_png())
    dataset = read_dataset(tmp_path, LABELS, "segmentation")
    assert [i.path.name for i in dataset.images.images] == ["000.png", "006.png"]
    assert [(s.path.name, s.reason) for s in dataset.images.skipped] == [
        ("005.png", "no mask of this name in masks/"),
        ("007.png", "no image of this name in images/"),
    ]


@pytest.mark.parametrize(("other", "conflicts"), [(IDS, 0), (IDS % 3, 1)])
def test_the_same_picture_with_another_mask_is_counted(tmp_path: Path, other: np.ndarray, conflicts: int) -> None:
    _masks(tmp_path, _png())
    (tmp_path / "images" / "copy.png").write_bytes((tmp_path / "images" / "000.png").read_bytes())
    (tmp_path / "masks" / "copy.png").write_bytes(_png(other))
    dataset = read_dataset(tmp_path, LABELS, "segmentation")
    assert (len(dataset), dataset.duplicates, dataset.conflicts) == (1, 1, conflicts)


def test_a_mask_of_another_size_leaves_its_image_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no usable images .*000\.png: 48x40 pixels, its labels were drawn on 40x48"):
        read_dataset(_masks(tmp_path, _png(IDS.T)), LABELS, "segmentation")


def _grey_of(bits: int) -> bytes:
    data = bytearray(_png())
    data[24] = bits
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (_png(mode="RGB"), "the mask holds RGB colours; expected a PNG of 8-bit grey levels or of palette indices"),
        (_png(mode="RGBA"), "the mask holds RGB colours with transparency; expected"),
        (_png(mode="LA"), "the mask holds grey levels with transparency; expected"),
        (_png(mode="I;16"), "the mask holds 16-bit grey levels; expected"),
        (_png(mode="1"), "the mask holds 1-bit grey levels; expected"),
        (_grey_of(4), "the mask holds 4-bit grey levels; expected"),
        (b"\xff\xd8\xff" + bytes(40), "the mask is no PNG; expected"),
        (b"", "the mask is no PNG; expected"),
        (_png()[:20], "the mask is no PNG; expected"),
        (_png()[:16] + struct.pack(">II", 40000, 40000) + _png()[24:], "the mask has 40000x40000 pixels, expected 67"),
    ],
)
def test_what_is_no_mask_is_refused_at_once(tmp_path: Path, data: bytes, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_dataset(_masks(tmp_path, data), LABELS, "segmentation")
    assert str(caught.value).startswith(f"{tmp_path / 'masks' / '000.png'}: {expected}")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (_png(IDS % 3 + 1), "the mask holds class 3, expected 0 to 2, or 255 for what does not count"),
        (_png()[:-30], "mask cannot be decoded; copy or export it again"),
    ],
)
def test_what_only_reading_can_show_is_refused_then(tmp_path: Path, data: bytes, expected: str) -> None:
    truth = _mask(read_dataset(_masks(tmp_path, data), LABELS, "segmentation"))
    with pytest.raises(DataError) as caught:
        truth.read()
    assert str(caught.value) == f"{truth.path}: {expected}"


def test_a_mask_that_goes_away_is_an_error(tmp_path: Path) -> None:
    truth = _mask(read_dataset(_masks(tmp_path, _png()), LABELS, "segmentation"))
    truth.path.unlink()
    with pytest.raises(DataError, match=r"000\.png: mask cannot be read: No such file"):
        truth.read()


def test_without_one_mask_there_is_nothing_to_measure(tmp_path: Path) -> None:
    _masks(tmp_path, _png())
    (tmp_path / "masks" / "000.png").rename(tmp_path / "masks" / "other.png")
    with pytest.raises(DataError, match=r"not one image has a mask, expected masks/NAME\.png for images/NAME\.jpg"):
        read_dataset(tmp_path, LABELS, "segmentation")
