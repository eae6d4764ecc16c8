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
    "first_axis": np.array([0], np.int64),
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


def failing() -> onnx.ModelProto:
    """Two classes, red and blue; on a bright picture it looks where there is nothing, and ONNX Runtime gives up."""
    return _model(
        [
            helper.make_node("ReduceMax", ["images"], ["brightest"], keepdims=0),
            helper.make_node("Greater", ["brightest", "bright"], ["is_bright"]),
            helper.make_node("Cast", ["is_bright"], ["row"], to=TensorProto.INT64),
            helper.make_node("Unsqueeze", ["row", "first_axis"], ["rows"]),
            helper.make_node("Gather", ["means", "rows"], ["taken"]),
        ],
        "taken",
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


def write_real_bundle(
    folder: Path,
    model: onnx.ModelProto,
    *,
    golden: list[tuple[Tensor, Tensor]] | None = None,
    operators: tuple[str, ...] = (),
    extra: dict[str, bytes] | None = None,
    **changes: object,
) -> Path:
    """A bundle of two classes that this machine can run.

    Args:
        folder: to be made.
        model: of one output, (1, 2).
        golden: images with their outputs; by default one dark image, and what the model says of it.
        operators: that the variant needs, beside a convolution.
        extra: further files.
        changes: of the manifest.
    """
    data = model.SerializeToString()
    pairs = golden or [_golden(data)]
    buffer = io.BytesIO()
    arrays = {f"image_{i}": image for i, (image, _) in enumerate(pairs)}
    np.savez_compressed(buffer, **arrays, **{f"output_{i}_0": output for i, (_, output) in enumerate(pairs)})
    files = {"model.int8.ort": data, "labels.txt": b"red\nblue\n", "golden.npz": buffer.getvalue(), **(extra or {})}
    builtins = msgspec.to_builtins(manifest := make_manifest(files, side=SIDE))
    promise = {"count": len(pairs), "absolute": 1e-5}
    [variant] = builtins["variants"]
    variant |= {"operators": [*variant["operators"], *operators], "golden": variant["golden"] | promise}
    builtins |= {"machine": platform.machine(), "operators": variant["operators"]}
    builtins |= {"onnxruntime": {"minimum": "1.20.1", "maximum": onnxruntime_version()}, **changes}
    return write_bundle(folder, msgspec.convert(builtins, type(manifest)), files)


def _golden(data: bytes) -> tuple[Tensor, Tensor]:
    image = np.random.default_rng(1).integers(0, 100, (SIDE, SIDE, 3), np.uint8)
    spec = InputSpec(size_wh=(SIDE, SIDE))
    [output] = Session(data, SessionSettings(), "m").run(Prepare(spec).normalise(image))
    return image, output


def open_real_bundle(folder: Path, model: onnx.ModelProto, **changes: object) -> Bundle:
    """The same, opened."""
    return Bundle.open(write_real_bundle(folder, model, **changes))
