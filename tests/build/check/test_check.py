"""The check and its command: a model that passes is fixed and loads, and what is wrong with another one is named."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
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
from tests.support.projects import CLASSIFIER, write_project
from tests.support.reports import network, only, report_on


def test_a_file_that_changes_meanwhile(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    path = tmp_path / "model.onnx"
    skeleton = tiny.classifier().SerializeToString()
    assert assemble(path, [], skeleton, digest({"": path.read_bytes()})).graph.node
    with pytest.raises(ModelError, match="changed while it was checked; check it again"):
        assemble(path, [], skeleton, digest({"": b"before"}))


def _project(folder: Path, model: onnx.ModelProto | None = None) -> ModelSpec:
    return load_model_spec(write_project(folder, model=model, pictures=0))


def test_every_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = [node.name for node in check_model(_project(tmp_path), load_target("arm64")).proto.graph.node]
    assert len({*names} - {""}) == len(names)


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


def test_a_path_that_leads_to_no_model(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for model, expected in (
        ("nothing.onnx", "nothing.onnx: no such model file"),
        ("folder", "folder: the model cannot be read: it is a folder, expected a regular file"),
        ("pipe", "pipe: the model cannot be read: it is a pipe, expected a regular file"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b: the model cannot be read: there is a NUL character in its name"),
    ):
        path = write_project(tmp_path, CLASSIFIER.replace('"model.onnx"', json.dumps(model)), pictures=0)
        [finding] = examine(load_model_spec(path)).findings
        assert (finding.severity, finding.rule, finding.what.count(expected)) == ("error", "file", 1)
        assert finding.what.endswith(expected)


def test_a_model_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    assert examine(load_model_spec(write_project(tmp_path / os.fsdecode(b"\xff"), pictures=0))).passed


@pytest.mark.sandbox
def test_a_process_that_dies_is_an_error_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can end the process that reads it; what is known without that process is still reported."""
    monkeypatch.setattr("edge_sdk_tools.check.gate._LIMITS", Limits(memory_mb=4096, cpu_s=60, wall_s=0))
    spec = load_model_spec(write_project(tmp_path, labels="", pictures=0))
    died, labels = examine(spec, load_target("arm64")).findings
    assert (died.rule, labels.rule) == ("file", "labels")
    assert died.what == f"{tmp_path / 'model.onnx'}: it was not examined within 0 s"
    with pytest.raises(ModelError, match=rf"^{died.what}; the file is damaged, .* \(and 1 more: "):
        check_model(spec, load_target("arm64"))


def test_what_a_file_looks_like() -> None:
    for data, what, step in (
        (b"version https://git-lfs.github.com/spec/v1\n", ": it looks like a pointer of Git LFS", "fetch it"),
        (b"<!DOCTYPE html>\n<html>", ": it looks like a web page", "download the file itself"),
        (b"PK\3\4", ": it looks like a zip such as PyTorch's .pth (", "`edge-sdk import` makes an ONNX model"),
        (b"\x1c\0\0\0TFL3\0", ": it looks like a .tflite", "`edge-sdk import`"),
        (b"\x1c\0\0\0ORTM\0", ": it looks like an .ort", "take the .onnx that it was made from"),
        (tiny.classifier().SerializeToString()[:999], ", damaged or not whole (999 bytes)", "export or copy it again"),
    ):
        found = no_model(data)
        assert found.what.startswith(f"not an ONNX model{what}")
        assert found.next_step.startswith(step)


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
    """Change where the model says that its first weight lies."""
    path = folder / "model.onnx"
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = entries.get(entry.key, entry.value)
    path.write_bytes(proto.SerializeToString())


def _arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@pytest.mark.parametrize(("location", "inside"), [("weights.bin", b""), ("deeper/weights.bin", bytes(8192))])
def test_weights_beside_the_model_are_taken_in(tmp_path: Path, location: str, inside: bytes) -> None:
    """If a weight lies in both places, the file's counts; a link inside the folder is allowed."""
    original = _split(tmp_path, location)
    (tmp_path / location).symlink_to((tmp_path / location).rename(tmp_path / "real.bin"))
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
    outside = (folder / "weights.bin").rename(folder.parent / "outside.bin")
    (folder / "weights.bin").symlink_to(outside)


def _link_folder_out(folder: Path) -> None:
    (folder / "weights.bin").rename(folder.parent / "weights.bin")
    (folder / "linked").symlink_to(folder.parent)
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


def test_a_constant_node_in_another_file(tmp_path: Path) -> None:
    write_project(tmp_path, pictures=0)
    proto = tiny.classifier()
    value = TensorProto(name="gain", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="gain.bin")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["gain"], value=value))
    proto.graph.node.insert(1, helper.make_node("Add", ["images", "gain"], ["moved"]))
    proto.graph.node[2].input[0] = "moved"
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    assert "'gain.bin', which holds weights, is missing" in refusal(ModelError, _check, tmp_path)
    (tmp_path / "gain.bin").write_bytes(np.array([2.5], np.float32).tobytes())
    [constant] = [n for n in _check(tmp_path).proto.graph.node if n.op_type == "Constant"]
    assert onnx.numpy_helper.to_array(constant.attribute[0].t) == [2.5]


def test_more_than_protobuf_can_hold(tmp_path: Path) -> None:
    """The sizes of sparse files: a size is compared before the file is read."""
    _split(tmp_path)
    os.truncate(tmp_path / "weights.bin", model_file.MOST_BYTES)
    assert "bytes together, expected at most 2147483647" in refusal(ModelError, _check, tmp_path)
    assert "bytes together" in refusal(ModelError, read_external, tmp_path, "weights.bin", 1000)
    os.truncate(tmp_path / "model.onnx", model_file.MOST_BYTES + 1)
    assert "have 2147483648 bytes together" in refusal(ModelError, _check, tmp_path)


def test_a_model_that_passes(tmp_path: Path, cli: Cli) -> None:
    captured = cli(0, "check", write_project(tmp_path, pictures=0), "--target", "raspberry_pi_5")
    first, *_, last = captured.out.splitlines()
    assert (first, captured.err) == (f"tiny for raspberry_pi_5, ONNX Runtime {ort.__version__}", "")
    assert last == "passed: 0 errors, 0 warnings"
    text = " ".join(captured.out.split())
    for said in (
        "model.onnx, 2.2 kB format opset 17, IR version 9",
        "images: float 1x3x16x16",
        "probabilities: float 1x3",
        "CPU: 6 of 6 nodes, by kernels of ONNX Runtime 1.31.1, by operator, opset and type",
    ):
        assert said in text
    assert re.search(r"Conv +│ +2 │ +27\.6 k │ 100\.0% │ yes", captured.out)
    assert "\x1b" not in captured.out  # no colours where the output is no terminal


def test_a_model_that_fails(tmp_path: Path, cli: Cli) -> None:
    path = write_project(tmp_path, model=tiny.classifier(classes=4, opset=26), pictures=0)
    command = ["check", path, "--target", "arm64", "--prove-runtime", "1.20.1"]
    table, in_json = cli(2, *command), cli(2, *command, "--json")
    assert table.err == f"edge-sdk: {path}: 2 errors, named above\n"
    assert in_json.err == f"edge-sdk: {path}: 2 errors, named in the JSON\n"
    report = msgspec.json.decode(in_json.out, type=CheckReport)
    assert [finding.rule for finding in report.findings] == ["opset", "labels"]
    text = " ".join(table.out.split())
    assert "failed: 2 errors, 0 warnings" in text
    assert "error opset 26, but ONNX Runtime 1.20.1 on arm64 runs up to 21 → export it with a lower opset" in text


def test_what_cannot_be_counted_is_unknown(tmp_path: Path, cli: Cli) -> None:
    path = str(write_project(tmp_path, model=tiny.classifier(size=24, batch="N"), pictures=0))
    text = " ".join(cli(2, "check", path).out.split())
    assert "multiply-accumulates unknown activations unknown" in text
    assert "→ set size_wh = [24, 24] under [input] in model.toml" in text
    costs = msgspec.json.decode(cli(2, "check", path, "--json").out)["costs"]
    assert (costs["macs"], costs["peak_activation_bytes"]) == (None, None)


def test_what_a_file_says_of_itself_is_no_markup() -> None:
    """Names that look like instructions for the terminal's library stay what they are."""
    finding = Finding(severity="warning", rule="x", what="node '[bold red]' is [/]", next_step="[link=x]")
    report = CheckReport(name="[red]x", model="[/].onnx", target=None, onnxruntime="1", opset=17, findings=(finding,))
    text = re.sub(r"\x1b\[[0-9;]*m", "", render(report))
    for shown in ("[red]x for this machine", "node '[bold red]' is [/]", "→ [link=x]"):
        assert shown in text


_OLDEST = "opset 24, but ONNX Runtime 1.20.1 on arm64 runs up to 21"


def test_the_lowest_version_that_a_bundle_admits_counts() -> None:
    for target, versions, lowest in (
        ("arm64", [], ort.__version__),
        ("arm64", ["1.23.2", "1.22.1"], "1.22.1"),
        ("jetson_orin_nano", [], "1.23.2"),  # the highest that it can have
    ):
        assert as_admitted(load_target(target), versions).min_onnxruntime == lowest


@pytest.mark.skipif(parse_version(ort.__version__) < (1, 24, 0), reason="needs a newer ONNX Runtime")
def test_what_its_bundle_will_admit_is_checked_first(tmp_path: Path, cli: Cli) -> None:
    """There are no pictures, so that a build ends after the check."""
    model = write_project(tmp_path, model=tiny.classifier(opset=24), pictures=0)
    check = ["check", str(model), "--target", "arm64"]
    assert f"tiny for arm64, ONNX Runtime {ort.__version__}" in cli(0, *check).out
    assert _OLDEST in " ".join(cli(2, *check, "--prove-runtime", "1.20.1").out.split())
    assert "pictures" in refusal(DataError, build, model, "arm64", tmp_path / "a.edge")
    assert _OLDEST in refusal(ModelError, build, model, "arm64", tmp_path / "a.edge", prove_runtimes=["1.20.1"])


def test_versions_that_make_no_sense(tmp_path: Path, cli: Cli) -> None:
    for options, expected in (
        (["--prove-runtime", "1.20.1"], "give --target too"),
        (["--target", "arm64", "--prove-runtime", "1.19.2"], "expected a version from 1.20.1, the lowest of arm64, to"),
        (["--target", "arm64", "--prove-runtime", "../1.20.1"], "expected a version from 1.20.1"),
    ):
        assert expected in cli(2, "check", write_project(tmp_path, pictures=0), *options).err


# Labels: whatever can be known to be wrong with them is reported, beside other errors, with the next step.


BACKGROUND = CLASSIFIER + "[classification]\nbackground_class = true\n"
TAKE_OUT = 'is the first line "background", or another one empty or there twice? Then take it out'
TEN = [f"class {number}" for number in range(10)]


def _findings(folder: Path, labels: Iterable[str], classes: int, *, flag: bool = False) -> list[Finding]:
    """Return the findings about the labels of a model that declares `classes` classes."""
    path = write_project(folder, labels="\n".join(labels) + "\n", pictures=0)
    spec = msgspec.structs.replace(load_model_spec(path), classification=ClassificationSpec(background_class=flag))
    report = _outputs(TensorInfo("y", "float", (1, classes)))
    return check_labels(spec, msgspec.structs.replace(report, costs=Costs(0, 0, 0, 0, "", 0)))


def _outputs(*outputs: TensorInfo) -> CheckReport:
    return CheckReport(name="m", model="m.onnx", target=None, onnxruntime="", outputs=outputs)


def test_what_the_lines_show(tmp_path: Path) -> None:
    for labels, classes, flag, what, step in (
        ([*TEN[:5], "", *TEN[5:]], 10, False, "11 lines, the model has 10", TAKE_OUT),
        (["a", "", "b", "c", "d"], 3, False, "5 lines", "write one line a class, in output order"),
        (TEN, 11, True, "10 lines", "is the line for output 0 missing?"),
    ):
        [finding] = _findings(tmp_path, labels, classes, flag=flag)
        assert (finding.severity, what in finding.what, finding.next_step.startswith(step)) == ("error", True, True)


def test_known_classes_in_another_order_are_doubted(tmp_path: Path) -> None:
    coco = [*read_labels(LISTS["coco80"])]
    imagenet = [f"{name}, another name" for name in read_labels(LISTS["imagenet1k"])]
    for labels, said in (
        (coco, None),
        ([f"class {n}" for n in range(80)], None),
        (sorted(coco), "line 1 is 'airplane', and coco80 has 'person' there"),
        ([coco[2], coco[1], coco[0], *coco[3:]], "line 1 is 'car', and coco80 has 'person' there"),
        (["background", *imagenet], None),
        (["background", *sorted(imagenet)], "line 2 is 'Afghan hound', and imagenet1k has 'tench' there"),
    ):
        found = _findings(tmp_path, labels, len(labels), flag=len(labels) == 1001)
        assert [(one.severity, said in one.what) for one in found] == [("warning", True)] * (said is not None)


def _report(
    folder: Path, model: onnx.ModelProto | None = None, labels: str = "a\nb\nc\n", text: str = CLASSIFIER
) -> CheckReport:
    report = examine(load_model_spec(write_project(folder, text, model, labels=labels, pictures=0)))
    assert all(finding.next_step for finding in report.findings)
    return report


@pytest.mark.parametrize(("gone", "rule"), [("labels.txt", "opset"), ("model.onnx", "file")])
def test_a_labels_file_is_missed_beside_what_else_is_wrong(tmp_path: Path, gone: str, rule: str) -> None:
    path = write_project(tmp_path, model=tiny.classifier(opset=99), labels="\n\n", pictures=0)
    (tmp_path / gone).unlink()
    report = examine(load_model_spec(path), load_target("arm64"))
    assert [finding.rule for finding in report.of("error")] == [rule, "labels"]
    finding = only(report, "labels")
    assert finding.what.startswith(f"{tmp_path / 'labels.txt'}: ")
    assert finding.next_step == "write one label a line in UTF-8, in output order, or correct `labels` in model.toml"


def test_a_first_line_that_is_not_the_background(tmp_path: Path) -> None:
    for labels, found, severity in (
        ("cat\ndog\nbackground\n", "'background' is line 3 of 3: the file looks reversed or shifted", "error"),
        ("cat\n__Background__\ndog\n", "'background' is line 2 of 3", "error"),
        ("cat\ndog\nbird\n", "no line is 'background'", "warning"),
    ):
        finding = only(_report(tmp_path, labels=labels, text=BACKGROUND), "labels")
        assert finding.severity == severity
        said = f"line 1 is 'cat', expected 'background', because background_class = true in model.toml; {found}"
        assert finding.what == f"{tmp_path / 'labels.txt'}: {said}"


@pytest.mark.parametrize("first", ["background", "__background__", "Background"])
def test_a_first_line_that_is_the_background(tmp_path: Path, first: str) -> None:
    assert _report(tmp_path, labels=f"{first}\nb\nc\n", text=BACKGROUND).findings == ()
    finding = only(_report(tmp_path, labels=f"{first}\nb\nc\n"), "labels")
    assert (finding.severity, finding.what.endswith("and model.toml does not say so")) == ("warning", True)


def test_labels_that_are_empty_or_there_twice(tmp_path: Path) -> None:
    report = _report(tmp_path, tiny.classifier(classes=7), "crane\n\nb\ncrane\n\ncrane\nB\n")
    where = tmp_path / "labels.txt"
    assert [(finding.severity, finding.what) for finding in report.findings] == [
        ("warning", f"{where}: lines 2, 5 are empty, and counted as a label"),
        ("note", f"{where}: the same label for several outputs: 'crane' in lines 1, 4, 6"),
    ]
    assert report.findings[0].next_step == "write the label of that output"


def test_probabilities_are_told_from_logits(tmp_path: Path) -> None:
    for decoder, operator, step in (
        ("logits", "Softmax", 'set decoder = "softmax"'),
        ("softmax", "Gemm", 'set decoder = "logits"'),
        ("softmax", "Softmax", None),
        ("logits", "GlobalAveragePool", None),
    ):
        spec = load_model_spec(write_project(tmp_path, CLASSIFIER.replace("softmax", decoder), pictures=0))
        found = check_labels(spec, _outputs(TensorInfo("y", "float", (1, 3), operator)))
        assert [one.next_step for one in found if one.severity == "error"] == ([step] if step else [])
