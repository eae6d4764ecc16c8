"""`python -m benchmarks.arm_cost MODEL.onnx ...`: instructions of one inference on ARM cores, FP32 beside INT8.

Each model is quantized whole, with noise for calibration: counts depend on shapes and types, hardly on values.
Recipes are ONNX Runtime's own static quantization (QDQ, per-channel, MinMax) with unsigned and with signed
activations; all three files go through the conversion to ORT format for ARM that a build uses.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from edge_sdk.target import load_target
from edge_sdk_tools.arm_cost import set_up
from edge_sdk_tools.arm_cost.counts import Counts
from edge_sdk_tools.arm_cost.estimate import estimate
from edge_sdk_tools.convert import convert

TARGETS = ("raspberry_pi_4", "raspberry_pi_5")
RECIPES = {"FP32": None, "U8S8": QuantType.QUInt8, "S8S8": QuantType.QInt8}
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
    print(f"| model | board | {' | '.join(RECIPES)} |\n|---|---|{'---|' * len(RECIPES)}")
    for model in map(Path, models):
        with tempfile.TemporaryDirectory() as scratch:
            files = {name: _prepare(model, name, Path(scratch)) for name in RECIPES}
            for target in TARGETS:
                cells = []
                for name, file in files.items():
                    started = time.perf_counter()
                    counts = counter.count(file, load_target(target).cpu)  # type: ignore[arg-type]  # a target may name any core; those of TARGETS are counted
                    _say(f"{model.stem} {target} {name}: {time.perf_counter() - started:.0f} s {counts.by_class}")
                    cells.append(_cell(counts, target))
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


def _cell(counts: Counts, target: str) -> str:
    estimated = estimate(counts, load_target(target))
    if estimated is None:
        return f"{counts.millions:.1f}"
    return f"{counts.millions:.1f} ({estimated.low_ms:.0f}-{estimated.high_ms:.0f})"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
