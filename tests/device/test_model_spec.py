"""model.toml: what it says, and what it may not say."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from edge_sdk.errors import ModelError
from edge_sdk.model_spec import DECODERS, InputSpec, ModelSpec, load_model_spec, read_labels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REFERENCE = (Path(__file__).parents[2] / "docs" / "model-toml.md").read_text(encoding="utf-8")
TABLES: list[tuple[str, type[msgspec.Struct]]] = [
    ("", ModelSpec),
    *(
        (field.name, kind)
        for field in msgspec.structs.fields(ModelSpec)
        for kind in (field.type, *get_args(field.type))  # a section that may be missing is "Section | None"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ),
]

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
        (
            'decoder = "yolov8"',
            'decoder = "yolo9000"',
            "'yolo9000', expected logits, softmax, argmax, yolov4, yolov5, yolov8, yolox, nanodet, centerface or ssd",
        ),
        (
            'decoder = "yolov8"',
            'decoder = "YoloV8"',
            "expected logits, softmax, argmax, yolov4, yolov5, yolov8, yolox, nanodet, centerface or ssd; did you",
        ),
        ('decoder = "yolov8"', 'decoder = "yolov4"', "detection.anchors is missing"),
        ('decoder = "yolov8"', 'decodr = "yolov8"', "unknown key decodr; did you mean decoder?"),
        ('decoder = "yolov8"', "", "decoder is missing, expected one of logits, softmax, argmax, yolov4, yolov5"),
        ('labels = "labels.txt"', "", "labels is missing, expected a text file with one label a line, in output order"),
        (
            'labels = "labels.txt"',
            'labels = ["a"]',
            "labels: got a list, expected a string: a text file with one label",
        ),
        ('task = "detection"', 'task = "pose"', "task: 'pose', expected classification, detection or segmentation"),
        ('task = "detection"', 'task = "detect"', "detection or segmentation; did you mean detection?"),
        (
            'task = "detection"\ndecoder = "yolov8"',
            'task = "segmentation"\ndecoder = "softmax"',
            "decoder: 'softmax' is not for segmentation; expected logits or argmax",
        ),
        ("size_wh = [416, 320]", "", "input.size_wh is missing, expected a list of 2 whole numbers such as [416, 416]"),
        (
            "[416, 320]",
            '"416x320"',
            "input.size_wh: got a string, expected a list of 2 whole numbers such as [416, 416]",
        ),
        ("[416, 320]", "[416]", "input.size_wh has 1 entry, expected 2, such as [416, 416]"),
        ("[416, 320]", '[416, "320"]', "input.size_wh[1]: got a string, expected a whole number; leave out the quotes"),
        ("[416, 320]", "[416, 0]", "input.size_wh[1] is 0, expected 8 or more"),
        ("[416, 320]", "[416, 320]\nstd = [1, 0, 1]", "input: std holds 0"),
        ("[416, 320]", "[416, 320]\nstd = [1, inf, 1]", "input: std holds inf, expected finite numbers"),
        ("[416, 320]", "[416, 320]\nmean = [nan, 0, 0]", "input: mean holds nan, expected finite numbers"),
        ("[416, 320]", "[416, 320]\n[budget]\nlatency_ms = inf", "budget: latency_ms holds inf"),
        (
            "[416, 320]",
            "[416, 320]\n[detection]\nanchors = [[[0, 9]]]",
            "detection: anchors holds 0.0, expected positive",
        ),
        ("[416, 320]", "[416, 320]\n[detection]\nscale_xy = [nan]", "detection: scale_xy holds nan"),
        ("[416, 320]", "[416, 320]\nmean = [1, 0]", "input: mean has 2 values, expected 3"),
        ("[416, 320]", '[416, 320]\nmean = "1"', "input.mean: got a string, expected a list of numbers"),
        ("[416, 320]", "[416, 320]\nlay_out = 3", "unknown key input.lay_out; did you mean layout?"),
        (
            'name = "m"',
            'name = "m"\nbackground_class = true',
            "unknown key background_class; belongs under [classification]",
        ),
        (
            "[416, 320]",
            "[416, 320]\nbackground_class = true",
            "unknown key input.background_class; belongs under [classification]",
        ),
        (
            "[416, 320]",
            '[416, 320]\nlabels = "l.txt"',
            "unknown key input.labels; belongs at the top, above the first [table] or under [teacher]",
        ),
        (
            "[416, 320]",
            "[416, 320]\n[input.thresholds]\niou = 0.5",
            "unknown key input.thresholds; belongs to a table of its own, [thresholds]",
        ),
        (
            "[416, 320]",
            "[416, 320]\n[gates]\nquality = 1",
            "unknown key gates.quality; known keys: int8_max_drop_relative,",
        ),
        ("[416, 320]", '[416, 320]\ncolor = "rgb"', "input.color: 'rgb', expected RGB, BGR or GRAY; did you mean RGB?"),
        ("[416, 320]", '[416, 320]\ncolor = "YUV"', "input.color: 'YUV', expected RGB, BGR or GRAY"),
        ("[416, 320]", '[416, 320]\npad_anchor = "topleft"', "expected center or top_left; did you mean top_left?"),
        ("[416, 320]", '[416, 320]\nresize = "LETTERBOX"', "stretch or center_crop; did you mean letterbox?"),
        ("[input]\nsize_wh = [416, 320]", "", "input is missing, expected a table [input]"),
        ("[data]", "[gates]\nmax_size_mb = 0\n[data]", "gates.max_size_mb is 0, expected more than 0"),
        ("[data]", "[thresholds]\niou = 45\n[data]", "thresholds.iou is 45, expected 1 or less"),
        (
            'name = "m"',
            'name = "../m"',
            "name: '../m', expected letters, digits, dot, underscore and hyphen, at most 100",
        ),
        ('name = "m"', "name = my_model", "not valid TOML: Invalid value (at line 3, column 8); strings need quotes"),
    ],
)
def test_wrong_spec_names_file_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = _write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load_model_spec(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("decoder", ["yolov7", "yolov3", "yolo11", "nanodet2"])
def test_another_number_is_another_decoder_and_no_slip(tmp_path: Path, decoder: str) -> None:
    with pytest.raises(ModelError, match=rf"'{decoder}', expected logits, .*, centerface or ssd$"):
        load_model_spec(_write(tmp_path, GOOD.replace("yolov8", decoder)))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_model_spec(tmp_path / "model.toml")
    with pytest.raises(ModelError, match="cannot be read"):
        load_model_spec(tmp_path)


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\n big dog \n\n")
    assert read_labels(path) == ("cat", "big dog")
    path.write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\n")  # as Notepad saves it
    assert read_labels(path) == ("cat", "dog")
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


@pytest.mark.parametrize(("section", "struct"), TABLES)
def test_the_reference_has_every_key_with_its_default(section: str, struct: type[msgspec.Struct]) -> None:
    heading = f"## `[{section}]`\n" if section else "## The top level\n"
    assert heading in REFERENCE
    text = REFERENCE.split(heading)[1].split("\n## ")[0]
    for field in msgspec.structs.fields(struct):
        if section == "" and field.name in dict(TABLES):
            continue  # a section, which has a table of its own
        row = re.search(rf"^\| `{field.encode_name}` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
        assert row, f"docs/model-toml.md: no row for {field.encode_name} under {heading}"
        assert _documented_default(row[1]) == _default(field)


def _documented_default(cell: str) -> object:
    return cell if cell in ("required", "none") else tomllib.loads(f"default = {cell.strip('`')}")["default"]


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.required:
        return "required"
    if field.default is None:
        return "none"
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return list(field.default) if isinstance(field.default, tuple) else field.default


def test_the_reference_names_no_key_that_is_not_there() -> None:
    known = {field.encode_name for _, struct in TABLES for field in msgspec.structs.fields(struct)}
    tables = re.findall(r"^\| key \|.*\n\|[-|]+\n((?:\|.*\n)+)", REFERENCE, re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)` \|", "".join(tables), re.MULTILINE)) <= known


@pytest.mark.parametrize("example", re.findall(r"^```toml\n(model =.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL))
def test_every_example_of_the_reference_loads(tmp_path: Path, example: str) -> None:
    assert load_model_spec(_write(tmp_path, example)).name


def test_the_reference_has_an_example_of_each_kind() -> None:
    examples = [tomllib.loads(e) for e in re.findall(r"^```toml\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)]
    assert {e["decoder"] for e in examples} == {
        "logits",
        "softmax",
        "yolov4",
        "yolov8",
        "yolox",
        "nanodet",
        "centerface",
        "ssd",
    }
    assert {e["task"] for e in examples} == set(DECODERS)
    assert all("model" in e for e in examples)
