"""Models that ONNX Runtime takes for models, and that end the process that loads or runs them."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.device import tiny
from tests.device.bundles import FILES, make_manifest, write_bundle

SIDE = 16
_SHAPE = [1, 3, SIDE, SIDE]


def write_hostile(folder: Path, model: onnx.ModelProto, *, memory_mb: int = 512) -> Path:
    """A bundle that carries it, with golden outputs that nobody will ever compare."""
    golden = io.BytesIO()
    np.savez_compressed(golden, image_0=np.zeros((SIDE, SIDE, 3), np.uint8), output_0_0=np.zeros((1, 2), np.float32))
    files = {**FILES, "model.int8.ort": model.SerializeToString(), "golden.npz": golden.getvalue()}
    manifest = msgspec.structs.replace(make_manifest(files, side=SIDE), memory_mb=memory_mb)
    return write_bundle(folder, manifest, files)


def sound() -> onnx.ModelProto:
    """Whose outputs really are zeros."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    return tiny.model(nodes, _SHAPE, {"y": [1, 2]}, {"w": np.zeros((3, 2), np.float32)})


def wants(gigabytes: float) -> onnx.ModelProto:
    """A hundred bytes that take so much memory while they are loaded: what is constant is worked out there."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["zero"], keepdims=0),
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["row"]),
        helper.make_node("Add", ["row", "zero"], ["y"]),
    ]
    weights = {"shape": np.array([int(gigabytes * 2**30 / 4)]), "w": np.zeros((3, 2), np.float32)}
    return tiny.model(nodes, _SHAPE, {"y": [1, 2]}, weights)


def endless(side: int = SIDE) -> onnx.ModelProto:
    """A loop of 1e15 rounds; that its values stand still keeps nobody from going round."""
    value = [1, 2]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Sin", ["v"], ["v2"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, value),
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v2", TensorProto.FLOAT, value),
        ],
    )
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["row"]),
        helper.make_node("Loop", ["n", "go", "row"], ["y"], body=body),
    ]
    weights = {"n": np.array(10**15), "go": np.array(True), "w": np.zeros((3, 2), np.float32)}
    return tiny.model(nodes, [1, 3, side, side], {"y": value}, weights)


def deep(levels: int = 6000) -> onnx.ModelProto:
    """A chain of functions, each of which calls the next: what unfolds them runs out of stack."""
    imports = [helper.make_opsetid("", tiny.OPSET), helper.make_opsetid("local", 1)]
    model = tiny.model([helper.make_node("f0", ["images"], ["y"], domain="local")], _SHAPE, {"y": _SHAPE})
    for level in range(levels):
        call = helper.make_node(f"f{level + 1}", ["x"], ["y"], domain="local")
        model.functions.append(helper.make_function("local", f"f{level}", ["x"], ["y"], [call], imports))
    last = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("local", f"f{levels}", ["x"], ["y"], last, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model
