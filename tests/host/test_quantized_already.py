"""Models that are quantized already are refused by name, whichever way they were quantized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

from edge_sdk.errors import ModelError
from edge_sdk_tools.build import build
from tests.device import tiny
from tests.host import odd_graphs
from tests.host.projects import write_project


class _Noise:
    """Two pictures to calibrate with."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._tensors = iter([{"images": random.random((1, 3, 16, 16), np.float32)} for _ in range(2)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._tensors, None)


def _quantized(folder: Path, way: str) -> onnx.ModelProto:
    source, result = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(odd_graphs.gemm_only() if way == "dynamic MatMul" else tiny.classifier(), source)
    if way.startswith("dynamic"):
        quantize_dynamic(source, result, weight_type=QuantType.QUInt8)
    else:
        quantize_static(source, result, _Noise(), quant_format=QuantFormat[way])
    return onnx.load(result)


@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("QDQ", "DequantizeLinear"),
        ("QOperator", "2 QLinearConv"),
        ("dynamic", "ConvInteger"),
        ("dynamic MatMul", "MatMulInteger"),
    ],
)
def test_it_is_named_and_nothing_is_written(tmp_path: Path, way: str, named: str) -> None:
    model = write_project(tmp_path / "again", model=_quantized(tmp_path, way))
    with pytest.raises(ModelError) as caught:
        build(model, "x86_64", tmp_path / "a.edge")
    assert "model.onnx: is quantized already (" in str(caught.value)
    assert named in str(caught.value)
    assert str(caught.value).endswith("expected float: build from what it was made of")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*a.edge*"))
