"""Models that misbehave on bright pictures, and real bundles around them."""

from __future__ import annotations

import io
import platform
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from edge_sdk.bundle import Bundle
from edge_sdk.frame import Tensor
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare
from edge_sdk.session import Session, SessionSettings, onnxruntime_version
from tests.device import tiny
from tests.device.bundles import make_manifest, write_bundle

SIDE = 16
BRIGHT = 200.0
_WEIGHTS = {
    "w": np.array([[1, 0, 0], [0, 0, 1]], np.float32).T / 255,
    "bright": np.float32(BRIGHT).reshape(()),
}


def endless() -> onnx.ModelProto:
    """Two classes, red and blue; of a bright picture it never makes up its mind."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Relu", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
        ],
    )
    return _model(
        [
            helper.make_node("ReduceMax", ["images"], ["brightest"], keepdims=0),
            helper.make_node("Greater", ["brightest", "bright"], ["goes_on"]),
            helper.make_node("Loop", ["", "goes_on", "means"], ["looped"], body=body),
        ],
        "looped",
    )


def not_a_number() -> onnx.ModelProto:
    """Two classes, red and blue; of a bright picture it knows nothing: the root of what is negative."""
    return _model(
        [
            helper.make_node("Sub", ["bright", "means"], ["rest"]),
            helper.make_node("Sqrt", ["rest"], ["root"]),
            helper.make_node("Mul", ["root", "means"], ["rooted"]),
        ],
        "rooted",
    )


def _model(middle: list[onnx.NodeProto], last: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["means"]),
        *middle,
        helper.make_node("MatMul", [last, "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, SIDE, SIDE], {"probabilities": [1, 2]}, _WEIGHTS)


def picture(level: int) -> Tensor:
    """float32 (1, 3, 16, 16), all of one level."""
    return np.full((1, 3, SIDE, SIDE), level, np.float32)


def write_real_bundle(folder: Path, model: onnx.ModelProto, **changes: object) -> Path:
    """A bundle of two classes that this machine can run; its one golden image is dark."""
    data = model.SerializeToString()
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    spec = InputSpec(size_wh=(SIDE, SIDE))
    [output] = Session(data, SessionSettings(), "m").run(Prepare(spec).normalise(image))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, image_0=image, output_0_0=output)
    files = {"model.int8.ort": data, "labels.txt": b"red\nblue\n", "golden.npz": buffer.getvalue()}
    manifest = make_manifest(files, side=SIDE)
    here = {"machine": platform.machine(), "onnxruntime": {"minimum": "1.20.1", "maximum": onnxruntime_version()}}
    builtins = msgspec.to_builtins(manifest) | here | changes
    return write_bundle(folder, msgspec.convert(builtins, type(manifest)), files)


def open_real_bundle(folder: Path, model: onnx.ModelProto, **changes: object) -> Bundle:
    """The same, opened."""
    return Bundle.open(write_real_bundle(folder, model, **changes))
