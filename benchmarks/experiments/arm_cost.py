"""Instructions of one inference on ARM cores, FP32 beside INT8.

Run as `python -m benchmarks.experiments.arm_cost MODEL.onnx ...`.

Each model is quantized whole, with noise for calibration: counts depend on shapes and types, hardly on values.
Recipes are ONNX Runtime's own static quantization (QDQ, per-channel, MinMax) with unsigned and with signed
activations, of the whole model; and a build's, which leaves the decoding tail float, has the form of the core and
takes a picture's integers. All files go through the conversion to ORT format for ARM that a build uses.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.bundle.target import load_target
from edge_sdk_tools.arm_cost.counter import Counts
from edge_sdk_tools.arm_cost.estimate import estimate
from edge_sdk_tools.arm_cost.installation import set_up
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.quantize.calibration import watch_activations
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.quantize.forms import core_form, level_graphs
from edge_sdk_tools.quantize.quantize import first_recipe, quantize
from edge_sdk_tools.quantize.simplified import simplify

TARGETS = ("raspberry_pi_4", "raspberry_pi_5")
RECIPES = {"FP32": None, "U8S8": QuantType.QUInt8, "S8S8": QuantType.QInt8}
BUILD = "a build's"
CALIBRATION_RUNS = 4


class _Noise(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
    """A few tensors of noise for a model's only input."""

    def __init__(self, model: Path) -> None:
        [value] = onnx.load(model).graph.input
        shape = [dimension.dim_value or 1 for dimension in value.type.tensor_type.shape.dim]
        random = np.random.default_rng(0)
        self._feeds: Iterator[dict[str, np.ndarray]] = iter(
            [{value.name: random.random(shape, np.float32)} for _ in range(CALIBRATION_RUNS)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def main(models: list[str]) -> None:
    """Count and print one row a model and board."""
    logging.disable(logging.WARNING)
    counter = set_up(on_progress=lambda step, done, _total: None if done else _say(f"setting up: {step}"))
    print(f"ONNX Runtime {counter.recipe.onnxruntime}, one thread; million instructions an inference, in brackets the")
    print("estimate in ms with its error\n")
    columns = [*RECIPES, BUILD, f"{BUILD} / FP32", f"{BUILD} / the least"]
    print(f"| model | board | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for model in map(Path, models):
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: _prepare(model, name, Path(scratch)) for name in RECIPES}
            for target in TARGETS:
                counted = {}
                for name, file in {**files, BUILD: _build(model, target, Path(scratch))}.items():
                    started = time.perf_counter()
                    counted[name] = counter.count(file, load_target(target).cpu)  # type: ignore[arg-type]  # a target may name any core; those of TARGETS are counted
                    _say(
                        f"{model.stem} {target} {name}: {time.perf_counter() - started:.0f} s {counted[name].by_class}"
                    )
                cells = [_cell(counts, target) for counts in counted.values()]
                ours, least = counted[BUILD].total, min(counted[name].total for name in RECIPES)
                cells += [f"{ours / counted['FP32'].total:.2f}x", f"{ours / least:.2f}x"]
                print(f"| {model.stem} | {target} | {' | '.join(cells)} |", flush=True)


def _prepare(model: Path, recipe: str, folder: Path) -> Path:
    """Quantize and convert one model."""
    work = folder / recipe
    work.mkdir()
    source, activations = model, RECIPES[recipe]
    if activations is not None:
        source = work / "quantized.onnx"
        quantize_static(
            model,
            source,
            _Noise(model),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=activations,
            weight_type=QuantType.QInt8,
        )
    return convert(source, load_target(TARGETS[0]), work).model


def _build(model: Path, target_name: str, folder: Path) -> Path:
    """Quantize as a build does, calibrated with noise, and convert."""
    target = load_target(target_name)
    work = folder / target_name
    pictures = work / "pictures"
    pictures.mkdir(parents=True)
    [shape] = {tuple(d.dim_value or 1 for d in v.type.tensor_type.shape.dim) for v in onnx.load(model).graph.input}
    random = np.random.default_rng(0)
    for number in range(CALIBRATION_RUNS):
        cv2.imwrite(str(pictures / f"{number}.png"), random.integers(0, 256, (*shape[2:], shape[1]), np.uint8))
    spec = InputSpec(size_wh=(shape[3], shape[2]), std=(255.0, 255.0, 255.0))
    simplified = simplify(onnx.load(model), work)
    activations = watch_activations(simplified, find_images([pictures]), spec, symmetric=False)
    recipe = first_recipe(target, reduce_range=False)
    quantized = quantize(simplified, activations.ranges(recipe.calibration), recipe, work / "int8.onnx")
    proto = onnx.load(quantized.path)
    form = core_form(proto, target.cpu) or proto
    graphs = level_graphs(form, spec)
    onnx.save(form if isinstance(graphs, str) else graphs[0].proto, quantized.path)
    return convert(quantized.path, target, work).model


def _cell(counts: Counts, target: str) -> str:
    estimated = estimate(counts, load_target(target))
    if estimated is None:
        return f"{counts.millions:.1f}"
    return f"{counts.millions:.1f} ({estimated.low_ms:.0f}-{estimated.high_ms:.0f})"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
