"""Calibration: what every tensor holds is counted in one pass, and every way to a range reads the same counts."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from edge_sdk.errors import DataError, ModelError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.prepare import Prepare
from edge_sdk_tools.dataset import find_images
from edge_sdk_tools.quantize import CALIBRATIONS, Activations, Calibration, simplify, watch_activations
from edge_sdk_tools.quantize.activations import every_of
from edge_sdk_tools.quantize.histogram import Histogram
from edge_sdk_tools.quantize.ranges import range_of
from tests.device import tiny
from tests.host.projects import CLASSIFIER, write_project

RANDOM = np.random.default_rng(11)


def _histogram(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part.astype(np.float32))
    return histogram


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(size=200_000),
        np.maximum(RANDOM.normal(1, 3, size=200_000), 0),
        RANDOM.lognormal(sigma=2, size=200_000) - 1,
        -RANDOM.random(200_000) * 1e-3,
    ],
    ids=["normal", "relu", "skewed", "negative"],
)
@pytest.mark.parametrize("share", [0.9, 0.999, 0.99999])
def test_the_span_is_that_of_the_sorted_values(values: np.ndarray, share: float) -> None:
    values = values.astype(np.float32)
    histogram = _histogram(*np.array_split(values, 7))
    low, high = histogram.spanned(share)
    cut, ordered = round((1 - share) / 2 * len(values)), np.sort(values)
    assert histogram.total == len(values)
    assert (histogram.low, histogram.high) == (values.min(), values.max())
    for got, place in ((low, cut), (high, len(values) - 1 - cut)):  # bins are 0.8 % wide
        about = ordered[max(0, place - 1) : place + 2]
        slack = 0.008 * np.abs(about).max() + 1e-12
        assert about.min() - slack <= got <= about.max() + slack
    assert histogram.low <= low <= high <= histogram.high


def test_ranges_are_no_round_numbers() -> None:
    """Scales with simple ratios make sums that lie half-way between two integers, which CPUs round differently."""
    ends = np.array(_histogram(RANDOM.normal(size=50_000)).spanned(0.999), np.float32)
    assert (ends.view(np.uint32) & 0xFFFF).all()


def test_the_order_of_images_changes_nothing() -> None:
    parts = np.array_split(RANDOM.normal(size=5000), 9)
    one, other = _histogram(*parts), _histogram(*parts[::-1])
    assert [range_of(one, c) for c in CALIBRATIONS] == [range_of(other, c) for c in CALIBRATIONS]


def test_other_bins_hold_the_same_values() -> None:
    values = RANDOM.normal(size=100_000)
    histogram = _histogram(values)
    edges = np.linspace(histogram.low, histogram.high, 21)
    expected = np.histogram(values, edges)[0]
    assert histogram.linear(edges) == pytest.approx(expected, abs=0.02 * len(values) / 20 + 60)
    assert histogram.linear(edges).sum() == pytest.approx(len(values))


def test_entropy_cuts_a_few_outliers_and_keeps_what_is_even() -> None:
    outliers = np.concatenate([RANDOM.normal(size=200_000), [80.0, -60.0]])
    low, high = range_of(_histogram(outliers), "entropy")
    assert -16 < low < -2.5
    assert 2.5 < high < 16
    even = RANDOM.random(200_000) * 4 - 2
    assert range_of(_histogram(even), "entropy") == pytest.approx((-2, 2), abs=0.05)


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize("value", [0.0, 3.25, -7.5])
def test_a_constant_has_its_own_range(calibration: Calibration, value: float) -> None:
    assert range_of(_histogram(np.full(100, value)), calibration) == (value, value)


def _watched(folder: Path, model: onnx.ModelProto | None = None, *, symmetric: bool = True) -> Activations:
    spec = load_model_spec(write_project(folder, CLASSIFIER, model))
    (folder / "work").mkdir()
    simplified = simplify(onnx.load(spec.model), folder / "work")
    return watch_activations(simplified, find_images([folder / "pictures"]), spec.input, symmetric=symmetric, jobs=2)


def test_smallest_and_largest_are_those_of_onnx_runtimes_calibrator(tmp_path: Path) -> None:
    found = _watched(tmp_path)
    spec = load_model_spec(tmp_path / "model.toml")
    prepare, paths = Prepare(spec.input), sorted((tmp_path / "pictures").iterdir())

    class Reader:
        def __init__(self) -> None:
            self.tensors = iter(
                [{"images": prepare.normalise(prepare.resize(cv2.imread(str(p)))).copy()} for p in paths]
            )

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.tensors, None)

    calibrator = create_calibrator(
        tmp_path / "work" / "simplified.onnx",
        augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=CalibrationMethod.MinMax,
    )
    calibrator.collect_data(Reader())
    expected = calibrator.compute_data()
    assert found.images == len(paths)
    assert len(found.histograms) >= 4
    for name, histogram in found.histograms.items():
        low, high = expected[name].range_value
        assert (histogram.low, histogram.high) == pytest.approx((np.ravel(low)[0], np.ravel(high)[0]), abs=1e-5)


def test_a_fused_activation_speaks_for_its_convolution(tmp_path: Path) -> None:
    apart, together = _watched(tmp_path / "a", symmetric=True), _watched(tmp_path / "b", symmetric=False)
    assert set(apart.histograms) == set(together.histograms)
    [relu] = [node for node in tiny.classifier().graph.node if node.op_type == "Relu"]
    assert together.histograms[relu.input[0]] is together.histograms[relu.output[0]]
    assert apart.histograms[relu.input[0]].low < 0 <= apart.histograms[relu.output[0]].low


def test_equal_pictures_are_counted_as_one(tmp_path: Path) -> None:
    write_project(tmp_path)
    for index, path in enumerate(sorted((tmp_path / "pictures").iterdir())):
        # Of different content, and the same once they are made small.
        cv2.imwrite(str(path), np.full((64 + index, 64 + index, 3), 90, np.uint8))
    spec = load_model_spec(tmp_path / "model.toml")
    (tmp_path / "work").mkdir()
    simplified = simplify(onnx.load(spec.model), tmp_path / "work")
    found = watch_activations(simplified, find_images([tmp_path / "pictures"]), spec.input, symmetric=False)
    assert (found.images, found.different) == (12, 1)


def test_a_tensor_that_is_no_number_is_named(tmp_path: Path) -> None:
    proto = tiny.classifier()
    first = next(w for w in proto.graph.initializer if w.name.startswith("b"))
    first.raw_data = np.full(first.dims, np.nan, np.float32).tobytes()
    with pytest.raises(ModelError, match=r"tensor '.*' holds values that are no numbers; check the weights"):
        _watched(tmp_path, proto)


def test_images_that_cannot_be_read_calibrate_nothing(tmp_path: Path) -> None:
    spec = load_model_spec(write_project(tmp_path))
    images = find_images([tmp_path / "pictures"])
    for path in (tmp_path / "pictures").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    (tmp_path / "work").mkdir()
    simplified = simplify(onnx.load(spec.model), tmp_path / "work")
    with pytest.raises(DataError, match=r"none of 12 calibration images can be read; .*000\.png: "):
        watch_activations(simplified, images, spec.input, symmetric=False)


def test_the_float_model_is_left_as_it_is(tmp_path: Path) -> None:
    _watched(tmp_path)
    session = ort.InferenceSession(tmp_path / "work" / "simplified.onnx")
    assert [output.name for output in session.get_outputs()] == ["probabilities"]


@pytest.mark.parametrize("images", [1, 10, 100, 300, 5000])
def test_enough_values_are_counted_and_every_column_has_its_turn(images: int) -> None:
    for channels, height, width in ((96, 112, 112), (3, 640, 640), (7, 7, 1280), (1, 1, 1000), (255, 13, 13)):
        size = channels * height * width
        every = every_of(size, images)
        counted = np.arange(0, size, every)
        assert len(counted) * images >= min(size * images, 1_000_000)
        assert len(counted) * images <= 9_000_000 + images * 1000
        assert len(counted) < width or set(counted % width) == set(range(width))
