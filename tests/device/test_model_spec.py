"""model.toml: what it says, and what it may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import InputSpec, load_model_spec, read_labels

GOOD = """
model = "m.onnx"
name = "m"
task = "detection"
decoder = "yolov8"
labels = "labels.txt"
[input]
size_wh = [416, 320]
[data]
calibration = "images"
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "model.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file_and_defaults_fill_in(tmp_path: Path) -> None:
    spec = load_model_spec(_write(tmp_path, GOOD))
    assert spec.model == str(tmp_path / "m.onnx")
    assert spec.labels == str(tmp_path / "labels.txt")
    assert spec.data.calibration == str(tmp_path / "images")
    assert spec.data.evaluation is None
    assert spec.input.tensor_shape == (1, 3, 320, 416)
    assert spec.thresholds.confidence == 0.25


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('decoder = "yolov8"', 'decoder = "softmax"', "decoder: 'softmax' is not for detection; expected yolov4 or"),
        ('decoder = "yolov8"', 'decoder = "yolo9000"', "decoder: invalid enum value 'yolo9000'"),
        ('decoder = "yolov8"', 'decoder = "yolov4"', "detection.anchors is missing"),
        ('decoder = "yolov8"', 'decodr = "yolov8"', "unknown key decodr; did you mean decoder?"),
        ('task = "detection"', 'task = "pose"', "task: invalid enum value 'pose'"),
        ("[416, 320]", "[416]", "input.size_wh: expected `array` of length 2"),
        ("[416, 320]", '[416, "320"]', "input.size_wh[1]: expected `int`, got `str`"),
        ("[416, 320]", "[416, 0]", "input.size_wh[1]: expected `int` >= 8"),
        ("[416, 320]", "[416, 320]\nstd = [1, 0, 1]", "input: std holds 0"),
        ("[416, 320]", "[416, 320]\nmean = [1, 0]", "input: mean has 2 values, expected 3"),
        ("[416, 320]", "[416, 320]\nlay_out = 3", "unknown key input.lay_out; did you mean layout?"),
        ("[416, 320]", '[416, 320]\ncolor = "YUV"', "input.color: invalid enum value 'YUV'"),
        ('name = "m"', 'name = "../m"', "name: expected `str` matching"),
    ],
)
def test_wrong_spec_names_file_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = _write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load_model_spec(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_model_spec(tmp_path / "model.toml")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model_spec(tmp_path)


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\n big dog \n\n")
    assert read_labels(path) == ("cat", "big dog")
    path.write_text("\n")
    with pytest.raises(ModelError, match="no labels in it"):
        read_labels(path)
    path.write_bytes(b"\xff\xff")
    with pytest.raises(ModelError, match="labels cannot be read"):
        read_labels(path)
    with pytest.raises(ModelError, match="no such labels file"):
        read_labels(tmp_path / "none")


def test_nhwc_and_gray_shapes() -> None:
    assert InputSpec(size_wh=(32, 16), layout="NHWC").tensor_shape == (1, 16, 32, 3)
    assert InputSpec(size_wh=(32, 16), color="GRAY").tensor_shape == (1, 1, 16, 32)
