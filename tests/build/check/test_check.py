"""The export gate and its command: what passes is fixed and loads, what does not is named."""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, external_data_helper, helper

from edge_sdk.bundle.manifest import parse_version
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.tasks.spec import ClassificationSpec
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.check import model_file
from edge_sdk_tools.check.gate import CheckedModel, as_admitted, check_model, examine
from edge_sdk_tools.check.labels import check_labels
from edge_sdk_tools.check.model_file import assemble, digest, no_model, read_external
from edge_sdk_tools.check.report import CheckReport, Costs, Finding, TensorInfo
from edge_sdk_tools.check.sandbox import Limits
from edge_sdk_tools.check.screen import render
from edge_sdk_tools.datasets.class_names import LISTS, read_labels
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, DETECTOR, write_project
from tests.support.reports import network, only, report_on


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    path = tmp_path / "model.onnx"
    skeleton = tiny.classifier().SerializeToString()
    assert assemble(path, [], skeleton, [], digest({"": path.read_bytes()})).graph.node
    with pytest.raises(ModelError, match="changed while it was checked; check it again"):
        assemble(path, [], skeleton, [], digest({"": b"before"}))


def _project(folder: Path, model: onnx.ModelProto | None = None) -> ModelSpec:
    return load_model_spec(write_project(folder, model=model, pictures=0))


def test_every_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [node.name for node in check_model(_project(tmp_path), load_target("arm64")).proto.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_only_the_first_error_stops_a_build_and_the_others_are_counted(tmp_path: Path) -> None:
    model = tiny.classifier(opset=26)
    model.graph.initializer[0].raw_data = np.full(216, np.nan, np.float32).tobytes()
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    said = refusal(ModelError, check_model, _project(tmp_path, model), load_target("arm64"))
    assert said.startswith(f"{tmp_path / 'model.onnx'}: opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21; ")
    assert said.endswith("(and 2 more: `edge-sdk check MODEL.toml --target arm64 --prove-runtime 1.20.1` lists them)")


def test_without_a_target_this_machines_runtime_counts(tmp_path: Path) -> None:
    spec = _project(tmp_path)
    assert check_model(spec, None).opset == tiny.OPSET
    report = examine(spec)
    assert (report.passed, report.target) == (True, None)
    assert report.onnxruntime == report.kernel_table == ort.__version__


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nothing.onnx", "nothing.onnx: no such model file"),
        ("folder", "folder: the model cannot be read: it is a folder, expected a regular file"),
        ("pipe", "pipe: the model cannot be read: it is a pipe, expected a regular file"),
        ("model.toml/x", "model.toml/x: the model cannot be read: Not a directory"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b: the model cannot be read: there is a NUL character in its name"),
        ("a\nb", "a b: no such model file"),
    ],
)
def test_a_path_that_leads_to_no_model(tmp_path: Path, model: str, expected: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = write_project(tmp_path, CLASSIFIER.replace('"model.onnx"', json.dumps(model)), pictures=0)
    [finding] = examine(load_model_spec(path)).findings
    assert (finding.severity, finding.rule) == ("error", "file")
    assert finding.what.endswith(expected)
    assert finding.what.count(expected) == 1


def test_a_model_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    assert examine(load_model_spec(write_project(folder, pictures=0))).passed


@pytest.mark.sandbox
def test_a_process_that_dies_is_an_error_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can end the process that reads it: what can be said without it is said all the same."""
    monkeypatch.setattr("edge_sdk_tools.check.gate._LIMITS", Limits(memory_mb=4096, cpu_s=60, wall_s=0))
    spec = load_model_spec(write_project(tmp_path, labels="", pictures=0))
    died, labels = examine(spec, load_target("arm64")).findings
    assert (died.rule, labels.rule) == ("file", "labels")
    assert died.what == f"{tmp_path / 'model.onnx'}: it was not examined within 0 s"
    with pytest.raises(ModelError, match=rf"^{died.what}; the file is damaged, .* \(and 1 more: "):
        check_model(spec, load_target("arm64"))


AGAIN = "export or copy it again"


def _zip() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("weights/data.pkl", b"x")
    return written.getvalue()


@pytest.mark.parametrize(
    ("data", "what", "step"),
    [
        (b"", ", damaged or not whole (0 bytes)", AGAIN),
        (b"version https://git-lfs.github.com/spec/v1\n", ": it looks like a pointer of Git LFS", "fetch it"),
        (b"<!DOCTYPE html>\n<html>", ": it looks like a web page", "download the file itself"),
        (_zip(), ": it looks like a zip such as PyTorch's .pth (", "`edge-sdk import` makes an ONNX model"),
        (b"\x1c\0\0\0TFL3\0", ": it looks like a .tflite", "`edge-sdk import`"),
        (b"\x1c\0\0\0ORTM\0", ": it looks like an .ort", "take the .onnx that it was made from"),
        (tiny.classifier().SerializeToString()[:1000], ", damaged or not whole (1000 bytes)", AGAIN),
    ],
)
def test_what_a_file_looks_like(data: bytes, what: str, step: str) -> None:
    refusal = no_model(data)
    assert refusal.what.startswith(f"not an ONNX model{what}")
    assert refusal.next_step.startswith(step)


def _check(folder: Path) -> CheckedModel:
    return check_model(load_model_spec(folder / "model.toml"), load_target("arm64"))


def _split(folder: Path, location: str = "weights.bin") -> onnx.ModelProto:
    """A project whose weights all lie in one other file; returns the model as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    write_project(folder, pictures=0)
    proto = onnx.load(folder / "model.onnx")
    split = onnx.ModelProto.FromString(proto.SerializeToString())
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    external_data_helper.convert_model_to_external_data(split, location=location, size_threshold=0)
    onnx.save(split, folder / "model.onnx")
    return proto


def _edit(folder: Path, **entries: str) -> None:
    """Change what the model says of the first weight's place."""
    path = folder / "model.onnx"
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())


def _arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize(("location", "inside"), [("weights.bin", b""), ("deeper/weights.bin", bytes(8192))])
def test_weights_beside_the_model_are_taken_in(tmp_path: Path, location: str, inside: bytes) -> None:
    """Of a weight that lies in both places, that of the file counts."""
    original = _split(tmp_path, location)
    split = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    for tensor in split.graph.initializer:
        tensor.raw_data = inside
    (tmp_path / "model.onnx").write_bytes(split.SerializeToString())
    checked = _check(tmp_path)
    np.testing.assert_equal(_arrays(checked.proto), _arrays(original))
    assert all(t.data_location == TensorProto.DEFAULT for t in checked.proto.graph.initializer)


def test_the_hash_covers_the_other_files(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    assert _check(tmp_path).sha256 == hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    _split(tmp_path)
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("model.onnx", "weights.bin")]
    text = f"{digests[0]} \n{digests[1]} weights.bin\n"
    assert _check(tmp_path).sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_large_weights_of_both_kinds_come_back_whole(tmp_path: Path) -> None:
    """Some are cut out of the model, some lie beside it, some are written as lists of numbers."""
    random = np.random.default_rng(5)
    weights = {name: random.normal(size=(3, 3, 17, 17)).astype(np.float32) for name in ("inside", "beside", "listed")}
    text = """a = Conv<pads = [8, 8, 8, 8]>(images, inside) b = Conv<pads = [8, 8, 8, 8]>(a, beside)
        c = Conv<pads = [8, 8, 8, 8]>(b, listed) d = GlobalAveragePool(c) e = Flatten(d) y = Softmax(e)"""
    model = network(text, {"y": [1, 3]}, weights, shape=[1, 3, 16, 16])
    write_project(tmp_path, model=model, pictures=0)
    _, beside, listed = model.graph.initializer
    external_data_helper.set_external_data(beside, location="beside.bin", offset=8, length=len(beside.raw_data))
    (tmp_path / "beside.bin").write_bytes(bytes(8) + beside.raw_data + bytes(3))
    beside.ClearField("raw_data")
    beside.data_location = TensorProto.EXTERNAL
    listed.ClearField("raw_data")
    listed.float_data.extend(weights["listed"].reshape(-1).tolist())
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    np.testing.assert_equal(_arrays(_check(tmp_path).proto), weights)


def _link_out(folder: Path) -> None:
    outside = folder.parent / "outside.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)


def _link_folder_out(folder: Path) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (folder / "weights.bin").rename(outside / "weights.bin")
    (folder / "linked").symlink_to(outside)
    _edit(folder, location="linked/weights.bin")


def _pipe(folder: Path) -> None:
    (folder / "weights.bin").unlink()
    os.mkfifo(folder / "weights.bin")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: _edit(f, location="../weights.bin"), "'../weights.bin', expected a file in the model's own folder"),
        (lambda f: _edit(f, location="/etc/passwd"), "'/etc/passwd', expected a file in the model's own folder"),
        (lambda f: _edit(f, location="./weights.bin"), "by a plain relative path"),
        (lambda f: (f / "weights.bin").unlink(), "'weights.bin', which holds weights, is missing; copy it beside"),
        (_link_out, "is a link that leads out of the model's folder"),
        (_link_folder_out, "is a link that leads out of the model's folder"),
        (_pipe, "cannot be read: it is a pipe, expected a regular file"),
        (lambda f: _edit(f, offset="-1"), "lies at '-1' of its file, expected a number of bytes"),
        (lambda f: _edit(f, offset="4000000"), "lies in bytes 4000000 to"),
        (lambda f: _edit(f, length="4"), "has shape 8x3x3x3 and holds 4 bytes, expected 864"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: Callable[[Path], None], expected: str) -> None:
    folder = tmp_path / "project"
    _split(folder)
    change(folder)
    line = only(report_on(folder, None, size=16), "file").line
    assert expected in line
    assert line.isprintable()


def test_a_link_inside_the_folder_is_fine(tmp_path: Path) -> None:
    _split(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "real.bin")
    (tmp_path / "weights.bin").symlink_to("real.bin")
    assert _check(tmp_path).labels == ("a", "b", "c")


def test_a_constant_node_in_another_file(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    proto = tiny.classifier()
    value = TensorProto(name="gain", data_type=TensorProto.FLOAT, dims=[1], raw_data=bytes(4))
    external_data_helper.set_external_data(value, location="gain.bin")
    value.data_location = TensorProto.EXTERNAL
    value.ClearField("raw_data")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["gain"], value=value))
    proto.graph.node.insert(1, helper.make_node("Add", ["images", "gain"], ["moved"]))
    proto.graph.node[2].input[0] = "moved"
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"'gain\.bin', which holds weights, is missing"):
        _check(tmp_path)
    (tmp_path / "gain.bin").write_bytes(np.array([2.5], np.float32).tobytes())
    [constant] = [n for n in _check(tmp_path).proto.graph.node if n.op_type == "Constant"]
    assert onnx.numpy_helper.to_array(constant.attribute[0].t) == [2.5]


def test_more_than_protobuf_can_hold(tmp_path: Path) -> None:
    """A sparse file: its size is seen before it is read."""
    _split(tmp_path)
    os.truncate(tmp_path / "weights.bin", model_file.MOST_BYTES)
    with pytest.raises(ModelError, match="bytes together, expected at most 2147483647"):
        _check(tmp_path)
    with pytest.raises(ModelError, match="bytes together"):
        read_external(tmp_path, "weights.bin", 1000)
    os.truncate(tmp_path / "model.onnx", model_file.MOST_BYTES + 1)
    with pytest.raises(ModelError, match="have 2147483648 bytes together"):
        _check(tmp_path)


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_model_that_passes(tmp_path: Path, cli: Cli) -> None:
    captured = cli(0, "check", write_project(tmp_path, pictures=0), "--target", "raspberry_pi_5")
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0] == f"tiny for raspberry_pi_5, ONNX Runtime {ort.__version__}"
    assert lines[-1] == "passed: 0 errors, 0 warnings"
    text = " ".join(captured.out.split())
    for said in (
        "model.onnx, 2.2 kB format opset 17, IR version 9",
        "images: float 1x3x16x16",
        "probabilities: float 1x3",
        "CPU: 6 of 6 nodes, by kernels of ONNX Runtime 1.31.1, by operator, opset and type",
    ):
        assert said in text
    assert re.search(r"Conv +│ +2 │ +27\.6 k │ 100\.0% │ yes", captured.out)
    assert "\x1b" not in captured.out  # no colours where nobody sees them


@pytest.mark.parametrize("form", ["table", "JSON"])
def test_a_model_that_fails(tmp_path: Path, cli: Cli, form: str) -> None:
    path = write_project(tmp_path, model=tiny.classifier(classes=4, opset=26), pictures=0)
    options = ["--json"] if form == "JSON" else []
    captured = cli(2, "check", path, "--target", "arm64", "--prove-runtime", "1.20.1", *options)
    assert captured.err == f"edge-sdk: {path}: 2 errors, named {'in the JSON' if options else 'above'}\n"
    if options:
        report = msgspec.json.decode(captured.out, type=CheckReport)
        assert [finding.rule for finding in report.findings] == ["opset", "labels"]
    else:
        text = " ".join(captured.out.split())
        assert "failed: 2 errors, 0 warnings" in text
        assert "error opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21 → export it with a lower opset" in text


def test_what_cannot_be_counted_is_unknown(tmp_path: Path, cli: Cli) -> None:
    path = str(write_project(tmp_path, model=tiny.classifier(size=24, batch="N"), pictures=0))
    text = " ".join(cli(2, "check", path).out.split())
    assert "multiply-accumulates unknown activations unknown" in text
    assert "→ set size_wh = [24, 24] under [input] in model.toml" in text
    costs = msgspec.json.decode(cli(2, "check", path, "--json").out)["costs"]
    assert (costs["macs"], costs["peak_activation_bytes"]) == (None, None)


@pytest.mark.parametrize("columns", ["60", "200"])
def test_the_table_fits_the_terminal(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    model = network("y = com.example.a.rather.long.domain.Frobnicate(images)")
    lines = _plain(render(report_on(tmp_path, model, target="jetson_orin_nano"))).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert all(line == line.rstrip() for line in lines)
    assert lines[-1] == "failed: 1 error, 0 warnings"
    assert any("TensorRT" in line for line in lines)


def test_what_a_file_says_of_itself_is_no_markup() -> None:
    """Names that look like instructions for the terminal's library stay what they are."""
    finding = Finding(severity="warning", rule="x", what="node '[bold red]' is [/]", next_step="[link=x]")
    report = CheckReport(name="[red]x", model="[/].onnx", target=None, onnxruntime="1", opset=17, findings=(finding,))
    text = _plain(render(report))
    assert "[red]x for this machine" in text
    assert "node '[bold red]' is [/]" in text
    assert "→ [link=x]" in text


_OLDEST = "opset 24, but ONNX Runtime 1.20.1 on arm64 runs up to 21"


@pytest.mark.parametrize(
    ("target", "versions", "lowest"),
    [
        ("arm64", [], ort.__version__),
        ("arm64", ["1.23.2", "1.22.1"], "1.22.1"),
        ("jetson_orin_nano", [], "1.23.2"),  # the highest that it can have
    ],
)
def test_the_lowest_version_that_a_bundle_admits_counts(target: str, versions: list[str], lowest: str) -> None:
    assert as_admitted(load_target(target), versions).min_onnxruntime == lowest


@pytest.mark.skipif(parse_version(ort.__version__) < (1, 24, 0), reason="needs a newer ONNX Runtime")
def test_what_its_bundle_will_admit_is_checked_first(tmp_path: Path, cli: Cli) -> None:
    """There are no pictures, so that a build ends behind the check."""
    model = write_project(tmp_path, model=tiny.classifier(opset=24), pictures=0)
    check = ["check", str(model), "--target", "arm64"]
    assert f"tiny for arm64, ONNX Runtime {ort.__version__}" in cli(0, *check).out
    assert _OLDEST in " ".join(cli(2, *check, "--prove-runtime", "1.20.1").out.split())
    with pytest.raises(DataError, match="pictures"):
        build(model, "arm64", tmp_path / "a.edge")
    with pytest.raises(ModelError, match=_OLDEST):
        build(model, "arm64", tmp_path / "a.edge", prove_runtimes=["1.20.1"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--prove-runtime", "1.20.1"], "give --target too"),
        (["--target", "arm64", "--prove-runtime", "1.19.2"], "expected a version from 1.20.1, the lowest of arm64, to"),
        (["--target", "arm64", "--prove-runtime", "../1.20.1"], "expected a version from 1.20.1"),
    ],
)
def test_versions_that_make_no_sense(tmp_path: Path, cli: Cli, options: list[str], expected: str) -> None:
    assert expected in cli(2, "check", write_project(tmp_path, pictures=0), *options).err


# Labels: what is known of them is said, beside whatever else is wrong, with what to do.


BACKGROUND = CLASSIFIER + "[classification]\nbackground_class = true\n"
YOLOV8 = CLASSIFIER.replace("classification", "detection").replace("softmax", "yolov8").replace("16, 16", "8, 8")
ONE_A_CLASS = "write one line a class, in output order"
TAKE_OUT = 'is the first line "background", or another one empty or there twice? Then take it out'
SHIFTED = "the file looks reversed or shifted"
TEN = [f"class {number}" for number in range(10)]


def _findings(
    folder: Path, labels: list[str], classes: int, *, flag: bool = False, text: str = CLASSIFIER
) -> list[Finding]:
    """Of a model that declares so many classes."""
    path = write_project(folder, text, labels="\n".join(labels) + "\n", pictures=0)
    spec = msgspec.structs.replace(load_model_spec(path), classification=ClassificationSpec(background_class=flag))
    output = TensorInfo("y", "float", (1, classes))
    report = CheckReport(
        name="m", model="m.onnx", target=None, onnxruntime="", costs=Costs(0, 0, 0, 0, "", 0), outputs=(output,)
    )
    return check_labels(spec, report)


@pytest.mark.parametrize(
    ("labels", "classes", "flag", "expected"),
    [
        ([*TEN[:5], "", *TEN[5:]], 10, False, [("error", "11 lines, the model has 10", TAKE_OUT)]),
        (["a", "", "b", "c", "d"], 3, False, [("error", "5 lines", ONE_A_CLASS)]),
        (TEN, 11, True, [("error", "10 lines", "is the line for output 0 missing?")]),
        (["background", *TEN], 10, False, [("error", "11 lines", TAKE_OUT)]),
    ],
)
def test_what_the_lines_show(
    tmp_path: Path, labels: list[str], classes: int, flag: bool, expected: list[tuple[str, str, str]]
) -> None:
    for finding, (severity, what, step) in zip(_findings(tmp_path, labels, classes, flag=flag), expected, strict=True):
        assert finding.severity == severity
        assert what in finding.what
        assert finding.next_step
        assert finding.next_step.startswith(step)


def test_known_classes_in_another_order_are_doubted(tmp_path: Path) -> None:
    for number, labels in enumerate((read_labels(LISTS["coco80"]), [f"class {n}" for n in range(80)])):
        assert _findings(tmp_path / str(number), list(labels), 80, flag=False) == []
    [finding] = _findings(tmp_path / "sorted", sorted(read_labels(LISTS["coco80"])), 80, flag=False)
    assert finding.severity == "warning"
    assert "line 1 is 'airplane', and coco80 has 'person' there" in finding.what
    coco = list(read_labels(LISTS["coco80"]))
    coco[0], coco[2] = coco[2], coco[0]
    [finding] = _findings(tmp_path / "exchanged", coco, 80, flag=False)
    assert "line 1 is 'car', and coco80 has 'person' there" in finding.what
    imagenet = [f"{name}, another name" for name in read_labels(LISTS["imagenet1k"])]
    assert _findings(tmp_path / "imagenet", ["background", *imagenet], 1001, flag=True) == []
    [finding] = _findings(tmp_path / "alphabet", ["background", *sorted(imagenet)], 1001, flag=True)
    assert "line 2 is 'Afghan hound', and imagenet1k has 'tench' there" in finding.what


def _report(
    folder: Path, model: onnx.ModelProto | None = None, labels: str = "a\nb\nc\n", text: str = CLASSIFIER
) -> CheckReport:
    report = examine(load_model_spec(write_project(folder, text, model, labels=labels, pictures=0)))
    assert all(finding.next_step for finding in report.findings)
    return report


def _errors(report: CheckReport) -> list[str]:
    return [finding.rule for finding in report.of("error")]


@pytest.mark.parametrize("labels", [None, "\n\n"])
@pytest.mark.parametrize("rule", ["opset", "file"])
def test_a_labels_file_is_missed_beside_what_else_is_wrong(tmp_path: Path, rule: str, labels: str | None) -> None:
    path = write_project(tmp_path, model=tiny.classifier(opset=99), labels=labels or "", pictures=0)
    if rule == "file":
        (tmp_path / "model.onnx").unlink()
    if labels is None:
        (tmp_path / "labels.txt").unlink()
    report = examine(load_model_spec(path), load_target("arm64"))
    assert _errors(report) == [rule, "labels"]
    finding = only(report, "labels")
    assert finding.what.startswith(f"{tmp_path / 'labels.txt'}: ")
    assert finding.next_step == "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"


def test_an_error_about_labels_names_their_file_alone(tmp_path: Path) -> None:
    path = write_project(tmp_path, labels="", pictures=0)
    with pytest.raises(ModelError, match=rf"^{tmp_path / 'labels.txt'}: no labels in it.*; write one label a line"):
        check_model(load_model_spec(path), None)


def test_nothing_is_said_of_a_number_that_no_output_shows(tmp_path: Path) -> None:
    assert _errors(_report(tmp_path, tiny.segmenter(size=48))) == ["input"]


@pytest.mark.parametrize(
    ("labels", "found", "severity"),
    [
        ("cat\ndog\nbackground\n", f"'background' is line 3 of 3: {SHIFTED}", "error"),
        ("cat\n__Background__\ndog\n", "'background' is line 2 of 3", "error"),
        ("cat\ndog\nbird\n", "no line is 'background'", "warning"),
    ],
)
def test_a_first_line_that_is_not_the_background(tmp_path: Path, labels: str, found: str, severity: str) -> None:
    finding = only(_report(tmp_path, labels=labels, text=BACKGROUND), "labels")
    assert finding.severity == severity
    said = f"line 1 is 'cat', expected 'background', because background_class = true in model.toml; {found}"
    assert finding.what == f"{tmp_path / 'labels.txt'}: {said}"


@pytest.mark.parametrize("first", ["background", "__background__", "Background"])
def test_a_first_line_that_is_the_background(tmp_path: Path, first: str) -> None:
    assert _report(tmp_path, labels=f"{first}\nb\nc\n", text=BACKGROUND).findings == ()
    finding = only(_report(tmp_path, labels=f"{first}\nb\nc\n"), "labels")
    assert finding.severity == "warning"
    assert finding.what.endswith("and model.toml does not say so")


def test_only_a_classifier_counts_from_behind_its_background(tmp_path: Path) -> None:
    assert _report(tmp_path, tiny.head_detector(), "background\nblue\n", DETECTOR).findings == ()


def test_labels_that_are_empty_or_there_twice(tmp_path: Path) -> None:
    report = _report(tmp_path, tiny.classifier(classes=7), "crane\n\nb\ncrane\n\ncrane\nB\n")
    where = tmp_path / "labels.txt"
    assert [(finding.severity, finding.what) for finding in report.findings] == [
        ("warning", f"{where}: lines 2, 5 are empty, and counted as a label"),
        ("note", f"{where}: the same label for several outputs: 'crane' in lines 1, 4, 6"),
    ]
    assert report.findings[0].next_step == "write the label of that output"


@pytest.mark.parametrize(
    ("decoder", "operator", "step"),
    [
        ("logits", "Softmax", 'set decoder = "softmax"'),
        ("softmax", "Gemm", 'set decoder = "logits"'),
        ("softmax", "Softmax", None),
        ("logits", "GlobalAveragePool", None),
    ],
)
def test_probabilities_are_told_from_logits(tmp_path: Path, decoder: str, operator: str, step: str | None) -> None:
    spec = load_model_spec(write_project(tmp_path, CLASSIFIER.replace("softmax", decoder), pictures=0))
    output = TensorInfo("y", "float", (1, 3), operator)
    found = check_labels(spec, CheckReport(name="m", model="m.onnx", target=None, onnxruntime="", outputs=(output,)))
    assert [one.next_step for one in found if one.severity == "error"] == ([step] if step else [])
