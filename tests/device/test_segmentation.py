"""Segmentation: outputs are read as numpy's argmax reads them, and laid back where the picture was."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from edge_sdk.errors import ModelError
from edge_sdk.frame import NO_CLASS, Frame, Geometry, Inferred, Prepared, Segmentation
from edge_sdk.model_spec import InputSpec, ModelSpec
from edge_sdk.prepare import Prepare
from edge_sdk.tasks import make_task

SPEC = ModelSpec(
    model="m.onnx",
    name="m",
    task="segmentation",
    decoder="logits",
    labels="l.txt",
    input=InputSpec(size_wh=(64, 64)),
)
IDS = msgspec.structs.replace(SPEC, decoder="argmax")
IDENTITY = Geometry(1.0, 1.0, 0.0, 0.0)


def _segment(
    spec: ModelSpec,
    labels: int,
    output: np.ndarray,
    *,
    geometry: Geometry = IDENTITY,
    frame_wh: tuple[int, int] = (64, 64),
) -> Segmentation:
    frame = Frame(np.zeros((frame_wh[1], frame_wh[0], 3), np.uint8), 0, 0.0, 0, "camera")
    inferred = Inferred((output,), 5, Prepared(np.empty(0, np.float32), geometry, frame))
    result = make_task(spec, labels, [output.shape])(inferred)
    assert isinstance(result, Segmentation)
    assert result.inference_ns == 5
    return result


@pytest.mark.parametrize(
    ("classes", "rows", "columns"),
    [(2, 4, 6), (3, 8, 8), (21, 65, 65), (255, 16, 16), (5, 181, 182), (4, 129, 254), (2, 8, 4096), (3, 256, 256)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("last", [False, True])
def test_the_highest_score_is_the_class(classes: int, rows: int, columns: int, dtype: type, last: bool) -> None:
    # Sizes around the 32768 cells that are read at a time; few levels, so that many scores are equal.
    random = np.random.default_rng(classes)
    scores = random.integers(-9, 9, (2, classes, rows, columns)).astype(dtype)
    scores[random.random(scores.shape) < 0.1] = -np.inf
    shape = (1, rows, columns, classes) if last else (1, classes, rows, columns)
    task = make_task(SPEC, classes, [shape])
    for picture in scores:  # the second one finds buffers that the first one has used
        output = np.ascontiguousarray(picture.transpose(1, 2, 0) if last else picture)[None]
        result = task(Inferred((output,), 0, Prepared(output, IDENTITY, Frame(_black(64, 64), 0, 0.0, 0, "c"))))
        assert isinstance(result, Segmentation)
        assert result.class_map.dtype == np.uint8
        np.testing.assert_array_equal(result.class_map, picture.argmax(axis=0))


def _black(width: int, height: int) -> np.ndarray:
    return np.zeros((height, width, 3), np.uint8)


@pytest.mark.parametrize("class_id", [0, 1, 2])
def test_a_cell_with_a_score_that_is_no_number_has_no_class(class_id: int) -> None:
    scores = np.zeros((1, 3, 64, 64), np.float32)
    scores[0, 1] = 1
    scores[0, class_id, 3, 4] = np.nan
    result = _segment(SPEC, 3, scores)
    expected = np.ones((64, 64), np.uint8)
    expected[3, 4] = NO_CLASS
    np.testing.assert_array_equal(result.class_map, expected)
    assert result.shares == pytest.approx([0, 4095 / 4096, 0])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_where_both_axes_could_be_the_classes_the_layout_of_the_input_decides(layout: Any) -> None:
    spec = msgspec.structs.replace(SPEC, input=InputSpec(size_wh=(64, 64), layout=layout))
    scores = np.random.default_rng(0).random((1, 8, 8, 8), np.float32)
    expected = scores[0].argmax(axis=0 if layout == "NCHW" else 2)
    np.testing.assert_array_equal(_segment(spec, 8, scores).class_map, expected)


def test_the_proportions_of_the_input_decide_first() -> None:
    spec = msgspec.structs.replace(SPEC, input=InputSpec(size_wh=(64, 128), layout="NHWC"))
    scores = np.random.default_rng(0).random((1, 8, 16, 8), np.float32)
    np.testing.assert_array_equal(_segment(spec, 8, scores).class_map, scores[0].argmax(axis=0))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint32])
@pytest.mark.parametrize("shape", [(1, 64, 64), (1, 1, 64, 64)])
def test_class_ids_that_no_label_has_are_no_class(dtype: type, shape: tuple[int, ...]) -> None:
    limits = np.iinfo(dtype)
    wanted = [0, 2, 3, 120, 254, 255, 256, 257, 65536, limits.min, limits.max, -1, -254, -256]
    given = np.array([v for v in wanted if limits.min <= v <= limits.max], dtype)
    ids = np.resize(given, shape)
    result = _segment(IDS, 3, ids)
    expected = np.where((ids >= 0) & (ids < 3), ids.astype(np.int64), NO_CLASS).reshape(64, 64)
    np.testing.assert_array_equal(result.class_map, expected)
    assert result.shares.sum() == pytest.approx((expected != NO_CLASS).mean())


def test_booleans_are_two_classes() -> None:
    mask = np.zeros((1, 64, 64), np.bool_)
    mask[0, :16] = True
    assert _segment(IDS, 2, mask).shares == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    ("spec", "output", "expected"),
    [
        (SPEC, np.zeros((1, 3, 8, 8), np.int64), "decoder logits: output 0 is int64, expected float32"),
        (SPEC, np.zeros((1, 8, 8, 3), np.uint8), "decoder logits: output 0 is uint8, expected float32"),
        (IDS, np.zeros((1, 1, 8, 8), np.float32), "decoder argmax: output 0 is float32, expected integers"),
    ],
)
def test_values_of_another_kind_are_refused(spec: ModelSpec, output: np.ndarray, expected: str) -> None:
    with pytest.raises(ModelError) as caught:
        _segment(spec, 3, output)
    assert str(caught.value).startswith(expected)


def test_results_own_their_memory() -> None:
    ids = np.ones((1, 64, 64), np.uint8)
    for spec, output in ((IDS, ids), (SPEC, np.ones((1, 3, 64, 64), np.float32))):
        task = make_task(spec, 3, [output.shape])
        inferred = Inferred((output,), 0, Prepared(output, IDENTITY, Frame(_black(64, 64), 0, 0.0, 0, "c")))
        first = task(inferred)
        assert isinstance(first, Segmentation)
        before = first.class_map.copy(), first.shares.copy()
        output[...] = np.arange(64).reshape(64, 1) % 3
        output[:, :2] = 0
        task(inferred)
        np.testing.assert_array_equal(first.class_map, before[0])
        np.testing.assert_array_equal(first.shares, before[1])


def test_shares_are_of_the_picture_without_its_padding() -> None:
    # A frame of 128x64 in an input of 64x64 has 16 pixels of padding above and below: 2 of 8 rows of cells each.
    ids = np.zeros((1, 8, 8), np.int64)
    ids[0, 2:4] = 1
    ids[0, 4, :4] = 2
    result = _segment(IDS, 3, ids, geometry=Geometry(0.5, 0.5, 0.0, 16.0), frame_wh=(128, 64))
    assert result.geometry == Geometry(0.0625, 0.0625, 0.0, 2.0)
    assert result.shares.dtype == np.float32
    assert result.shares == pytest.approx([12 / 32, 16 / 32, 4 / 32])


@pytest.mark.parametrize("offset", [0.0, 0.2, 31.5, 63.9])
def test_a_picture_thinner_than_a_cell_has_shares(offset: float) -> None:
    ids = np.zeros((1, 8, 8), np.int64)
    ids[0, int(offset / 8)] = 1
    result = _segment(IDS, 2, ids, geometry=Geometry(0.064, 0.064, 0.0, offset), frame_wh=(1000, 1))
    assert result.shares.tolist() == [0, 1]
    assert (result.to_frame() == 1).all()


def test_the_last_row_of_pixels_is_never_of_a_cell_of_padding() -> None:
    # 10 pixels on cells of 4: the third cell is half picture, half padding, and its centre is the padding's.
    class_map = np.array([[0, 1, 2, 2]], np.uint8).repeat(4, axis=0)
    frame = Frame(_black(9, 16), 0, 0.0, 0, "c")
    result = Segmentation(frame, 0, class_map, Geometry(0.25, 0.25, 0.0, 0.0), np.zeros(3, np.float32))
    assert result.to_frame()[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]


def test_pixels_of_the_frame_by_hand() -> None:
    class_map = np.arange(16, dtype=np.uint8).reshape(4, 4)
    frame = Frame(_black(6, 2), 0, 0.0, 0, "c")
    shares = np.zeros(16, np.float32)
    padded = Segmentation(frame, 0, class_map, Geometry(4 / 6, 1.0, 0.0, 1.0), shares)
    assert padded.to_frame().tolist() == [[4, 5, 5, 6, 7, 7], [8, 9, 9, 10, 11, 11]]
    cropped = Segmentation(frame, 0, class_map, Geometry(1.0, 2.0, -1.0, 0.0), shares)
    assert cropped.to_frame().tolist() == [[255, 4, 5, 6, 7, 255], [255, 12, 13, 14, 15, 255]]


def _tiled_frame(width: int, height: int) -> tuple[Frame, np.ndarray]:
    """A frame of tiles of 24 pixels, grey level 40 * class; and the class of each pixel."""
    tiles = np.random.default_rng(1).integers(0, 4, (height // 24 + 1, width // 24 + 1))
    classes = tiles.repeat(24, axis=0).repeat(24, axis=1)[:height, :width]
    image = np.repeat((classes * 40).astype(np.uint8)[..., None], 3, axis=2)
    return Frame(image, 0, 0.0, 0, "c"), classes


def _inside_tiles(width: int, height: int, margin: int) -> np.ndarray:
    """Pixels at least `margin` away from the next tile."""
    x, y = (np.arange(size) % 24 for size in (width, height))
    good_x, good_y = ((v >= margin) & (v < 24 - margin) for v in (x, y))
    return np.asarray(good_y[:, None] & good_x[None, :])


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize(("width", "height"), [(320, 180), (180, 320), (97, 96), (641, 359)])
@pytest.mark.parametrize("resize", ["letterbox", "stretch", "center_crop"])
@pytest.mark.parametrize("pad_anchor", ["center", "top_left"])
def test_every_pixel_gets_the_class_that_the_model_saw_there(
    resize: Any, pad_anchor: Any, width: int, height: int, stride: int
) -> None:
    spec = InputSpec(size_wh=(256, 192), resize=resize, pad_value=255, pad_anchor=pad_anchor, crop_fraction=0.875)
    frame, classes = _tiled_frame(width, height)
    prepared = Prepare(spec)(frame)
    # A model that says what it sees: the grey level of each cell, and for padding a fifth class.
    levels = prepared.tensor[:, 0, stride // 2 :: stride, stride // 2 :: stride]
    output = np.minimum(np.rint(levels / 40), 4).astype(np.int64)
    task = make_task(msgspec.structs.replace(IDS, input=spec), 5, [output.shape])
    result = task(Inferred((output,), 0, prepared))
    assert isinstance(result, Segmentation)
    pixels = result.to_frame()
    assert pixels.shape == classes.shape
    seen = pixels != NO_CLASS
    if resize == "center_crop":
        unseen = 1 - 0.875**2 * min(width * 192, height * 256) / max(width * 192, height * 256)
        assert 1 - seen.mean() == pytest.approx(unseen, abs=0.02)
    else:
        assert seen.all()
    inner = _inside_tiles(width, height, margin=max(2, round(stride * max(width / 256, height / 192))))
    assert (seen & inner).any()
    np.testing.assert_array_equal(pixels[seen & inner], classes[seen & inner])
    assert result.shares[4] == 0
    assert (pixels != 4).all()
    assert result.shares.sum() == pytest.approx(1)
    shown = np.bincount(pixels[seen], minlength=5) / seen.sum()
    assert result.shares == pytest.approx(shown, abs=0.03)
