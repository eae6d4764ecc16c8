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
    named = (spec.model, spec.labels, spec.data.calibration)
    assert named == tuple(str(tmp_path / name) for name in ("m.onnx", "labels.txt", "images"))
    assert (spec.data.evaluation, spec.thresholds.confidence) == (None, 0.25)
    assert spec.input.tensor_shape == (1, 3, 320, 416)


def test_wrong_spec_names_file_and_key(tmp_path: Path) -> None:
    for old, new, expected in (
        ('decoder = "yolov8"', 'decoder = "softmax"', "decoder: 'softmax' is not for detection; expected yolov4 or"),
        ('decoder = "yolov8"', 'decoder = "yolov4"', "detection.anchors is missing"),
        ('decoder = "yolov8"', 'decoder = "yolov7"', "'yolox' or 'yunet'"),  # another number is no slip
        ('decoder = "yolov8"', "", "decoder is missing, expected 'centerface', 'centernet', 'db', '"),
        ('labels = "labels.txt"', "", "labels is missing, expected a text file with one label a line"),
        ("size_wh = [416, 320]", "", "input.size_wh is missing, expected a list of 2 whole numbers such as [416, 416]"),
        ("[416, 320]", "[416, 320]\nstd = [1, 0, 1]", "input: std holds 0"),
        ("[416, 320]", "[416, 320]\nmean = [nan, 0, 0]", "input: mean holds nan, expected finite numbers"),
        ("[416, 320]", "[416, 320]\n[detection]\nanchors = [[[0, 9]]]", "anchors holds 0.0, expected positive"),
        ("[416, 320]", "[416, 320]\nstd = [1, 1e-40, 1]", "input: mean and std make values of the picture that"),
        ("[416, 320]", '[416, 320]\ncolor = "rgb"', "'rgb', expected 'BGR', 'GRAY' or 'RGB'; did you mean RGB?"),
        ("[input]\nsize_wh = [416, 320]", "", "input is missing, expected a table [input]"),
        ("[data]", "[gates]\nmax_size_mb = 0\n[data]", "gates.max_size_mb is 0, expected more than 0"),
        ('name = "m"', 'name = "../m"', "name: '../m', expected letters, digits, dot, underscore and hyphen, at most"),
    ):
        path = _write(tmp_path, GOOD.replace(old, new))
        said = refusal(ModelError, load_model_spec, path)
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


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "model.toml: no such file" in refusal(ModelError, load_model_spec, tmp_path / "model.toml")


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    for data, labels in ((b"cat\n big dog \n\n", ("cat", "big dog")), (b"\xef\xbb\xbfcat\r\ndog\r\n", ("cat", "dog"))):
        path.write_bytes(data)  # the second as Notepad saves it
        assert read_labels(path) == labels
    for data, expected in ((b"\n", "no labels in it"), (b"\xff\xff", "labels cannot be read")):
        path.write_bytes(data)
        assert expected in refusal(ModelError, read_labels, path)
    said = refusal(ModelError, read_labels, tmp_path / "none")
    assert "no such labels file, and no list of this name (coco80, coco90, coco91, " in said


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
        cell = row[1]
        documented = cell if cell in ("required", "none") else tomllib.loads(f"cell = {cell.strip('`')}")["cell"]
        assert documented == _default(field)


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
    lines = (targets_folder() / f"{name}.toml").read_text().splitlines()
    keys = {line.partition(" =")[0]: number for number, line in enumerate(lines) if line[:1].isalpha()}
    assert {*target.__struct_fields__} - {"provider_options", "latency_budget_ms"} <= {*keys}
    unexplained = [key for key, at in keys.items() if "#" not in lines[at] and not lines[at - 1].startswith("#")]
    assert unexplained == []


def test_what_a_target_says_of_its_providers() -> None:
    options = load_target("jetson_orin_nano").provider_options
    assert options.given() == ["TensorrtExecutionProvider", "CUDAExecutionProvider"]
    # In full precision: what is less exact is beyond the tolerance of a float model's golden inputs.
    assert options.of("CUDAExecutionProvider")["use_tf32"] == "0"


_TENSORRT = "[provider_options.TensorrtExecutionProvider]\n"


def test_wrong_target_names_file_and_key(tmp_path: Path) -> None:
    for old, new, expected in (
        ("intra_op_num_threads = 2", "intra_op_num_threads = 0", "intra_op_num_threads is 0, expected 1 or more"),
        ('["CPUExecutionProvider"]', '["NeonExecutionProvider"]', "'NeonExecutionProvider' is not an execution"),
        ('["CPUExecutionProvider"]', '["CUDAExecutionProvider"]', "expected CPUExecutionProvider last"),
        ("clock_mhz = 0", "latency_budget_ms = inf", "latency_budget_ms is inf, expected 1000000000 or less"),
        ('name = "arm64"', 'name = "other"', "name is 'other', expected 'arm64'"),
        ("", _TENSORRT + "trt_fp16_enabled = true", "unknown key trt_fp16_enabled; did you mean trt_fp16_enable?"),
        # A bundle must not say where a device writes, nor what code it loads.
        ("", _TENSORRT + 'trt_engine_cache_path = "/tmp"', "options.TensorrtExecutionProvider: unknown key trt_en"),
        ("", _TENSORRT + "trt_dla_core = 1", "TensorrtExecutionProvider: it is not among providers, which are CPUExec"),
    ):
        text = (targets_folder() / "arm64.toml").read_text()
        assert old in text
        path = tmp_path / "arm64.toml"
        path.write_text(text.replace(old, new) if old else text + new)
        said = refusal(TargetError, load_target, str(path))
        assert said.startswith(f"{path}: ")
        assert expected in said


def test_unknown_target_lists_the_known_ones_and_a_name_is_no_path() -> None:
    for said in ("'pi4'; did you mean raspberry_pi_4? ", "'amd64'; did you mean x86_64? ", "'../targets/arm64'; "):
        refused = refusal(TargetError, load_target, said.split("'")[1])
        assert refused.startswith(f"unknown target {said}expected a path to a .toml or one of: arm64, ")
