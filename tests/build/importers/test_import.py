"""`edge-sdk import`: what is printed, refused, compared, written and recorded, whatever the source."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from edge_sdk.bundle.model_spec import InputSpec, load_model_spec
from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import ImageSet
from edge_sdk_tools.graph.index import pool_means
from edge_sdk_tools.importers.comparison import (
    Observation,
    OutputDifference,
    Probe,
    Runner,
    make_probes,
    measure_difference,
    observe,
    verify,
)
from edge_sdk_tools.importers.onnx_model import import_onnx
from edge_sdk_tools.importers.plan import ImportRecord, plan_import, read_import_record
from tests.build.importers.test_darknet import HEAD, YOLO, conv, run_onnx, write_network
from tests.support import models as tiny
from tests.support.logs import refusal
from tests.support.program import Cli
from tests.support.projects import CLASSIFIER, write_pictures, write_project
from tests.support.reports import network


def write_source(folder: Path, text: str = CLASSIFIER, source: onnx.ModelProto | None = None) -> tuple[Path, Path]:
    """The source and the model.toml, which names another file; nothing is there yet."""
    toml = write_project(folder, text, source, pictures=0)
    return (folder / "model.onnx").rename(folder / "source.onnx"), toml


def test_figures_and_next_step(tmp_path: Path, cli: Cli) -> None:
    source, toml = map(str, write_source(tmp_path))
    captured = cli(0, "import", "onnx", source, "--model", toml)
    for said in (
        "\ncompared on 8 inputs, none of them a real image\nmade by edge-sdk's check\n",
        f"\nwrote {tmp_path / 'model.onnx'}\n",
        "\n0.00 MB, opset 17, 6 nodes, input 1x3x16x16 NCHW\n",
        f"next: edge-sdk build {toml} --target TARGET --calibration FOLDER\n",
    ):
        assert said in captured.out
    assert captured.err == "edge-sdk: warning: no real image was compared; give some with --images FOLDER\n"


@pytest.mark.parametrize("by_option", [True, False])
def test_a_file_that_cannot_be_used(tmp_path: Path, cli: Cli, by_option: bool) -> None:
    source, toml = map(str, write_source(tmp_path))
    pictures = write_pictures(tmp_path / "pictures", 2)
    broken = [pictures / f"broken{index}.png" for index in range(4)]
    for path in broken:
        path.write_text("no image")
    options = ["--images", str(pictures)] if by_option else []  # else the calibration folder of model.toml
    first, *named, last = cli(0, "import", "onnx", source, "--model", toml, *options).err.splitlines()
    assert first == "edge-sdk: warning: files that were skipped: 4"
    assert [line.split(": ")[0] for line in named] == [f"  {path}" for path in broken[:3]]
    assert last == "  and 1 more, all of them in --json"
    report = msgspec.json.decode(cli(0, "import", "onnx", source, "--model", toml, *options, "--json").out)
    assert (report["images"], [one["path"] for one in report["skipped"]]) == (2, list(map(str, broken)))
    assert all(one["reason"] for one in report["skipped"])


def test_darknet(tmp_path: Path, cli: Cli) -> None:
    _, cfg, weights, labels = write_network(tmp_path, [conv(4), HEAD, YOLO], np.random.default_rng(7))
    arguments = ["import", "darknet", *map(str, (cfg, weights, "--labels", labels, "-o", tmp_path / "out"))]
    toml = tmp_path / "out" / "model.toml"
    printed = cli(0, *arguments).out
    assert f"compared on 8 inputs, none of them a real image\nmade by the Darknet importer\nwrote {tmp_path}" in printed
    assert printed.endswith(f"next: edge-sdk build {toml} --target TARGET --calibration FOLDER\n")
    record = read_import_record(tmp_path / "out" / "tiny.onnx")
    assert (record.origin, record.inputs) == ("Darknet", 8)
    assert "model.toml: exists; choose another folder with -o" in cli(2, *arguments).err
    toml.unlink()
    pictures = str(write_pictures(tmp_path / "pictures", 2))
    report = msgspec.json.decode(cli(0, *arguments, "--name", "other", "--images", pictures, "--json").out)
    assert (report["model_toml"], report["images"]) == (str(toml), 2)
    assert report["model"] == load_model_spec(toml).model == str(tmp_path / "out" / "other.onnx")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    for missing, kind, source, function, remedy in (
        ("torch", "pytorch", "a.py", ":b", "pip install -c constraints.txt '.[torch]'"),
        ("onnx", "onnx", "a.onnx", "", "pip install -c constraints.txt '.[host]'"),
        ("tensorflow", "tensorflow", "a.tflite", "", "pip install tensorflow tf2onnx"),
    ):
        toml = write_project(tmp_path, pictures=0)
        (tmp_path / source).touch()
        code = f"import sys; sys.modules[{missing!r}] = None; from edge_sdk.cli import main; main(sys.argv[1:])"
        command = ["import", kind, f"{tmp_path / source}{function}", "--model", str(toml)]
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
        line = done.stderr.splitlines()[-1]  # behind lines about progress, on a busy machine
        assert (done.returncode, f"needs {missing}" in line) == (8, True)
        assert line.startswith(f"edge-sdk: `edge-sdk import {kind}` ")
        assert line.endswith(remedy)


# What is cheap to check is checked before PyTorch or TensorFlow is loaded, which takes seconds.
_CASES: list[tuple[str, int, str]] = [
    ("import onnx a.onnx", 2, "Missing option '--model'"),
    ("import darknet none.cfg none.weights --labels none -o out", 2, "none.cfg: "),
    ("import darknet none.cfg none.weights --labels none.txt -o /proc/yolo/v4", 1, "/proc/yolo/v4: cannot be writ"),
    ("import pytorch none.py:net --model model.toml", 2, "none.py: no such file; expected a Python file"),
    ("import pytorch a.py:net --model model.toml --weights none.pth", 2, "none.pth: no such file; expected a file of"),
    ("import pytorch a.py:net --model shape.toml", 2, "size_wh"),
    ("import pytorch a.py:net --model unwritable.toml", 1, "/proc/model.onnx: cannot be written: "),
    ("import pytorch a.py --model model.toml", 2, "a.py: expected FILE.py:FUNCTION, with a function that returns"),
    ("import pytorch a.bin --model model.toml", 2, "a.bin: expected FILE.py:FUNCTION, a .pt2 (torch.export) or a .pt"),
    ("import pytorch pipe.pt2 --model model.toml", 2, "pipe.pt2: cannot be read: it is a pipe, expected a regular"),
    ("import pytorch huge.py:net --model model.toml", 2, "huge.py: has 32212254720 bytes; expected a Python file\n"),
    ("import onnx none.onnx --model model.toml", 2, "none.onnx: no such file; SOURCE is the ONNX file to import\n"),
    ("import onnx . --model model.toml", 2, ".: cannot be read: it is a folder, expected a regular file; SOURCE is"),
    ("import onnx \udcff.onnx --model model.toml", 2, ".onnx: its path is not valid UTF-8, which ONNX Runtime cannot"),
    ("import tensorflow none.keras --model model.toml", 2, "none.keras: no such file or folder; SOURCE is a .tflite, "),
    ("import tensorflow a.py --model model.toml", 2, "a.py: expected a .tflite, .keras or .h5 file, or the folder of"),
]
_PROGRAM = """
import contextlib, io, json, sys
sys.modules.update(torch=None, onnxscript=None, tensorflow=None, tf2onnx=None)  # loading one of them is exit code 8
from edge_sdk.cli.root import run
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def test_before_the_framework_is_loaded(tmp_path: Path) -> None:
    write_project(tmp_path, CLASSIFIER.replace("model.onnx", "new.onnx"), pictures=0)
    (tmp_path / "shape.toml").write_text(CLASSIFIER.replace("[16, 16]", "[16]"))
    (tmp_path / "unwritable.toml").write_text(CLASSIFIER.replace("model.onnx", "/proc/model.onnx"))
    for name in ("a.py", "\udcff.onnx", "huge.py"):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "pipe.pt2")
    os.truncate(tmp_path / "huge.py", 30 << 30)
    commands = json.dumps([command.split() for command, _, _ in _CASES])
    program = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(program, input=commands, capture_output=True, text=True, check=True, cwd=tmp_path)
    answers = map(json.loads, done.stdout.splitlines())
    for (command, exit_code, expected), (code, output, errors) in zip(_CASES, answers, strict=True):
        assert (code, output, errors.count("\n"), expected in errors) == (exit_code, "", 1, True), (command, errors)


@pytest.mark.parametrize("opset", [11, 17])
def test_opset_and_shapes_are_settled(tmp_path: Path, opset: int) -> None:
    source, toml = write_source(tmp_path, source=tiny.classifier(opset=opset, batch="N"))
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    [before] = run_onnx(source, picture[0])
    newest = onnx.load(source)
    newest.ir_version = onnx.IR_VERSION  # newer than ONNX Runtime reads
    onnx.save(newest, source)
    report = import_onnx(source, toml, images=[write_pictures(tmp_path / "pictures", 3)])
    proto = onnx.load(tmp_path / "model.onnx")
    assert [o.version for o in proto.opset_import] == [max(opset, 13)] == [report.opset]
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 16]
    [after] = run_onnx(tmp_path / "model.onnx", picture[0])
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert (report.images, report.replaced, report.input_shape) == (3, False, (1, 3, 16, 16))
    assert report.outputs[0].absolute <= 1e-6


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    for old, new, kind, expected in (
        ('"model.onnx"', '"source.onnx"', UsageError, "source.onnx: is the file that "),
        ('"model.onnx"', '"model.ort"', UsageError, "model is 'model.ort', expected the name of the .onnx file"),
        ("[16, 16]", "[24, 24]", ModelError, "has shape 1x3x16x16, model.toml says 1x3x24x24"),
        ('"softmax"', '"softmax"\nclassification = { background_class = 3 }', ModelError, "background_class: got a"),
        ("labels.txt", "none.txt", ModelError, "none.txt: no such labels file"),
    ):
        source, toml = write_source(tmp_path, CLASSIFIER.replace(old, new))
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert expected in refusal(kind, import_onnx, source, toml)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


NONE = ImageSet(())
PROBE = Probe("made", lambda: np.zeros(1, np.float32))


def allowed(got: object, expected: object, dtype: type = np.float32) -> float | None:
    return measure_difference("y", PROBE, np.array(got, dtype), np.array(expected, dtype))[1]


def test_what_rounding_explains() -> None:
    for got, expected, passes in (
        ([[0.0, 9e-5]], [[0.0, 0.0]], True),
        ([[0.0, 2e-4]], [[0.0, 0.0]], False),
        ([[100.09, 0.0]], [[100.0, 0.0]], True),  # 1e-3 of 100
        ([[100.0, 0.09]], [[100.0, 0.0]], True),  # ... of the largest of the scores
        ([[np.nan, 1.0]], [[np.nan, 1.0]], True),
        ([[0.0, 1.0]], [[np.nan, 1.0]], False),
        ([[np.inf, 1.0]], [[-np.inf, 1.0]], False),
        ([], [], True),
    ):
        assert (allowed(got, expected) is None) is passes


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_boxes_are_measured_as_scores(axis: int) -> None:
    """YOLOv8's 1x(4+C)xN and YOLOv5's 1xNx(5+C): boxes in pixels and scores of 0-1 in one tensor."""
    boxes, scores = np.full((1, 4, 20), 600.0), np.full((1, 3, 20), 0.9)
    expected = np.concatenate([boxes, scores], axis=1)
    got = expected.copy()
    got[0, 5, 7] -= 0.1
    if axis == 2:
        got, expected = got.transpose(0, 2, 1), expected.transpose(0, 2, 1)
    assert allowed(got, expected) == pytest.approx(1e-4 + 0.9e-3)
    got[got < 1] = 0.9
    got[got > 1] += 0.5
    assert allowed(got, expected) is None


@pytest.mark.parametrize(("changed", "passes"), [(1, True), (2, False)])
def test_whole_numbers_may_differ_once_in_a_thousand(changed: int, passes: bool) -> None:
    expected = np.zeros((1, 1000), np.int64)
    got = expected.copy()
    got[0, :changed] = 7
    assert (allowed(got, expected, np.int64) is None) is passes


def test_the_figures_are_those_of_the_worst_probe() -> None:
    data = tiny.classifier().SerializeToString()
    runner = Runner(data, "tiny")
    spec = InputSpec(size_wh=(16, 16), std=(255, 255, 255))
    probes = make_probes(spec, NONE)
    added = {"white": 0.25}
    expected = [tuple(y + added.get(p.name, 0.001) for y in runner(p.make()).values()) for p in probes]
    comparison = verify(data, "tiny", probes, Observation(("out",), tuple(expected)))
    [found] = comparison.outputs
    assert (found.name, found.shape, found.probe, found.on_images) == ("out", (1, 3), "white", None)
    assert found.absolute == pytest.approx(0.25)
    assert "output 'out' differs by 0.001 on input 'zeros', where rounding explains 0.000" in comparison.problem


def test_every_probe_is_another_input_and_the_same_each_time(tmp_path: Path) -> None:
    spec = InputSpec(size_wh=(16, 8), mean=(10, 20, 30), std=(64, 64, 64))
    images = find_images([write_pictures(tmp_path / "pictures", 40)])
    probes = make_probes(spec, images, batch=True)
    names = [probe.name for probe in probes]
    made = ["zeros", "ones", "noise x0.1", "noise x1", "noise x10", "black", "white", "random pixels"]
    assert (names[:8], names[-1]) == (made, "batch of 2")
    assert [p.is_image for p in probes] == [False] * 8 + [True] * 16 + [False]
    assert [probe.make().shape for probe in probes] == [(1, 3, 8, 16)] * 24 + [(2, 3, 8, 16)]
    tensors = [probe.make().tobytes() for probe in probes]
    assert len({*tensors}) == len(probes)
    assert tensors == [probe.make().tobytes() for probe in probes]
    white = probes[names.index("white")].make()
    np.testing.assert_allclose(white[0, :, 0, 0], (255 - np.array([10, 20, 30])) / 64, rtol=1e-6)


def test_a_model_that_computes_something_else_is_not_written(tmp_path: Path) -> None:
    source, toml = write_source(tmp_path)
    plan = plan_import(source, toml, None, [])
    original = observe(Runner(str(source), str(source)), str(source), plan.probes)
    assert plan.verify(onnx.load(source), "as it is", original, "blame: ", "").problem is None
    with pytest.raises(ModelError, match=r"source\.onnx: blame: output .* differs by .*; remedy$"):
        plan.verify(tiny.changed(1), "as it is not", original, "blame: ", "; remedy")


def test_what_the_optimizer_gets_wrong_is_no_fault_of_the_model() -> None:
    """A transpose of the last two axes before a product with a vector: seen in ONNX Runtime 1.20.1 to 1.31.1."""
    text, weights = "t = Transpose<perm = [0, 1, 3, 2]>(images) y = MatMul(t, v)", {"v": np.arange(8, dtype=np.float32)}
    data = network(text, {"y": [1, 3, 16]}, weights, shape=[1, 3, 8, 16]).SerializeToString()
    probes = make_probes(InputSpec(size_wh=(16, 8), std=(255, 255, 255)), NONE)
    expected = [(np.einsum("bchw,h->bcw", probe.make(), np.arange(8)),) for probe in probes]
    found = verify(data, "m", probes, Observation(("y",), tuple(expected)))
    if found.problem is None:
        pytest.skip("this ONNX Runtime has no such fault")
    assert "changes the result when it optimizes the graph, a fault of its own" in found.problem
    assert found.is_explained
    wrong = [(outputs + 1,) for (outputs,) in expected]
    assert not verify(data, "m", probes, Observation(("y",), tuple(wrong))).is_explained


def mean_model(axes: list[int], keepdims: int, opset: int) -> onnx.ModelProto:
    """A mean whose axes are an attribute or, since opset 18, a constant."""
    attribute, constant = (f", axes = {axes}", "") if opset < 18 else ("", ", axes")
    text = f"y = ReduceMean<keepdims = {keepdims}{attribute}>(images{constant})"
    output = {"y": [1, 3, 1, 1] if keepdims else [1, 3]}
    return network(text, output, {"axes": np.array(axes)} if constant else {}, opset=opset)


@pytest.mark.parametrize(("axes", "opset"), [([2, 3], 17), ([-1, -2], 18)])
def test_a_mean_over_the_picture_becomes_a_pool(axes: list[int], opset: int) -> None:
    proto = mean_model(axes, 1, opset)
    before = Runner(proto.SerializeToString(), "before")
    assert pool_means(proto) == 1
    onnx.checker.check_model(proto, full_check=True)
    assert ([node.op_type for node in proto.graph.node], len(proto.graph.initializer)) == (["GlobalAveragePool"], 0)
    noise = np.random.default_rng(5).standard_normal((1, 3, 8, 8), np.float32)
    after = Runner(proto.SerializeToString(), "after")
    np.testing.assert_allclose(after(noise)["y"], before(noise)["y"], rtol=1e-6)


def test_other_means_stay() -> None:
    for axes, keepdims in (([2, 3], 0), ([1, 2], 1), ([3], 1)):
        proto = mean_model(axes, keepdims, 18)
        assert pool_means(proto) == 0
        assert [node.op_type for node in proto.graph.node] == ["ReduceMean"]


DIFFERENCES = (
    OutputDifference("a", (1, 3), 2e-6, 1e-7, "ones", 1e-6),
    OutputDifference("b", (1, 3), 1e-6, 3e-7, "zeros", None),
)


def _recorded(folder: Path, differences: tuple[OutputDifference, ...] = DIFFERENCES) -> onnx.ModelProto:
    """The classifier as an import from anywhere writes it."""
    source, toml = write_source(folder)
    plan = plan_import(source, toml, None, [write_pictures(folder / "seen", 3)])
    plan.finish(onnx.load(source), "anywhere", "an exporter", differences)
    return onnx.load(folder / "model.onnx")


def _read(proto: onnx.ModelProto, folder: Path) -> ImportRecord | None:
    onnx.save(proto, folder / "copy.onnx")
    return read_import_record(folder / "copy.onnx")


def test_the_record_is_of_the_graph_that_was_compared(tmp_path: Path) -> None:
    proto = _recorded(tmp_path)
    proto.producer_name = "somebody who loaded and saved it"
    record = _read(proto, tmp_path)
    assert (record.origin, record.exporter, record.inputs, record.images) == ("anywhere", "an exporter", 11, 3)
    assert (record.largest, record.largest_share, record.largest_on_images) == (2e-6, 3e-7, 1e-6)
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    assert _read(proto, tmp_path) is None


def test_a_record_that_no_import_writes_is_passed_over(tmp_path: Path) -> None:
    for change in ({"largest": -1}, {"largest": "0"}, {"graph_sha256": "0" * 64}, {"more": "x" * 5000}):
        proto = _recorded(tmp_path)
        record = msgspec.json.decode(proto.metadata_props[0].value)
        proto.metadata_props[0].value = msgspec.json.encode({**record, **change}).decode()
        assert _read(proto, tmp_path) is None


def test_two_records_none_and_no_model_say_nothing(tmp_path: Path) -> None:
    proto = _recorded(tmp_path)
    proto.metadata_props.add(key=proto.metadata_props[0].key, value=proto.metadata_props[0].value)
    assert [_read(one, tmp_path) for one in (proto, tiny.classifier())] == [None, None]
    (tmp_path / "junk.onnx").write_bytes(b"\xff junk")
    os.mkfifo(tmp_path / "pipe.onnx")
    assert [read_import_record(tmp_path / f"{name}.onnx") for name in ("junk", "missing", "pipe")] == [None] * 3


@pytest.mark.parametrize("differences", [(), (OutputDifference("a", (1, 3), math.inf, math.inf, "ones", None),)])
def test_what_is_no_number_is_not_recorded(tmp_path: Path, differences: tuple[OutputDifference, ...]) -> None:
    assert _read(_recorded(tmp_path, differences), tmp_path) is None


def test_an_import_replaces_the_record_of_the_file_it_reads(tmp_path: Path) -> None:
    _recorded(tmp_path)
    toml = tmp_path / "model.toml"
    toml.write_text(toml.read_text().replace('"model.onnx"', '"new.onnx"'))
    import_onnx(tmp_path / "model.onnx", toml)
    record = read_import_record(tmp_path / "new.onnx")
    assert (record.origin, record.exporter, record.images) == ("ONNX", "edge-sdk's check", 0)
