"""Segmentation: outputs are read as numpy's argmax reads them, and laid back where the picture was."""

from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.bundle.manifest import InputTensor
from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.cli.root import run
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import NO_CLASS, Frame, Geometry, Inferred, Prepared, Segmentation
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk.tasks.decoders import make_stage
from tests.support import models as tiny
from tests.support.bundles import FILES, edit_manifest, for_here, golden_file, make_manifest, write_bundle
from tests.support.program import Cli

SPEC = ModelSpec(
    model="m.onnx", name="m", task="segmentation", decoder="logits", labels="l.txt", input=InputSpec(size_wh=(64, 64))
)
IDS = msgspec.structs.replace(SPEC, decoder="argmax")
IDENTITY = Geometry(1.0, 1.0, 0.0, 0.0)


def _frame(width: int, height: int) -> Frame:
    return Frame(np.zeros((height, width, 3), np.uint8), 0, 0.0, 0, "camera")


def _inferred(output: np.ndarray, geometry: Geometry = IDENTITY, frame_wh: tuple[int, int] = (64, 64)) -> Inferred:
    return Inferred((output,), 5, Prepared(np.empty(0, np.float32), geometry, _frame(*frame_wh)))


def _segment(spec: ModelSpec, labels: int, output: np.ndarray, **where: Any) -> Segmentation:
    result = make_stage(spec, labels, [output.shape])(_inferred(output, **where))
    assert isinstance(result, Segmentation)
    assert result.inference_ns == 5
    return result


@pytest.mark.parametrize("last", [False, True])
def test_the_highest_score_is_the_class(last: bool) -> None:
    # Sizes around the 32768 cells that are read at a time; few levels, so that many scores are equal.
    for classes, rows, columns, dtype in [
        (2, 4, 6, np.float32),
        (21, 65, 65, np.float64),
        (255, 16, 16, np.float32),
        (5, 181, 182, np.float32),
        (4, 129, 254, np.float16),
        (2, 8, 4096, np.float32),
        (3, 256, 256, np.float32),
    ]:
        random = np.random.default_rng(classes)
        scores = random.integers(-9, 9, (2, classes, rows, columns)).astype(dtype)
        scores[random.random(scores.shape) < 0.1] = -np.inf
        shape = (1, rows, columns, classes) if last else (1, classes, rows, columns)
        task = make_stage(SPEC, classes, [shape])
        for picture in scores:  # the second one finds buffers that the first one has used
            output = np.ascontiguousarray(picture.transpose(1, 2, 0) if last else picture)[None]
            result = task(_inferred(output))
            assert isinstance(result, Segmentation)
            assert result.class_map.dtype == np.uint8
            np.testing.assert_array_equal(result.class_map, picture.argmax(axis=0))


def test_a_cell_with_a_score_that_is_no_number_has_no_class() -> None:
    for class_id in range(3):
        scores = np.zeros((1, 3, 64, 64), np.float32)
        scores[0, 1] = 1
        assert _segment(SPEC, 3, scores).is_finite
        scores[0, class_id, 3, 4] = np.nan
        result = _segment(SPEC, 3, scores)
        expected = np.ones((64, 64), np.uint8)
        expected[3, 4] = NO_CLASS
        np.testing.assert_array_equal(result.class_map, expected)
        assert result.shares == pytest.approx([0, 4095 / 4096, 0])
        assert not result.is_finite


@pytest.mark.parametrize(
    ("layout", "size_wh", "axis"), [("NCHW", (64, 64), 0), ("NHWC", (64, 64), 2), ("NHWC", (64, 128), 0)]
)
def test_where_both_axes_could_be_the_classes_proportions_and_then_the_layout_of_the_input_decide(
    layout: Any, size_wh: tuple[int, int], axis: int
) -> None:
    spec = msgspec.structs.replace(SPEC, input=InputSpec(size_wh=size_wh, layout=layout))
    scores = np.random.default_rng(0).random((1, 8, size_wh[1] // 8, 8), np.float32)
    np.testing.assert_array_equal(_segment(spec, 8, scores).class_map, scores[0].argmax(axis=axis))


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.int8, np.uint8, np.uint32])
def test_class_ids_that_no_label_has_are_no_class(dtype: type) -> None:
    limits = np.iinfo(dtype)
    wanted = [0, 2, 3, 120, 254, 255, 256, 257, 65536, limits.min, limits.max, -1, -254, -256]
    given = np.array([v for v in wanted if limits.min <= v <= limits.max], dtype)
    for shape in ((1, 64, 64), (1, 1, 64, 64)):
        ids = np.resize(given, shape)
        result = _segment(IDS, 3, ids)
        expected = np.where((ids >= 0) & (ids < 3), ids.astype(np.int64), NO_CLASS).reshape(64, 64)
        np.testing.assert_array_equal(result.class_map, expected)
        assert result.shares.sum() == pytest.approx((expected != NO_CLASS).mean())
        assert result.is_finite
    mask = np.zeros((1, 64, 64), np.bool_)
    mask[0, :16] = True
    assert _segment(IDS, 2, mask).shares == pytest.approx([0.75, 0.25])


def test_values_of_another_kind_are_refused() -> None:
    with pytest.raises(ModelError, match="decoder logits: output 0 is int64, expected float32"):
        _segment(SPEC, 3, np.zeros((1, 3, 8, 8), np.int64))
    with pytest.raises(ModelError, match="decoder argmax: output 0 is float32, expected integers"):
        _segment(IDS, 3, np.zeros((1, 1, 8, 8), np.float32))


def test_results_own_their_memory() -> None:
    ids = np.ones((1, 64, 64), np.uint8)
    for spec, output in ((IDS, ids), (SPEC, np.ones((1, 3, 64, 64), np.float32))):
        task = make_stage(spec, 3, [output.shape])
        first: Any = task(_inferred(output))
        before = first.class_map.tolist(), first.shares.tolist()
        output[...] = np.arange(64).reshape(64, 1) % 3
        output[:, :2] = 0
        task(_inferred(output))
        assert (first.class_map.tolist(), first.shares.tolist()) == before


def test_shares_are_of_the_picture_without_its_padding() -> None:
    # A frame of 128x64 in an input of 64x64 has 16 pixels of padding above and below: 2 of 8 rows of cells each.
    ids = np.zeros((1, 8, 8), np.int64)
    ids[0, 2:4] = 1
    ids[0, 4, :4] = 2
    result = _segment(IDS, 3, ids, geometry=Geometry(0.5, 0.5, 0.0, 16.0), frame_wh=(128, 64))
    assert result.geometry == Geometry(0.0625, 0.0625, 0.0, 2.0)
    assert result.shares.dtype == np.float32
    assert result.shares == pytest.approx([12 / 32, 16 / 32, 4 / 32])


def test_a_picture_thinner_than_a_cell_has_shares() -> None:
    for offset in (0.0, 0.2, 31.5, 63.9):
        ids = np.zeros((1, 8, 8), np.int64)
        ids[0, int(offset / 8)] = 1
        result = _segment(IDS, 2, ids, geometry=Geometry(0.064, 0.064, 0.0, offset), frame_wh=(1000, 1))
        assert result.shares.tolist() == [0, 1]
        assert (result.to_frame() == 1).all()


@pytest.mark.parametrize(
    ("columns", "size_wh", "geometry", "expected"),
    [
        (4, (6, 2), Geometry(4 / 6, 1.0, 0.0, 1.0), [[4, 5, 5, 6, 7, 7], [8, 9, 9, 10, 11, 11]]),  # padded
        (4, (6, 2), Geometry(1.0, 2.0, -1.0, 0.0), [[255, 4, 5, 6, 7, 255], [255, 12, 13, 14, 15, 255]]),  # cropped
        # 9 pixels on cells of 4: the third cell is half picture, half padding, and its centre is the padding's.
        (8, (9, 1), Geometry(0.25, 0.25, 0.0, 0.0), [[0, 0, 0, 0, 1, 1, 1, 1, 1]]),
    ],
)
def test_pixels_of_the_frame_by_hand(columns: int, size_wh: Any, geometry: Geometry, expected: Any) -> None:
    class_map = np.arange(16, dtype=np.uint8).reshape(-1, columns)
    result = Segmentation(_frame(*size_wh), 0, class_map, geometry, np.zeros(16, np.float32))
    assert result.to_frame().tolist() == expected


@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize(
    ("resize", "pad_anchor"),
    [("letterbox", "center"), ("letterbox", "top_left"), ("stretch", "center"), ("center_crop", "center")],
)
def test_every_pixel_gets_the_class_that_the_model_saw_there(resize: Any, pad_anchor: Any, stride: int) -> None:
    spec = InputSpec(size_wh=(256, 192), resize=resize, pad_value=255, pad_anchor=pad_anchor, crop_fraction=0.875)
    for width, height in ((320, 180), (180, 320), (97, 96), (641, 359)):
        # Tiles of 24 pixels, grey level 40 * class.
        tiles = np.random.default_rng(1).integers(0, 4, (height // 24 + 1, width // 24 + 1))
        classes = tiles.repeat(24, axis=0).repeat(24, axis=1)[:height, :width]
        image = np.repeat((classes * 40).astype(np.uint8)[..., None], 3, axis=2)
        prepared = Prepare(spec)(Frame(image, 0, 0.0, 0, "c"))
        # A model that says what it sees: the grey level of each cell, and for padding a fifth class.
        levels = prepared.tensor[:, 0, stride // 2 :: stride, stride // 2 :: stride]
        output = np.minimum(np.rint(levels / 40), 4).astype(np.int64)
        task = make_stage(msgspec.structs.replace(IDS, input=spec), 5, [output.shape])
        result: Any = task(Inferred((output,), 0, prepared))
        pixels = result.to_frame()
        seen = pixels != NO_CLASS
        unseen = 0.0
        if resize == "center_crop":
            unseen = 1 - 0.875**2 * min(width * 192, height * 256) / max(width * 192, height * 256)
        assert 1 - seen.mean() == pytest.approx(unseen, abs=0.02 if unseen else 0)
        margin = max(2, round(stride * max(width / 256, height / 192)))  # to the next tile
        x, y = (abs(np.arange(size) % 24 - 11.5) <= 11.5 - margin for size in (width, height))
        inner = seen & y[:, None] & x
        assert inner.any()
        np.testing.assert_array_equal(pixels[inner], classes[inner])
        assert (result.shares[4], result.shares.sum(), pixels[seen].max()) == (0, pytest.approx(1), 3)
        assert result.shares == pytest.approx(np.bincount(pixels[seen], minlength=5) / seen.sum(), abs=0.03)


# Segmenters in bundles, run and timed as a user does: scores, class ids, and one whose input are levels of 0-255.

SIDE = 32
LEVELS = {"dtype": "uint8", "layout": "NHWC", "color": "RGB"}


def _takes_levels() -> onnx.ModelProto:
    """Put a normalisation in front of the tiny segmenter."""
    graph = tiny.segmenter(SIDE).graph
    graph.node[0].input[0] = "normalised"
    front = [
        helper.make_node("Transpose", ["images"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["planes"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "factor"], ["normalised"]),
    ]
    weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer} | {"factor": np.array(1 / 255, np.float32)}
    outputs = {"scores": [1, 3, SIDE // 4, SIDE // 4]}
    return tiny.model([*front, *graph.node], [1, SIDE, SIDE, 3], outputs, weights, input_type=TensorProto.UINT8)


def _write(folder: Path, kind: str) -> Path:
    model = _takes_levels() if kind == "levels" else tiny.segmenter(SIDE, argmax=kind == "argmax")
    data = model.SerializeToString()
    files = {**FILES, "model.int8.ort": data, "labels.txt": b"background\nred\nblue\n"}
    manifest = for_here(make_manifest(files, side=SIDE))
    tensor = msgspec.convert(LEVELS, InputTensor) if kind == "levels" else None
    changes = {
        "task": "segmentation",
        "decoder": "argmax" if kind == "argmax" else "logits",
        "input": InputSpec(size_wh=(SIDE, SIDE), std=(255.0, 255.0, 255.0), pad_value=0),
        "variants": (msgspec.structs.replace(manifest.variants[0], tensor=tensor),),
    }
    image = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    prepare = Prepare.of(msgspec.structs.replace(manifest, **changes))
    [output] = Session(data, SessionSettings(), "m").run(prepare.normalise(image))
    files["golden.npz"] = golden_file((image, output))
    manifest = msgspec.structs.replace(manifest, files=make_manifest(files).files, **changes)
    return write_bundle(folder, manifest, files)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 128x64 pixels, so that there is padding: black, then the left half red, then the right quarter blue too."""
    folder = tmp_path_factory.mktemp("pictures")
    image = np.zeros((64, 128, 3), np.uint8)
    for number, (columns, bgr) in enumerate([(slice(0), 0), (slice(64), (0, 0, 255)), (slice(96, None), (255, 0, 0))]):
        image[:, columns] = bgr
        cv2.imwrite(str(folder / f"{number}.png"), image)
    return folder


@pytest.mark.parametrize("kind", ["logits", "argmax", "levels", "before tensors"])
def test_pictures_become_lines_of_shares(
    tmp_path: Path, pictures: Path, capsysbinary: pytest.CaptureFixture[bytes], kind: str
) -> None:
    bundle = _write(tmp_path / "tiny.edge", kind)
    if kind == "before tensors":  # a bundle that was built before manifests described the input tensor
        [variant] = msgspec.json.decode((bundle / "manifest.json").read_bytes())["variants"]
        del variant["tensor"]
        edit_manifest(bundle, variants=[variant])
    assert run(["run", str(bundle), "--source", str(pictures), "--annotate", str(tmp_path / "out.mp4")]) == 0
    results: list[dict[str, Any]] = [msgspec.json.decode(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [r["frame"] for r in results] == [{"width": 128, "height": 64}] * 3
    assert [[(s["label"], s["share"]) for s in r["segments"]] for r in results] == [
        [("background", 1.0)],
        [("background", 0.5), ("red", 0.5)],
        [("red", 0.5), ("background", 0.25), ("blue", 0.25)],
    ]
    assert cv2.VideoCapture(str(tmp_path / "out.mp4")).get(cv2.CAP_PROP_FRAME_COUNT) >= 3


@pytest.mark.parametrize(
    ("tensor", "code", "expected"),
    [
        (None, 7, "takes uint8 (1, 32, 32, 3), the manifest says float32 (1, 3, 32, 32); build the bundle again"),
        (LEVELS | {"dtype": "int16"}, 7, "tensor.dtype: 'int16', expected 'float32', 'int8' or 'uint8'"),
        (LEVELS | {"color": "GRAY"}, 7, "'model.int8.ort' takes GRAY pictures and input.color is RGB"),
        (LEVELS | {"color": "BGR"}, 6, "golden input 0 gives other results here"),
    ],
)
def test_a_manifest_that_describes_another_tensor_is_refused(
    tmp_path: Path, pictures: Path, cli: Cli, tensor: Any, code: int, expected: str
) -> None:
    bundle = _write(tmp_path / "a.edge", "levels")
    [variant] = msgspec.json.decode((bundle / "manifest.json").read_bytes())["variants"]
    edit_manifest(bundle, variants=[{**variant, "tensor": tensor}])
    captured = cli(code, "run", bundle, "--source", pictures)
    assert not captured.out
    assert expected in captured.err.splitlines()[-1]
