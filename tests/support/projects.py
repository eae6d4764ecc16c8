"""What a user of `edge-sdk build` has: model.toml, labels and pictures, labelled or not."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from edge_sdk.core.errors import EdgeError, ModelError
from edge_sdk_tools.importers.pytorch import import_pytorch
from tests.support import models as tiny

# Pictures for tests: plain colours with noise, so that a tiny model has something to tell apart.


def picture(index: int, *, width: int = 48, height: int = 40) -> np.ndarray:
    """uint8 (H, W, 3), BGR; another colour and noise for every index."""
    random = np.random.default_rng(index)
    base = random.integers(0, 256, 3)
    return np.clip(base + random.normal(0, 40, (height, width, 3)), 0, 255).astype(np.uint8)


def write_pictures(folder: Path, count: int, *, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(first, first + count):
        cv2.imwrite(str(folder / f"{index:03}.png"), picture(index))
    return folder


# A model.toml with its model, labels and pictures: what a user of `edge-sdk build` has.


def _toml(name: str, task: str, decoder: str, side: int, of_input: str = "", of_task: str = "") -> str:
    return f"""
model = "model.onnx"
name = "{name}"
task = "{task}"
decoder = "{decoder}"
labels = "labels.txt"

[input]
size_wh = [{side}, {side}]
{of_input}std = [255, 255, 255]
{of_task}
[data]
calibration = "pictures"
"""


CLASSIFIER = _toml("tiny", "classification", "softmax", 16)
DETECTOR = _toml("cells", "detection", "yolov4", 64, 'resize = "stretch"\n', "\n[detection]\nanchors = [[[16, 16]]]\n")
SEGMENTER = _toml("cells", "segmentation", "logits", 32)


def write_project(
    folder: Path, text: str = CLASSIFIER, model: onnx.ModelProto | None = None, *, labels: str = "a\nb\nc\n",
    pictures: int = 12,
) -> Path:  # fmt: skip
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


# Labelled pictures for tests: the labels are what a plain loop says that the model says, and for some images not.


def hand_written_scores(model: onnx.ModelProto, folder: Path, size: int = 16) -> NDArray[np.float32]:
    """Read, letterbox with grey 114, convert to RGB 0-1, run: float32 (N, C), in order of the names."""
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


# Pictures with boxes in them, as YOLO text files and as COCO.


def write_boxes(folder: Path, form: str, count: int, *, first_box: float = 0.375) -> Path:
    """A box of a quarter of each picture's sides, as `head_detector` finds them; the first lies about `first_box`."""
    if not folder.exists():
        write_pictures(folder / "images", count, first=100)
    names = [f"{number:03}" for number in range(100, 100 + count)]
    middles = [first_box, *[0.375] * (count - 1)]
    if form == "yolo":
        (folder / "labels").mkdir(exist_ok=True)
        for name, middle in zip(names, middles, strict=True):
            (folder / "labels" / f"{name}.txt").write_text(f"0 {middle} 0.375 0.25 0.25\n")
        return folder
    width, height = 48, 40  # of `images.picture`
    images = [{"id": i, "file_name": f"{name}.png", "width": width, "height": height} for i, name in enumerate(names)]
    corners = [((middle - 0.125) * width, height / 4, width / 4, height / 4) for middle in middles]
    boxes = [{"image_id": i, "category_id": 1, "bbox": corner, "iscrowd": 0} for i, corner in enumerate(corners)]
    categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
    whole = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "a.json").write_text(json.dumps(whole))
    return folder


# A model.toml for the models of torch_models.py, and what to check when an import of them is refused.

MODELS = Path(__file__).with_name("torch_models.py")
MODEL_TOML = _toml("net", "classification", "logits", 16).replace("model.onnx", "net.onnx").partition("\n[data]")[0]


def write_toml(folder: Path) -> Path:
    (folder / "labels.txt").write_text("a\nb\nc\n")
    (folder / "model.toml").write_text(MODEL_TOML)
    return folder / "model.toml"


def write_target(folder: Path, *, max_opset: int) -> Path:
    text = (Path(__file__).parents[2] / "targets" / "arm64.toml").read_text()
    path = folder / "old.toml"
    path.write_text(
        text.replace('name = "arm64" ', 'name = "old" ').replace("max_opset = 21", f"max_opset = {max_opset}")
    )
    return path


def line_of(text: str) -> str:
    return f"torch_models.py:{next(i for i, line in enumerate(MODELS.read_text().splitlines(), 1) if text in line)}"


def refusal(folder: Path, source: str, kind: type[EdgeError] = ModelError, **options: object) -> str:
    """The error's text; the file that was there must still be, and nothing beside it."""
    toml = write_toml(folder)
    (folder / "net.onnx").write_bytes(b"an older model")
    before = sorted(folder.iterdir())
    with pytest.raises(EdgeError) as caught:
        import_pytorch(source, toml, **options)
    assert type(caught.value) is kind
    assert (folder / "net.onnx").read_bytes() == b"an older model"
    assert sorted(folder.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_documented(said: str) -> bool:
    """Whether docs/importing.md has this message, but for its figures."""
    text = (MODELS.parents[2] / "docs" / "importing.md").read_text()
    figure = re.compile(r"[0-9][0-9.e-]*")
    return f"`{figure.sub('#', said)}`" in figure.sub("#", text)


class Code:
    def __init__(self, folder: Path) -> None:
        self.ran = folder / "ran"

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.ran,)
