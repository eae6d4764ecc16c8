"""Builds that refuse, fail, are interrupted or run in several processes: one line, the right code, no half bundle."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import Provenance
from edge_sdk.cli.root import run
from edge_sdk.core.errors import AccuracyGateError, DataError, EdgeError, ModelError, SizeGateError, UsageError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.progress import StepProgress
from tests.support import models as tiny
from tests.support.configs import write_files
from tests.support.connections import until
from tests.support.jobs import local_cluster
from tests.support.logs import refusal
from tests.support.models import uneven
from tests.support.program import Cli, started
from tests.support.projects import CLASSIFIER, DETECTOR, write_boxes, write_labelled, write_pictures, write_project


def _show(folder: Path, *images: np.ndarray) -> None:
    """Calibrate with these pictures and no others."""
    for path in (folder / "pictures").iterdir():
        path.unlink()
    for index, image in enumerate(images):
        cv2.imwrite(str(folder / "pictures" / f"{index}.png"), image)


def _black(side: int, count: int) -> list[np.ndarray]:
    return [np.full((side, side, 3), level, np.uint8) for level in range(count)]


def _edit(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / "model.toml").read_text()
        assert old in text
        (folder / "model.toml").write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("change", "family", "expected"),
    [
        (lambda folder: _show(folder, *_black(16, 1)), DataError, "0.png; equal files count once), expected 2 or more"),
        (_edit('calibration = "pictures"', ""), UsageError, "no calibration images: give --calibration"),
        (_edit("[data]", "[gates]\nmax_size_mb = 0.001\n[data]"), SizeGateError, "gates.max_size_mb allows 0.001"),
        (_edit("[data]", "[gates]\nint8_min_agreement = 1.0\n[data]"), AccuracyGateError, "of the best: INT8 agrees"),
        (_edit('"softmax"', '"logits"'), ModelError, "comes from a Softmax, so that it has probabilities already"),
    ],
)
def test_what_cannot_be_built_leaves_the_old_bundle(
    tmp_path: Path, change: Callable[[Path], None], family: type[EdgeError], expected: str
) -> None:
    model = write_project(tmp_path, pictures=16)
    build(model, "x86_64", tmp_path / "a.edge", bundle_version=1)
    if family is AccuracyGateError:
        _make_agreement_fail(tmp_path)
    change(tmp_path)
    assert expected in refusal(family, build, model, "x86_64", tmp_path / "a.edge", bundle_version=2, require_int8=True)
    assert Bundle.open(tmp_path / "a.edge").manifest.version == 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def _make_agreement_fail(folder: Path) -> None:
    """Calibrate with black pictures: every activation of a real one is then far outside the range."""
    _show(folder, *_black(16, 3))
    _edit("[data]", '[data]\nevaluation = "real"')(folder)
    write_pictures(folder / "real", 16, first=50)


def test_a_detector_that_finds_nothing_is_a_failure_and_not_an_agreement_of_one(tmp_path: Path) -> None:
    model = write_project(tmp_path, DETECTOR, tiny.head_detector(), labels="red\nblue\n")
    _show(tmp_path, *_black(64, 4))
    with pytest.raises(ModelError, match=r"nothing on 4 of 4 images with .*; give images that show what it"):
        build(model, "x86_64", tmp_path / "a.edge")


def test_errors_are_one_line_and_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for arguments, exit_code, expected in (
        (["nowhere.toml", "--target", "x86_64"], 2, "nowhere.toml: no such file"),
        (["model.toml", "--target", "pi9"], 2, "unknown target 'pi9'"),
        (["model.toml"], 2, "Missing option '--target'"),
        (["model.toml", "--target", "arm64", "--bundle-version", str(2**53)], 2, "range 1<=x<=90071992547"),
        (["model.toml", "--target", "x86_64", "-o", "nowhere/a.edge"], 2, "the folder nowhere does not exist"),
        (["model.toml", "--target", "x86_64", "-o", "labels.txt"], 2, "labels.txt: exists and is not a bundle"),
        (["model.toml", "--target", "x86_64", "-o", "/proc/a.edge"], 1, "/proc/a.edge: cannot be written"),
        (["model.toml", "--target", "x86_64", "-o", ".."], 2, "expected the name of a bundle"),
        (["model.toml", "--target", "x86_64", "-o", "\udcff.edge"], 2, "its path is not valid UTF-8, which ONNX's"),
    ):
        said = cli(exit_code, "build", *arguments).err
        assert (expected in said, said.count("\n")) == (True, 1), said
        assert sorted(tmp_path.rglob("*")) == before


def _run_limited(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without measuring coverage, which writes files and takes memory, and would trip over the same limits."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**others, **environment})


@pytest.mark.long
def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    """A limit on the size of written files stands in for the disk's: the same errors come from the same calls."""
    model = write_project(tmp_path)
    build(model, "x86_64", tmp_path / "a.edge", bundle_version=1)
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])));"
        "from edge_sdk.cli.root import run; sys.exit(run(sys.argv[2:]))"
    )
    for limit in ("64", "2500", "4000", "20000"):  # the last cuts the profile of a run
        done = _run_limited(program, limit, "build", model, "--target", "x86_64", "-o", tmp_path / "a.edge")
        assert done.returncode == 1, (limit, done.stderr)
        # On a busy machine a line about progress stands before it.
        [line] = [line for line in done.stderr.splitlines() if " so far" not in line]
        assert "no space left on the disk" in line
        assert Bundle.open(tmp_path / "a.edge").manifest.version == 1
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("manifest", ["{}", "not even JSON"])
def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path, manifest: str) -> None:
    model, folder = write_project(tmp_path), tmp_path / "webapp"
    write_files(folder, {"manifest.json": manifest, "thesis.tex": "years of work"})
    assert "webapp: exists and is not a bundle" in refusal(UsageError, build, model, "x86_64", folder)
    assert (folder / "thesis.tex").read_text() == "years of work\n"


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_bundle_with_something_else_in_it_is_never_replaced(tmp_path: Path, when: str) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    build(model, "x86_64", output, bundle_version=1)

    def leave_a_note(step: str, _done: int, _total: int) -> None:
        if when == "during" and step == "calibrate":
            (output / "note.txt").write_text("mine")

    if when == "before":
        (output / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds note\.txt, which is no part of the bundle"):
        build(model, "x86_64", output, bundle_version=2, on_progress=leave_a_note)
    assert (output / "note.txt").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_an_interrupt_between_the_renames_keeps_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    build(model, "x86_64", output, bundle_version=1)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "bundle":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(model, "x86_64", output, bundle_version=2)
    assert Bundle.open(output).manifest.version == 1


def _without_softmax(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The classifier's logits, behind an operator that does not tell what they are."""
    proto.graph.node[-1].op_type = "Identity"
    del proto.graph.node[-1].attribute[:]
    return proto


def _hidden_softmax(proto: onnx.ModelProto) -> onnx.ModelProto:
    proto.graph.node[-1].output[0] = "before"
    proto.graph.node.append(helper.make_node("Abs", ["before"], ["probabilities"]))
    return proto


def _quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    for name, value in (("s", np.float32(0.01)), ("z", np.uint8(0))):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    proto.graph.node[0].input[0] = "d"
    proto.graph.node.insert(0, helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]))
    proto.graph.node.insert(0, helper.make_node("QuantizeLinear", ["images", "s", "z"], ["q"]))
    return proto


def _named(proto: onnx.ModelProto) -> onnx.ModelProto:
    helper.set_model_props(proto, {"names": "{0: 'c', 1: 'b', 2: 'a'}"})
    return proto


_LOGITS = CLASSIFIER.replace('"softmax"', '"logits"')
_YOLOV8 = DETECTOR.replace("yolov4", "yolov8").replace("[detection]\nanchors = [[[16, 16]]]\n", "")


def _raw_scores() -> onnx.ModelProto:
    proto = tiny.flat_detector()
    next(node for node in proto.graph.node if node.op_type == "Sigmoid").op_type = "Identity"
    return proto


@pytest.mark.parametrize(
    ("text", "proto", "expected"),
    [
        (CLASSIFIER, tiny.classifier(), ""),
        (CLASSIFIER, _quantized(tiny.classifier()), "is quantized already (1 DequantizeLinear, 1 QuantizeLinear)"),
        (_LOGITS, tiny.classifier(), "decoder: output probabilities comes from a Softmax, so that it has prob"),
        (_LOGITS, _hidden_softmax(tiny.classifier()), "decoder: the outputs are probabilities already (they sum to 1)"),
        (CLASSIFIER, _without_softmax(tiny.classifier()), "decoder: the outputs are no probabilities (they sum to "),
        (CLASSIFIER, _named(tiny.classifier()), "line 1 is 'a', and the names in the file's metadata have 'c' there"),
        (CLASSIFIER, tiny.classifier(opset=99), "opset 99"),
        (_YOLOV8, _raw_scores(), "decoder: yolov8 reads scores from -4 to 0, expected 0 to 1; correct the decoder"),
    ],
    ids=["sound", "quantized", "softmax", "hidden softmax", "no softmax", "order of labels", "opset", "raw scores"],
)
def test_check_refuses_what_build_refuses_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, proto: onnx.ModelProto, expected: str
) -> None:
    labels = "red\nblue\n" if text is _YOLOV8 else "a\nb\nc\n"
    model = str(write_project(tmp_path, text, proto, labels=labels))
    code = run(["check", model, "--target", "x86_64", "--json"])
    said = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["severity"] == "error"]
    assert run(["build", model, "--target", "x86_64", "-o", str(tmp_path / "a.edge")]) == code == (2 if expected else 0)
    line = capsys.readouterr().err
    assert [expected in f"{f['what']}; {f['next_step']}" for f in said] == ([True] if expected else [])
    assert all(f"{f['what']}; {f['next_step']}" in line for f in said)


def test_a_doubt_is_told_before_anything_is_quantized(tmp_path: Path) -> None:
    told: list[str] = []
    model = write_project(tmp_path, labels="a\nbackground\nc\n")
    build(model, "x86_64", tmp_path / "a.edge", on_progress=lambda step, *_: told.append(step), on_warning=told.append)
    [warning] = [line for line in told if "line 2 of 3 is 'background', and model.toml does not say so" in line]
    assert told.index(warning) < told.index("judge the float model") < told.index("calibrate")


# Builds in several processes, interrupted, killed and continued: the same bundle, or what was there before.


def _build(model: Path, bundle: Path, store: Path, **arguments: Any) -> BuildResult:
    with JobRunner(store=store) as job_runner:
        return build(model, "x86_64", bundle, bundle_version=1, job_runner=job_runner, **arguments)


def test_a_second_build_does_nothing_twice_and_comes_to_the_same(tmp_path: Path) -> None:
    model, store = write_project(tmp_path, pictures=16), tmp_path / "store"
    first = _build(model, tmp_path / "a.edge", store)
    second = _build(model, tmp_path / "b.edge", store)
    assert first.remembered_steps == 0
    assert second.remembered_steps == 2  # the calibration and the model
    assert (second.agreement, second.samples, second.int8_mb) == (first.agreement, first.samples, first.int8_mb)
    one, other = (Bundle.open(tmp_path / name).manifest.provenance for name in ("a.edge", "b.edge"))
    assert one.float_nodes == other.float_nodes
    # Which input is faster is a matter of time, and so measured again.
    assert {**one.recipe, "input": ""} == {**other.recipe, "input": ""}


def test_what_decides_a_result_is_part_of_its_name(tmp_path: Path) -> None:
    proto = tiny.classifier()
    model, store = write_project(tmp_path, model=proto, pictures=16), tmp_path / "store"
    data = write_labelled(tmp_path / "data", proto, 30)
    _build(model, tmp_path / "a.edge", store, evaluation=[data])
    assert _build(model, tmp_path / "a.edge", store, evaluation=[data]).remembered_steps == 2
    # Another label: the calibration is what it was, the measurement is not.
    write_labelled(tmp_path / "data", proto, 30, wrong=1)
    assert _build(model, tmp_path / "a.edge", store, evaluation=[data]).remembered_steps == 1
    # One calibration image less: other ranges.
    sorted((tmp_path / "pictures").iterdir())[0].unlink()
    assert _build(model, tmp_path / "a.edge", store, evaluation=[data]).remembered_steps == 0


def test_boxes_and_the_teacher_are_part_of_what_decides_a_result(tmp_path: Path) -> None:
    write_project(tmp_path / "teacher", DETECTOR, tiny.head_detector(), labels="red\nblue\n", pictures=0)
    text = DETECTOR + '[teacher]\nmodel = "../teacher/model.toml"\n'
    model = write_project(tmp_path / "p", text, tiny.head_detector(), labels="red\nblue\n", pictures=16)
    data, store = write_boxes(tmp_path / "data", "coco", 12), tmp_path / "store"
    first, second = (_build(model, tmp_path / "a.edge", store, evaluation=[data]) for _ in range(2))
    assert any(figure.name == "mAP50" for figure in first.quality)
    assert first.remembered_steps == 0 < 1 < second.remembered_steps
    assert first.distillation == second.distillation
    write_boxes(data, "coco", 12, first_box=0.25)
    assert _build(model, tmp_path / "a.edge", store, evaluation=[data]).remembered_steps == 1  # the calibration
    model.write_text(text.replace("[teacher]", "[thresholds]\nconfidence = 0.3\n[teacher]"))
    assert _build(model, tmp_path / "a.edge", store, evaluation=[data]).remembered_steps == 1


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_project(tmp_path)
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("EDGE_SDK_CACHE", str(tmp_path / "cache"))
    printed = cli(0, "build", model, "--target", "x86_64", "-o", tmp_path / "a.edge")
    assert "results cannot be kept: Not a directory; an interrupted build will begin anew" in printed.err


@pytest.mark.parametrize(
    ("jobs", "number"), [(1, signal.SIGTERM), pytest.param(2, signal.SIGINT, marks=pytest.mark.long)]
)
def test_an_interrupted_build_leaves_nothing_and_goes_on_where_it_stood(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, jobs: int, number: int
) -> None:
    model, cache, scratch = write_project(tmp_path, pictures=150), tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("EDGE_SDK_CACHE", str(cache))
    monkeypatch.setenv("TMPDIR", str(scratch))
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--jobs", str(jobs)]
    with started(*command) as process:
        # With processes: until one of them has begun a model.
        begun = "builds/calibration-*.msgpack" if jobs == 1 else "../.a.edge.building-*/work/variant-*"
        while process.poll() is None and not list(cache.glob(begun)):
            time.sleep(0.002)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == "edge-sdk: interrupted"  # a slow build says before how far it is
    left = (*tmp_path.glob(".a.edge*"), *tmp_path.glob("a.edge"), *cache.glob("builds/.*"), *scratch.iterdir())
    assert left == ()
    assert "finished step" in cli(0, *command).out
    assert Bundle.open(tmp_path / "a.edge").manifest.variants[0].precision == "int8"
    assert "finished step" not in cli(0, *command, "--fresh").out


_PROGRAM = """
import resource, sys
from edge_sdk.cli.root import run
import edge_sdk_tools.build, edge_sdk_tools.progress
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 10**6,) * 2)
sys.exit(run(sys.argv[2:]))
"""


def test_want_of_memory_is_one_line(tmp_path: Path) -> None:
    model, output = write_project(tmp_path, pictures=16), tmp_path / "a.edge"
    # OpenBLAS takes memory for every core, and ends the process where it gets none.
    arguments = (40, "build", model, "--target", "x86_64", "-o", output)
    done = _run_limited(_PROGRAM, *arguments, OPENBLAS_NUM_THREADS="1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "edge-sdk: out of memory: " in done.stderr or "OpenBLAS error: Memory allocation" in done.stderr
    until(lambda: not list(tmp_path.glob(".a.edge*")))
    assert not output.exists()


def test_a_build_that_dies_leaves_nothing_behind(tmp_path: Path) -> None:
    model, output = write_project(tmp_path, pictures=60), tmp_path / "a.edge"
    with started("build", model, "--target", "x86_64", "-o", output, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob(".a.edge.building-*/work/*")):
            time.sleep(0.01)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    until(lambda: not list(tmp_path.glob(".a.edge*")))
    assert not output.exists()


def test_what_dies_between_the_renames_gives_the_old_bundle_back(tmp_path: Path) -> None:
    model, output = write_project(tmp_path), tmp_path / "a.edge"
    build(model, "x86_64", output, bundle_version=1)
    program = (
        "import os, sys; from pathlib import Path; from edge_sdk_tools.bundle_folder import cleanup_guard;"
        "folder, output = Path(sys.argv[1]), Path(sys.argv[2]);"
        "guard = cleanup_guard(folder, output); guard.__enter__();"
        "output.rename(folder / 'old'); os._exit(9)"
    )
    partial = tmp_path / ".a.edge.building-1"
    partial.mkdir()
    assert subprocess.run([sys.executable, "-c", program, partial, output], check=False).returncode == 9
    # The guard takes a moment; without it this waits in vain.
    until(lambda: not list(tmp_path.glob(".a.edge*")))
    assert Bundle.open(output).manifest.version == 1


# Dask closes some of its sockets and loops only when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)


class Project:
    """A model that loses quality in INT8, with its labelled images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = write_project(folder, model=uneven(), pictures=16)
        self.data = write_labelled(folder / "data", uneven(), 60)

    def built(self, name: str, job_runner: JobRunner, **arguments: Any) -> tuple[BuildResult, Provenance]:
        """What the build says, and how the model was made."""
        given = {"evaluation": [self.data], "bundle_version": 1, "job_runner": job_runner, **arguments}
        report = build(self.model, "x86_64", self.folder / name, **given)
        made = Bundle.open(self.folder / name).manifest.provenance
        # Which input is faster is a matter of time.
        return report, msgspec.structs.replace(made, recipe={**made.recipe, "input": ""})


@pytest.mark.long
def test_several_jobs_choose_what_one_chooses(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with JobRunner() as job_runner:
        alone, chosen = project.built("a.edge", job_runner)
    with JobRunner(jobs=2) as job_runner:
        both, of_both = project.built("b.edge", job_runner)
    assert (len(alone.candidates) > 5, len(chosen.float_nodes) > 1) == (True, True)
    assert (of_both, both.quality) == (chosen, alone.quality)
    # Two at once may try one more than was needed.
    tried = {trial.recipe: trial.change for trial in both.candidates}
    assert {trial.recipe: trial.change for trial in alone.candidates}.items() <= tried.items()


@pytest.mark.long
def test_a_cluster_need_not_see_the_images(tmp_path: Path) -> None:
    """What is sent to a worker holds the images; their paths mean nothing there."""
    project = Project(tmp_path)
    hidden = tmp_path / "hidden"

    def hide(step: str, done: int, _total: int) -> None:
        if step == "try recipes" and done == 0 and project.data.exists():
            project.data.rename(hidden)
        elif step in ("try recipes", "measure latency") and hidden.exists():
            hidden.rename(project.data)

    with local_cluster(1) as cluster, JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        report, _ = project.built("b.edge", job_runner, on_progress=hide)
    assert report.agreement.images == 60


def test_nobody_at_the_scheduler_is_one_line(tmp_path: Path, cli: Cli) -> None:
    model = write_project(tmp_path)
    command = ["build", str(model), "--target", "x86_64", "--scheduler", "tcp://127.0.0.1:9"]
    assert "scheduler tcp://127.0.0.1:9: nobody answers" in cli(2, *command, "-o", tmp_path / "a.edge").err
    assert "leave out jobs" in cli(2, *command, "--jobs", "2").err
    assert not list(tmp_path.glob("*.edge"))


def test_without_a_terminal_lines_say_how_far(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("edge_sdk_tools.progress._FIRST_S", 0.01)
    with StepProgress() as shown:
        shown("calibrate", 3, 48)
        until(lambda: "calibrate: 3 of 48, " in capsys.readouterr().err)
