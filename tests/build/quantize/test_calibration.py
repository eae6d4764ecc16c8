"""Calibration: what every tensor holds is counted in one pass; images that calibrate badly are warned of."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.cli.root import run
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.quantize.calibration import (
    CALIBRATIONS,
    Activations,
    Histogram,
    calibration_warnings,
    every_of,
    range_of,
    watch_activations,
)
from edge_sdk_tools.quantize.simplified import simplify
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_pictures, write_project

RANDOM = np.random.default_rng(11)


def _histogram(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part.astype(np.float32))
    return histogram


def test_ranges_are_no_round_numbers() -> None:
    """Scales with simple ratios make sums that lie half-way between two integers, which CPUs round differently."""
    ends = np.array(_histogram(RANDOM.normal(size=50_000)).spanned(0.999), np.float32)
    assert (ends.view(np.uint32) & 0xFFFF).all()


def test_entropy_cuts_a_few_outliers_and_keeps_what_is_even() -> None:
    outliers = np.concatenate([RANDOM.normal(size=200_000), [80.0, -60.0]])
    low, high = range_of(_histogram(outliers), "entropy")
    assert -16 < low < -2.5
    assert 2.5 < high < 16
    even = RANDOM.random(200_000) * 4 - 2
    assert range_of(_histogram(even), "entropy") == pytest.approx((-2, 2), abs=0.05)


def test_a_fused_activation_speaks_for_its_convolution(tmp_path: Path) -> None:
    apart, together = _watched(tmp_path / "a", symmetric=True), _watched(tmp_path / "b", symmetric=False)
    assert set(apart.histograms) == set(together.histograms)
    [relu] = [node for node in tiny.classifier().graph.node if node.op_type == "Relu"]
    assert together.histograms[relu.input[0]] is together.histograms[relu.output[0]]
    assert apart.histograms[relu.input[0]].low < 0 <= apart.histograms[relu.output[0]].low


def test_a_tensor_that_is_no_number_is_named(tmp_path: Path) -> None:
    proto = tiny.classifier()
    first = next(w for w in proto.graph.initializer if w.name.startswith("b"))
    first.raw_data = np.full(first.dims, np.nan, np.float32).tobytes()
    with pytest.raises(ModelError, match=r"tensor '.*' holds values that are no numbers; check the weights"):
        _watched(tmp_path, proto)


@pytest.mark.parametrize(
    "values",
    [RANDOM.normal(size=200_000), RANDOM.lognormal(sigma=2, size=200_000) - 1, -RANDOM.random(200_000) * 1e-3],
    ids=["normal", "skewed", "negative"],
)
def test_the_span_is_that_of_the_sorted_values(values: np.ndarray) -> None:
    values = values.astype(np.float32)
    histogram, ordered = _histogram(*np.array_split(values, 7)), np.sort(values)
    assert histogram.counts.sum() == len(values)
    assert (histogram.low, histogram.high) == (values.min(), values.max())
    for share in (0.9, 0.999, 0.99999):
        low, high = histogram.spanned(share)
        cut = round((1 - share) / 2 * len(values))
        for got, place in ((low, cut), (high, len(values) - 1 - cut)):  # bins are 0.8 % wide
            about = ordered[max(0, place - 1) : place + 2]
            slack = 0.008 * np.abs(about).max() + 1e-12
            assert about.min() - slack <= got <= about.max() + slack
        assert histogram.low <= low <= high <= histogram.high


def test_a_constant_has_its_own_range() -> None:
    for calibration, value in product(CALIBRATIONS, (0.0, 3.25, -7.5)):
        assert range_of(_histogram(np.full(100, value)), calibration) == (value, value)


def test_enough_values_are_counted_and_every_column_has_its_turn() -> None:
    shapes = ((96, 112, 112), (3, 640, 640), (7, 7, 1280), (1, 1, 1000), (255, 13, 13))
    for images, (channels, height, width) in product((1, 10, 100, 300, 5000), shapes):
        size = channels * height * width
        counted = np.arange(0, size, every_of(size, images))
        assert len(counted) * images >= min(size * images, 1_000_000)
        assert len(counted) * images <= 9_000_000 + images * 1000
        assert len(counted) < width or set(counted % width) == set(range(width))


def _watched(
    folder: Path, model: onnx.ModelProto | None = None, *, symmetric: bool = True, images: ImageSet | None = None
) -> Activations:
    """Watch the activations of a project, which is written where there is none."""
    path = folder / "model.toml"
    spec = load_model_spec(path if path.exists() else write_project(folder, CLASSIFIER, model))
    (folder / "work").mkdir()
    simplified = simplify(onnx.load(spec.model), folder / "work")
    images = images or find_images([folder / "pictures"])
    return watch_activations(simplified, images, spec.input, symmetric=symmetric, jobs=2)


def test_smallest_and_largest_are_those_of_onnx_runtimes_calibrator(tmp_path: Path) -> None:
    found = _watched(tmp_path)
    prepare = Prepare(load_model_spec(tmp_path / "model.toml").input)
    paths = sorted((tmp_path / "pictures").iterdir())
    tensors = iter([{"images": prepare.normalise(prepare.resize(cv2.imread(str(p)))).copy()} for p in paths])
    calibrator = create_calibrator(
        tmp_path / "work" / "simplified.onnx",
        augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=CalibrationMethod.MinMax,
    )
    calibrator.collect_data(SimpleNamespace(get_next=lambda: next(tensors, None)))
    expected = calibrator.compute_data()
    assert found.images == len(paths)
    assert len(found.histograms) >= 4
    for name, histogram in found.histograms.items():
        low, high = expected[name].range_value
        assert (histogram.low, histogram.high) == pytest.approx((np.ravel(low)[0], np.ravel(high)[0]), abs=1e-5)


def test_equal_pictures_are_counted_as_one(tmp_path: Path) -> None:
    write_project(tmp_path)
    for index, path in enumerate(sorted((tmp_path / "pictures").iterdir())):
        # Of different content, and the same once they are made small.
        cv2.imwrite(str(path), np.full((64 + index, 64 + index, 3), 90, np.uint8))
    found = _watched(tmp_path, symmetric=False)
    assert (found.images, found.different) == (12, 1)


def test_images_that_cannot_be_read_calibrate_nothing(tmp_path: Path) -> None:
    write_project(tmp_path)
    images = find_images([tmp_path / "pictures"])
    for path in (tmp_path / "pictures").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"none of 12 calibration images can be read; .*000\.png: "):
        _watched(tmp_path, images=images)


_LABELS = ("a", "b", "c")


def _activations(answers: tuple[int, ...], *, different: int = 12, constant: float | None = None) -> Activations:
    histograms = {"moving": Histogram(), "still": Histogram()}
    histograms["moving"].add(np.array([-2, 3.5], np.float32))
    values = [0.25, 0.5] if constant is None else [constant, constant]
    histograms["still"].add(np.array(values, np.float32))
    return Activations(histograms, len(answers), different, answers, ())


@pytest.mark.parametrize(
    ("activations", "labels", "known", "expected"),
    [
        (_activations((0, 1) * 6), _LABELS, (), []),
        (_activations((1,) * 12), (), (), []),  # no classifier
        (_activations((0,) * 12), ("a",), (), []),  # it knows one class only
        (_activations((1,) * 12), _LABELS, ("a", "c") * 6, []),  # files know better than the model
        (_activations((1,) * 12), _LABELS, (), ["all 12 calibration images look like 'b' to FP32"]),
        (_activations((0, 1) * 6), _LABELS, ("c",) * 12, ["all 12 calibration images are labelled 'c'"]),
        (_activations((0,) * 12, different=1), _LABELS, (), ["all 12 calibration images are the same once prepared"]),
        (_activations((0, 1)), _LABELS, (), ["few images calibrate: 2, give 10 or more"]),
        (_activations((0, 1) * 6, constant=7), _LABELS, (), ["tensors with one value on all 12 calibration"]),
    ],
)
def test_each_doubt_has_its_line(
    activations: Activations, labels: tuple[str, ...], known: tuple[str, ...], expected: list[str]
) -> None:
    lines = calibration_warnings(activations, labels, known)
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
    assert all("(from -2 to 3.5)" in line for line in lines if "so ranges" in line)


def test_a_doubt_is_on_the_screen_and_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path, CLASSIFIER, pictures=0)
    (tmp_path / "pictures").mkdir()
    write_pictures(tmp_path / "pictures" / "b", 12)  # a folder of one class
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]
    assert run(command) == 0
    start = "all 9 calibration images are labelled 'b', so ranges (from "
    assert f"edge-sdk: warning: {start}" in capsys.readouterr().err
    warnings = json.loads((tmp_path / "a.edge" / "report.json").read_text())["warnings"]
    assert any(line.startswith(start) for line in warnings)
    assert start[:40] in (tmp_path / "a.edge" / "report.html").read_text().replace("&#39;", "'")
