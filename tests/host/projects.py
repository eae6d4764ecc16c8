"""A model.toml with its model, labels and pictures: what a user of `edge-sdk build` has."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.device import tiny
from tests.host.images import write_pictures

CLASSIFIER = """
model = "model.onnx"
name = "tiny"
task = "classification"
decoder = "softmax"
labels = "labels.txt"

[input]
size_wh = [16, 16]
std = [255, 255, 255]

[data]
calibration = "pictures"
"""

DETECTOR = """
model = "model.onnx"
name = "cells"
task = "detection"
decoder = "yolov4"
labels = "labels.txt"

[input]
size_wh = [64, 64]
resize = "stretch"
std = [255, 255, 255]

[detection]
anchors = [[[16, 16]]]

[data]
calibration = "pictures"
"""


def write_project(
    folder: Path,
    text: str = CLASSIFIER,
    model: onnx.ModelProto | None = None,
    *,
    labels: str = "a\nb\nc\n",
    pictures: int = 12,
) -> Path:
    """Write it all; returns the model.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model or tiny.classifier(), folder / "model.onnx")
    (folder / "labels.txt").write_text(labels)
    if pictures:
        write_pictures(folder / "pictures", pictures)
    path = folder / "model.toml"
    path.write_text(text)
    return path


def write_detector(folder: Path) -> Path:
    return write_project(folder, DETECTOR, tiny.head_detector(), labels="red\nblue\n")
