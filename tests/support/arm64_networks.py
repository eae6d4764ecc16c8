"""Two small networks with fixed random weights, and pictures to calibrate and run them on: nothing to download.

Their INT8 results must be the same on every CPU. x86 without VNNI adds products of two neighbouring weights in 16 bits,
which overflow at 255 * (w0 + w1) > 32767; so every output channel has one weight of 1 with zeros beside it, and the
others reach half of that at most: quantized to 127 and 64, no pair can overflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Floats = NDArray[np.float32]

CLASSIFIER_TOML = """\
model = "classifier.onnx"
name = "small_classifier"
task = "classification"
decoder = "logits"
labels = "labels.txt"
[input]
size_wh = [64, 64]
resize = "stretch"
mean = [127.5, 127.5, 127.5]
std = [127.5, 127.5, 127.5]
"""
DETECTOR_TOML = """\
model = "detector.onnx"
name = "small_detector"
task = "detection"
decoder = "yolov4"
labels = "labels.txt"
[input]
size_wh = [96, 96]
std = [255, 255, 255]
[detection]
anchors = [[[12, 16], [24, 20]], [[40, 48], [64, 64]]]
"""
# Random weights agree with nothing: what is tested is that the same tensors come out, not that they mean something.
DATA_TOML = """\
[data]
calibration = "calibration"
evaluation = "evaluation"
[gates]
int8_min_agreement = 0.0
"""
LABELS = ("red", "green", "blue")
_ANCHORS_A_HEAD = 2


class _Graph:
    """Nodes and weights of a network that is being written, one layer after the other."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, *, bias: Floats | None = None
    ) -> str:
        """A convolution from `channels[0]` to `channels[1]`, padded to keep the size."""
        weight = self._weight((channels[1], channels[0], kernel, kernel))
        shift = self._random.normal(0, 0.1, channels[1]).astype(np.float32) if bias is None else bias
        pads = [kernel // 2] * 4
        return self.add("Conv", x, self._keep(weight), self._keep(shift), pads=pads, strides=[stride, stride])

    def linear(self, x: str, features: tuple[int, int]) -> str:
        """A fully connected layer."""
        weight = self._weight((features[1], features[0], 1, 1))[:, :, 0, 0]
        return self.add("Gemm", x, self._keep(weight), self._keep(np.zeros(features[1], np.float32)), transB=1)

    def save(self, path: Path, side_px: int, outputs: dict[str, list[int]]) -> None:
        """Write the model; `outputs` gives the shape of each."""
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, side_px, side_px])
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, path.stem, [image], values, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)

    def _weight(self, shape: tuple[int, int, int, int]) -> Floats:
        weight = np.clip(self._random.normal(0, 0.2, shape), -0.5, 0.5)
        weight[:, 0, 0, 0] = 1.0
        weight[:, 1:2, 0, 0] = 0.0
        weight[:, 0, 0, 1:2] = 0.0
        gain = np.sqrt(2.0 / np.square(weight).sum(axis=(1, 2, 3), keepdims=True))
        scaled: Floats = (weight * gain).astype(np.float32)
        return scaled

    def _keep(self, array: Floats) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name


def write_classifier(folder: Path) -> Path:
    """Write model, labels, pictures and model.toml of a classifier with a residual branch; returns model.toml."""
    graph = _Graph(seed=1)
    stem = graph.add("Relu", graph.conv("image", (3, 16), 3, 2))
    branch = graph.add("Relu", graph.conv(stem, (16, 16), 3))
    joined = graph.add("Relu", graph.add("Add", stem, graph.conv(branch, (16, 16), 1)))
    deep = graph.add("Relu", graph.conv(joined, (16, 48), 3, 2))
    logits = graph.linear(graph.add("Flatten", graph.add("GlobalAveragePool", deep)), (48, len(LABELS)))
    graph.save(folder / "classifier.onnx", 64, {logits: [1, len(LABELS)]})
    return _write_description(folder, CLASSIFIER_TOML)


def write_detector(folder: Path) -> Path:
    """Write a detector with two raw YOLOv4 heads, likewise."""
    graph = _Graph(seed=2)
    x = graph.add("LeakyRelu", graph.conv("image", (3, 16), 3, 2), alpha=0.1)
    x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("LeakyRelu", graph.conv(x, (16, 32), 3, 2), alpha=0.1)
    fine = graph.add("LeakyRelu", graph.conv(x, (32, 32), 3, 2), alpha=0.1)
    coarse = graph.add("LeakyRelu", graph.conv(fine, (32, 64), 3, 2), alpha=0.1)
    channels = _ANCHORS_A_HEAD * (5 + len(LABELS))
    heads = {
        graph.conv(x, (n, channels), 1, bias=_head_bias()): side for x, n, side in ((fine, 32, 6), (coarse, 64, 3))
    }
    graph.save(folder / "detector.onnx", 96, {name: [1, channels, side, side] for name, side in heads.items()})
    return _write_description(folder, DETECTOR_TOML)


def write_pictures(folder: Path, count: int, seed: int) -> Path:
    """Write `count` PNG pictures of soft random colours, 160x120; returns the folder."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for number in range(count):
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{number:02}.png"), cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))
    return folder


def _head_bias() -> Floats:
    """Lifts objectness, so that some cells answer with a detection."""
    bias = np.zeros((_ANCHORS_A_HEAD, 5 + len(LABELS)), np.float32)
    bias[:, 4] = 1.0
    return bias.reshape(-1)


def _write_description(folder: Path, description: str) -> Path:
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    write_pictures(folder / "calibration", 16, seed=3)
    write_pictures(folder / "evaluation", 8, seed=4)
    path = folder / "model.toml"
    path.write_text(f"{description}{DATA_TOML}")
    return path
