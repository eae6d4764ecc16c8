"""INT8 as many write it by hand: ONNX Runtime's own pre-processing, calibration, quantization and conversion.

`python -m benchmarks.rivals.by_hand MODEL.toml IMAGES FOLDER SETTINGS` does it in a process of its own and leaves
FOLDER/int8.onnx and FOLDER/int8.ort; SETTINGS are those of `ByHand` in JSON. Images are prepared as model.toml says.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.datasets.dataset import find_images


class ByHand(msgspec.Struct, frozen=True):
    """What a person sets.

    Attributes:
        method: MinMax, Entropy or Percentile.
        activations, weights: QUInt8 or QInt8.
        per_channel: scales of weights.
    """

    method: str = "MinMax"
    activations: str = "QUInt8"
    weights: str = "QInt8"
    per_channel: bool = True

    @property
    def text(self) -> str:
        """In words."""
        types = "".join(kind[1:].replace("UInt", "U").replace("Int", "S") for kind in (self.activations, self.weights))
        return f"{types} per {'channel' if self.per_channel else 'tensor'}, {self.method}"


class Reader:
    """What ONNX Runtime's calibrators read from: one prepared image at a time."""

    def __init__(self, images: Path, spec: ModelSpec, name: str) -> None:
        self.feeds = self._prepared(images, spec, name)

    @staticmethod
    def _prepared(images: Path, spec: ModelSpec, name: str) -> Iterator[dict[str, np.ndarray]]:
        prepare = Prepare(spec.input)
        for file in find_images([images], decode=False).images:
            yield {name: prepare.normalise(prepare.resize(file.read())).copy()}

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next image, as ONNX Runtime asks for it."""
        return next(self.feeds, None)


def quantize_by_hand(model: Path, spec: ModelSpec, images: Path, folder: Path, settings: ByHand) -> Path:
    """Write the quantized .onnx of a float one; what the quantizer prints is swallowed."""
    prepared, result = folder / "prepared.onnx", folder / "int8.onnx"
    with contextlib.redirect_stdout(io.StringIO()):
        if not prepared.exists():
            quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
        name = onnx.load(prepared, load_external_data=False).graph.input[0].name
        quantize_static(
            prepared,
            result,
            Reader(images, spec, name),
            quant_format=QuantFormat.QDQ,
            per_channel=settings.per_channel,
            activation_type=QuantType[settings.activations],
            weight_type=QuantType[settings.weights],
            calibrate_method=CalibrationMethod[settings.method],
            extra_options={"ActivationSymmetric": settings.activations == "QInt8"},
        )
    return result


def convert_by_hand(model: Path) -> None:
    """Write the .ort beside the .onnx."""
    with contextlib.redirect_stdout(io.StringIO()):
        convert_onnx_models_to_ort(model, optimization_styles=[OptimizationStyle.Fixed], enable_type_reduction=True)


if __name__ == "__main__":
    described = load_model_spec(Path(sys.argv[1]))
    wanted = msgspec.json.decode(sys.argv[4], type=ByHand)
    convert_by_hand(quantize_by_hand(Path(described.model), described, Path(sys.argv[2]), Path(sys.argv[3]), wanted))
