"""build compares a student with its teacher first, and the bundle says how that went."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cli.root import run
from edge_sdk.errors import AccuracyGateError, DataError
from edge_sdk_tools.build import build
from tests.device import tiny
from tests.host.images import write_pictures
from tests.host.labelled import write_labelled
from tests.host.projects import CLASSIFIER, write_project
from tests.host.test_distill_check import changed


def _student(folder: Path, *, worse: float = 0.0) -> Path:
    """A project with a teacher beside it; `worse` sets how far its weights are from the teacher's."""
    write_project(folder / "teacher", CLASSIFIER.replace('"tiny"', '"teacher"'), pictures=0)
    text = CLASSIFIER + '[teacher]\nmodel = "../teacher/model.toml"\n'
    return write_project(folder / "student", text, changed(3, worse), pictures=16)


def test_without_a_teacher_the_bundle_says_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_project(tmp_path / "student")
    assert run(["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]) == 0
    assert "teacher: none named, not checked" in capsys.readouterr().out
    assert Bundle.open(tmp_path / "a.edge").manifest.distillation is None


def test_a_good_student_is_promised_with_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_labelled(tmp_path / "data", tiny.classifier(), 20, wrong=2)
    model, bundle = _student(tmp_path), tmp_path / "a.edge"
    assert run(["build", str(model), "--target", "x86_64", "--evaluation", str(data), "-o", str(bundle)]) == 0
    assert "teacher teacher: top-1 90.0%, the teacher's 90.0%" in capsys.readouterr().out
    promised = Bundle.open(bundle).manifest.distillation
    assert promised is not None
    assert (promised.teacher, promised.metric, promised.images) == ("teacher", "top-1", 20)
    assert (promised.student, promised.teacher_value, promised.within_noise) == (0.9, 0.9, True)
    assert promised.teacher_sha256 == hashlib.sha256((tmp_path / "teacher" / "model.onnx").read_bytes()).hexdigest()
    assert (promised.low, promised.high) == pytest.approx((-0.0891, 0.0891), abs=1e-4)  # half a case each way, of 22
    assert promised.limit == -0.02


def test_images_that_calibrated_the_teacher_judge_no_student(tmp_path: Path) -> None:
    model = _student(tmp_path)
    data = write_pictures(tmp_path / "data", 20, first=100)
    (tmp_path / "teacher" / "pictures").mkdir()
    for path in sorted(data.iterdir())[:8]:
        shutil.copy(path, tmp_path / "teacher" / "pictures")
    bundle = tmp_path / "a.edge"
    build(model, "x86_64", bundle, evaluation=[data], bundle_version=1)
    promised = Bundle.open(bundle).manifest.distillation
    assert promised is not None
    assert promised.images == 12
    for path in sorted(data.iterdir())[8:]:
        shutil.copy(path, tmp_path / "teacher" / "pictures")
    with pytest.raises(DataError, match="every evaluation image calibrated teacher, the teacher; give others"):
        build(model, "x86_64", bundle, evaluation=[data], bundle_version=2)


def test_without_labels_agreement_is_promised(tmp_path: Path) -> None:
    build(_student(tmp_path), "x86_64", tmp_path / "a.edge", bundle_version=1)
    promised = Bundle.open(tmp_path / "a.edge").manifest.distillation
    assert promised is not None
    assert (promised.metric, promised.student, promised.teacher_value) == ("top-1 agreement", 1.0, None)


def test_a_bad_student_is_not_built_and_the_old_bundle_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "a.edge"
    build(_student(tmp_path), "x86_64", bundle, bundle_version=1)
    before = Bundle.open(bundle).digest
    model = _student(tmp_path, worse=0.8)
    with pytest.raises(AccuracyGateError, match="tiny is not its teacher's equal: top-1 agreement"):
        build(model, "x86_64", bundle, bundle_version=2)
    assert run(["build", str(model), "--target", "x86_64", "-o", str(bundle)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert Bundle.open(bundle).digest == before
