"""Labelled pictures for tests: the labels are what a plain loop says that the model says, and for some images not."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from tests.host.images import write_pictures


def hand_written_scores(model: onnx.ModelProto, folder: Path, size: int = 16) -> NDArray[np.float32]:
    """What anybody would write: read, letterbox with grey 114, RGB, 0-1, run. Float32 (N, C), in order of the names."""
    session = ort.InferenceSession(model.SerializeToString())
    return np.concatenate([session.run(None, {"images": _tensor(p, size)})[0] for p in sorted(folder.glob("*.png"))])


def _tensor(path: Path, size: int) -> NDArray[np.float32]:
    image = cv2.imread(str(path))
    scale = size / max(image.shape[:2])
    width, height = round(image.shape[1] * scale), round(image.shape[0] * scale)
    canvas = np.full((size, size, 3), 114, np.uint8)
    top, left = (size - height) // 2, (size - width) // 2
    canvas[top : top + height, left : left + width] = cv2.resize(image, (width, height))
    return canvas[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255


def write_labelled(folder: Path, model: onnx.ModelProto, count: int, *, wrong: int = 0) -> Path:
    """`count` pictures with a labels.csv that agrees with `model` but for the first `wrong` of them."""
    write_pictures(folder, count, first=100)
    answers = hand_written_scores(model, folder).argmax(axis=1)
    answers[:wrong] = (answers[:wrong] + 1) % 3
    rows = [f"{100 + index:03}.png,{answer}" for index, answer in enumerate(answers)]
    (folder / "labels.csv").write_text("\n".join(["file,class_id", *rows]) + "\n")
    return folder
