"""Local noise: what rounding does to the numbers that a layer reads, beside the same rounding done one by one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.target import load_target
from edge_sdk_tools.quantize import (
    Activations,
    LocalNoise,
    Recipe,
    Simplified,
    first_recipe,
    local_noise,
    quantize,
    simplify,
)
from edge_sdk_tools.quantize.histogram import Histogram
from tests.device import tiny

RANDOM = np.random.default_rng(5)
VALUES = RANDOM.normal(0.5, 0.2, (1, 3, 64, 64)).astype(np.float32)
VALUES[0, 0, 0, :3] = 3.0  # outliers, which percentiles cut off
WEIGHTS = RANDOM.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
WEIGHTS[0] *= 30  # one channel that would spoil a scale for all


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Simplified:
    node = helper.make_node("Conv", ["images", "w"], ["y"], name="layer")
    proto = tiny.model([node], [1, 3, 64, 64], {"y": [1, 8, 62, 62]}, {"w": WEIGHTS})
    return simplify(proto, tmp_path_factory.mktemp("model"))


def _noise(model: Simplified, folder: Path, **settings: object) -> tuple[list[LocalNoise], onnx.ModelProto]:
    recipe: Recipe = msgspec.structs.replace(
        first_recipe(load_target("x86_64"), reduce_range=False), **{"calibration": "min-max", **settings}
    )
    seen = {name: Histogram() for name in ("images", "y")}
    for histogram, values in zip(seen.values(), (VALUES, 10 * VALUES), strict=True):
        histogram.add(values)
    activations = Activations(seen, 1, 1, (0,), ())
    quantized = onnx.load(quantize(model, activations.ranges(recipe.calibration), recipe, folder / "int8.onnx").path)
    return list(local_noise(model, activations, quantized)), quantized


def _share(error: np.ndarray, signal: np.ndarray) -> float:
    return float((error.astype(np.float64) ** 2).sum() / (signal.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("calibration", ["min-max", "percentile 99.99"])
@pytest.mark.parametrize(("reduce_range", "largest_integer"), [(False, 127), (True, 64)])
def test_it_is_the_noise_of_the_very_integers(
    model: Simplified, tmp_path: Path, calibration: str, *, reduce_range: bool, largest_integer: int
) -> None:
    [layer], quantized = _noise(model, tmp_path, calibration=calibration, reduce_range=reduce_range)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    scale, zero = constants["images_scale"], int(constants["images_zero_point"])
    rounded = (np.clip(np.round(VALUES / scale) + zero, 0, 255) - zero) * scale
    assert layer.activation_noise == pytest.approx(_share(rounded - VALUES, VALUES), rel=0.05)
    scales = np.abs(WEIGHTS).max(axis=(1, 2, 3), keepdims=True) / largest_integer
    assert layer.weight_noise == pytest.approx(_share(np.round(WEIGHTS / scales) * scales - WEIGHTS, WEIGHTS), rel=0.05)
    assert (layer.node, layer.operator, layer.macs_share) == ("layer", "Conv", 1.0)
    both = (layer.activation_noise or 0) + (layer.weight_noise or 0)
    assert layer.sqnr_db == pytest.approx(-10 * np.log10(both))


def test_a_layer_that_is_left_float_has_none(model: Simplified, tmp_path: Path) -> None:
    assert _noise(model, tmp_path, float_nodes=("layer",))[0] == []
