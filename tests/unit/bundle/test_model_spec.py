"""model.toml and targets: what they say, and what they may not say."""

import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target, target_names, targets_folder
from edge_sdk.core.errors import ModelError, TargetError
from edge_sdk.tasks.decoders import TABLE
from edge_sdk.tasks.detection import TASKS
from edge_sdk_tools.datasets.class_names import read_labels
from tests.support.logs import refusal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REFERENCE = (Path(__file__).parents[3] / "docs" / "model-toml.md").read_text(encoding="utf-8")
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
        ('decoder = "yolov8"', 'decoder = "yolov4"', "detection.anchors is missing"),
        ('decoder = "yolov8"', 'decoder = "yolov7"', "'yolox' or 'yunet'"),  # another number is no slip
        ('decoder = "yolov8"', "", "decoder is missing, expected 'centerface', 'centernet', 'db', '"),
        ('labels = "labels.txt"', "", "labels is missing, expected a text file with one label a line"),
        ('detection"\ndecoder = "yolov8', 'segmentation"\ndecoder = "softmax', "expected logits or argmax"),
        ("size_wh = [416, 320]", "", "input.size_wh is missing, expected a list of 2 whole numbers such as [416, 416]"),
        ("[416, 320]", "[416, 320]\nstd = [1, 0, 1]", "input: std holds 0"),
        ("[416, 320]", "[416, 320]\nmean = [nan, 0, 0]", "input: mean holds nan, expected finite numbers"),
        ("[416, 320]", "[416, 320]\n[detection]\nanchors = [[[0, 9]]]", "anchors holds 0.0, expected positive"),
        ("[416, 320]", "[416, 320]\nstd = [1, 1e-40, 1]", "input: mean and std make values of the picture that"),
        ("[416, 320]", '[416, 320]\ncolor = "rgb"', "'rgb', expected 'BGR', 'GRAY' or 'RGB'; did you mean RGB?"),
        ("[input]\nsize_wh = [416, 320]", "", "input is missing, expected a table [input]"),
        ("[data]", "[gates]\nmax_size_mb = 0\n[data]", "gates.max_size_mb is 0, expected more than 0"),
        ('name = "m"', 'name = "../m"', "name: '../m', expected letters, digits, dot, underscore and hyphen, at most"),
    ],
)
def test_wrong_spec_names_file_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = _write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load_model_spec(path)
    said = str(caught.value)
    assert str(path) in said
    assert expected in said
    assert ("did you mean" in said) == ("did you mean" in expected)


def test_all_mistakes_are_said_at_once_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        'model = "a.onnx"\nnam = "a"\ntask = "detect"\ndecoder = "yolov8"\nlabels = "coco80"\n'
        '[input]\nsize_wh = [64]\n# colour\ncolour = "RGB"\n[thresholds]\nconfidence = 7\n'
    )
    with pytest.raises(ModelError) as caught:
        load_model_spec(path)
    said = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in said)
    for expected, number in (
        ("unknown key nam;", 2),
        ("task: 'detect'", 3),
        ("input.size_wh has", 7),
        ("colour;", 9),
        ("confidence is 7", 11),
    ):
        [line] = [line for line in said if expected in line]
        assert line.endswith(f"(line {number})")
    assert [line for line in said if "(line" not in line] == [said[-1]]
    assert "name is missing" in said[-1]


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
    with pytest.raises(ModelError, match=r"no such labels file, and no list of this name \(coco80, coco90, coco91, "):
        read_labels(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "count", "first"), [("coco80", 80, "person"), ("imagenet1k", 1000, "tench"), ("voc20", 20, "aeroplane")]
)
def test_lists_of_labels_have_names_that_a_file_hides(tmp_path: Path, name: str, count: int, first: str) -> None:
    labels = read_labels(tmp_path / name)
    assert (len(labels), len({label.casefold() for label in labels}), labels[0]) == (count, count, first)
    (tmp_path / name).write_text("mine")
    assert read_labels(tmp_path / name) == ("mine",)


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


def test_the_reference_describes_every_decoder() -> None:
    rows = re.findall(rf"^\| `(\w+)` \| ({'|'.join(TASKS)}) \|", REFERENCE, re.MULTILINE)
    assert set(rows) == {(decoder.name, decoder.task) for decoder in TABLE}


@pytest.mark.parametrize("name", target_names())
def test_every_target_loads_and_explains_each_field(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    text = (targets_folder() / f"{name}.toml").read_text()
    keys = [line.partition(" =")[0] for line in text.splitlines() if line[:1].isalpha()]
    assert {*target.__struct_fields__} - {"provider_options"} <= {*keys}
    for key in keys:
        line = next(i for i, text_line in enumerate(text.splitlines()) if text_line.startswith(f"{key} ="))
        explained = "#" in text.splitlines()[line] or text.splitlines()[line - 1].startswith("#")
        assert explained, f"{name}: {key} has no comment"


def test_what_a_target_says_of_its_providers() -> None:
    jetson = load_target("jetson_orin_nano")
    assert jetson.provider_options.given() == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    # In full precision: what is less exact is beyond the tolerance of a float model's golden inputs.
    assert jetson.provider_options.of("TensorrtExecutionProvider") == {"trt_max_workspace_size": "1073741824"}
    assert jetson.provider_options.of("CUDAExecutionProvider")["use_tf32"] == "0"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("intra_op_num_threads = 2", "intra_op_num_threads = 0", "intra_op_num_threads is 0, expected 1 or more"),
        ('["CPUExecutionProvider"]', '["NeonExecutionProvider"]', "'NeonExecutionProvider' is not an execution"),
        ('["CPUExecutionProvider"]', '["CUDAExecutionProvider"]', "expected CPUExecutionProvider last"),
        ('weight_type = "QInt8"', 'weight_type = "int8"', "'int8', expected 'QInt8' or 'QUInt8'; did you mean QInt8?"),
        ("latency_budget_ms = 200.0", "latency_budget_ms = inf", "latency_budget_ms is inf, expected a finite number"),
        ('max_onnxruntime = ""', 'max_onnxruntime = "new"', "max_onnxruntime: 'new', expected a version, or empty"),
        ('name = "arm64"', 'name = "other"', "name is 'other', expected 'arm64'"),
    ],
)
def test_wrong_target_names_file_and_key(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = (targets_folder() / "arm64.toml").read_text()
    assert old in text
    path = tmp_path / "arm64.toml"
    path.write_text(text.replace(old, new))
    said = refusal(TargetError, load_target, str(path))
    assert str(path) in said
    assert expected in said


_TENSORRT, _CUDA = "[provider_options.TensorrtExecutionProvider]\n", "[provider_options.CUDAExecutionProvider]\n"


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (_TENSORRT + "trt_fp16_enabled = true", "unknown key trt_fp16_enabled; did you mean trt_fp16_enable?"),
        (_CUDA + 'arena_extend_strategy = "kSame"', "expected 'kNextPowerOfTwo' or 'kSameAsRequested'"),
        # A bundle must not say where a device writes, nor what code it loads.
        (_TENSORRT + 'trt_engine_cache_path = "/tmp"', "options.TensorrtExecutionProvider: unknown key trt_en"),
        (_TENSORRT + "trt_dla_core = 1", "TensorrtExecutionProvider: it is not among providers, which are CPUExec"),
    ],
)
def test_wrong_options_of_a_provider_name_the_key(tmp_path: Path, added: str, expected: str) -> None:
    path = tmp_path / "arm64.toml"
    path.write_text((targets_folder() / "arm64.toml").read_text() + added)
    said = refusal(TargetError, load_target, str(path))
    assert said.startswith(f"{path}: ")
    assert expected in said


def test_unknown_target_lists_the_known_ones_and_a_name_is_no_path() -> None:
    for name in ("pi4", "../targets/arm64"):
        with pytest.raises(TargetError, match=f"unknown target '{name}'.*raspberry_pi_4"):
            load_target(name)
