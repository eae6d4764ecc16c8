"""distill-check: the verdict follows the figures, and the figures follow from what both models say."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from edge_sdk.core.errors import AccuracyGateError, EdgeError, ModelError, UsageError
from edge_sdk_tools.datasets.dataset import Dataset, find_images
from edge_sdk_tools.distillation.gate import DistillReport, distill_check
from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.model import open_subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import observe
from tests.support import models as tiny
from tests.support.absent import Lazy
from tests.support.logs import refusal
from tests.support.models import changed, still
from tests.support.program import Cli
from tests.support.projects import (
    CLASSIFIER,
    DETECTOR,
    hand_written_scores,
    write_detector,
    write_labelled,
    write_pictures,
    write_project,
)

stats = Lazy("scipy.stats")
COUNT = 60


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return write_project(tmp_path / "teacher", CLASSIFIER.replace('"tiny"', '"teacher"'), pictures=0)


def test_the_teacher_itself_passes_within_noise(tmp_path: Path, teacher: Path) -> None:
    student = write_project(tmp_path / "student", pictures=0)
    report = distill_check(student, teacher, write_labelled(tmp_path / "data", tiny.classifier(), COUNT, wrong=6))
    verdict = report.verdict  # so few images cannot tell 2 points
    assert (verdict.passed, verdict.within_noise, verdict.inconclusive) == (True, True, True)
    assert (report.p_value, report.worst) == (1, ())
    assert [d.nats for d in report.divergences] == pytest.approx([0] * len(report.divergences), abs=1e-9)
    assert "+0.0 points [-3.2 to +3.2], at most 2 below allowed; within noise of its teacher" in report.verdict.line


@pytest.fixture
def worse(tmp_path: Path) -> Path:
    """A student whose weights differ from the teacher's."""
    return write_project(tmp_path / "student", model=changed(3, 0.5), pictures=0)


def _scores(data: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scores of the worse student and of the teacher."""
    return hand_written_scores(changed(3, 0.5), data), hand_written_scores(tiny.classifier(), data)


def test_a_worse_student_fails_with_the_figures_of_a_plain_loop(tmp_path: Path, teacher: Path, worse: Path) -> None:
    data = write_labelled(tmp_path / "data", tiny.classifier(), COUNT)
    report = distill_check(worse, teacher, data)
    mine, theirs = _scores(data)
    equal = mine.argmax(axis=1) == theirs.argmax(axis=1)
    assert 0 < equal.mean() < 0.9
    verdict = report.verdict
    assert (verdict.passed, verdict.within_noise) == (False, False)
    assert (verdict.value, verdict.limit) == pytest.approx((equal.mean() - 1, -0.02))
    assert verdict.low <= verdict.value <= verdict.high < 0
    assert report.evaluation.agreement[0].value.value == pytest.approx(equal.mean())
    assert report.divergences[0].nats == pytest.approx(stats.entropy(theirs, mine, axis=1).mean(), rel=1e-4)
    assert report.p_value == pytest.approx(0.5 ** (~equal).sum() * 2)
    lost = {row.label: row.lost for row in report.classes}
    assert sum(lost.values()) == (~equal).sum()
    assert {Path(image.file).name for image in report.worst} <= {f"{100 + i}.png" for i in np.flatnonzero(~equal)}
    assert report.worst[0].truth is not None


def test_without_labels_agreement_is_judged(tmp_path: Path, teacher: Path, worse: Path) -> None:
    data = write_pictures(tmp_path / "data", COUNT)
    report = distill_check(worse, teacher, data)
    mine, theirs = _scores(data)
    equal = float((mine.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    assert (report.evaluation.quality, report.verdict.metric) == ((), "top-1 agreement")
    assert (report.verdict.value, report.verdict.passed) == (pytest.approx(equal), equal >= 0.9)
    for least, passed in ((equal - 0.01, True), (equal + 0.01, False)):
        assert distill_check(worse, teacher, data, min_agreement=least).verdict.passed is passed
    assert sum(row.count for row in report.classes) == COUNT + round(COUNT * (1 - equal))
    rows = {row.label: row for row in report.classes}
    for class_id, label in enumerate("abc"):
        said = [int((scores.argmax(axis=1) == class_id).sum()) for scores in (theirs, mine)]
        row = rows.get(label)
        assert said == ([round(row.teacher * row.count), round(row.student * row.count)] if row else [0, 0])


def test_a_limit_inside_the_interval_is_inconclusive(tmp_path: Path, teacher: Path, worse: Path) -> None:
    data = write_labelled(tmp_path / "data", tiny.classifier(), COUNT)
    drop = -100 * distill_check(worse, teacher, data).verdict.value
    for points, passed in ((drop - 0.1, False), (drop + 0.1, True)):
        verdict = distill_check(worse, teacher, data, max_drop_points=points).verdict
        assert (verdict.passed, verdict.inconclusive) == (passed, True)


def _reordered() -> onnx.ModelProto:
    """The tiny classifier with its classes the other way round, and a fourth one that is never seen, at 24 pixels."""
    proto = tiny.classifier(size=24)
    weights = {w.name: w for w in proto.graph.initializer}
    for name, filler in (("w2", 0.0), ("b2", -9.0)):
        values = numpy_helper.to_array(weights[name])[::-1]
        more = np.concatenate([values, np.full((1, *values.shape[1:]), filler, np.float32)])
        weights[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(more), name))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    return proto


def test_size_preprocessing_and_order_of_labels_may_differ(tmp_path: Path) -> None:
    text = CLASSIFIER.replace("[16, 16]", "[24, 24]").replace('"tiny"', '"teacher"')
    teacher = write_project(tmp_path / "teacher", text, _reordered(), labels="C\nB\nalpha\nrest\n", pictures=0)
    text = CLASSIFIER + f'[teacher]\nmodel = "{teacher}"\nlabels = {{ a = "alpha" }}\n'
    student = write_project(tmp_path / "student", text, pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), COUNT)
    report = distill_check(student, data=data)
    assert report.evaluation.reference == "teacher"
    # The teacher looks at more pixels, and still says the same nearly always.
    assert report.evaluation.agreement[0].value.value > 0.8
    with pytest.raises(ModelError, match=r"labels do not match: 1 of 3 .* \('a'\)"):
        distill_check(write_project(tmp_path / "other", pictures=0), teacher, data)


def test_constant_scores_are_no_student(tmp_path: Path, teacher: Path, cli: Cli) -> None:
    blind = write_project(tmp_path / "blind", model=still(tiny.classifier()), pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), 25)
    printed = cli(3, "distill-check", blind, "--teacher", teacher, "--data", data)
    assert "tiny gives the same output for all 25 images" in printed.err
    assert "tiny gives the same output" in refusal(AccuracyGateError, distill_check, teacher, blind, data)


def test_bad_input_is_named(tmp_path: Path, teacher: Path) -> None:
    student = write_project(tmp_path / "student", pictures=0)
    write_detector(tmp_path / "cells")
    write_pictures(tmp_path / "data", 3, first=200)
    for arguments, error, expected in (
        ({}, UsageError, "no teacher to compare with: give --teacher teacher.toml, or [teacher] in model.toml"),
        ({"teacher": "teacher/model.toml"}, UsageError, "no images to compare on: give --data"),
        ({"teacher": "nowhere.toml", "data": "data"}, EdgeError, "nowhere.toml: no such file"),
        ({"teacher": "cells/model.toml", "data": "data"}, ModelError, "cells does detection, expected the same"),
    ):
        said = refusal(error, distill_check, student, **{key: tmp_path / value for key, value in arguments.items()})
        assert expected in said


def test_the_command_gives_reasons_and_code_3(tmp_path: Path, teacher: Path, worse: Path, cli: Cli) -> None:
    data = write_labelled(tmp_path / "data", tiny.classifier(), COUNT)
    arguments = ["distill-check", str(worse), "--teacher", str(teacher), "--data", str(data)]
    captured = cli(3, *arguments)
    assert "images to look at:" in captured.out
    assert "classes that can be tested" in captured.out
    assert captured.err.count("\n") == 1 + captured.err.count("distill-check: tiny fails: top-1") == 2
    assert "warning: 'b' is lost: of 10 that teacher finds 2 are left" in captured.err
    shown = cli(0, *arguments, "--max-drop-points", "100", "--temperature", "8", "--json").out
    report = msgspec.json.decode(shown, type=DistillReport, dec_hook=lambda kind, name: kind(name))
    assert [d.temperature for d in report.divergences] == [1, 2, 4, 8]
    assert "passes: top-1" in cli(0, *arguments, "--max-drop-points", "100").out


def test_labels_in_another_order_than_the_outputs_are_no_student(tmp_path: Path, teacher: Path) -> None:
    student = write_project(tmp_path / "student", labels="b\nc\na\n", pictures=0)
    data = write_labelled(tmp_path / "data", tiny.classifier(), COUNT)
    with pytest.raises(ModelError, match=r"tiny .* and teacher .* agree on 100% of 60 images by the number of"):
        distill_check(student, teacher, data)


def test_two_models_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    student, teacher = (write_project(tmp_path / folder, pictures=0) for folder in ("student", "teacher"))
    report = distill_check(student, teacher, write_pictures(tmp_path / "data", 30))
    assert (report.evaluation.model, report.evaluation.reference) == (f"tiny ({student})", f"tiny ({teacher})")
    [warning] = report.evaluation.warnings
    assert "are the very same model" in warning
    # The same file read in another way is another model.
    student.write_text(student.read_text().replace("[255, 255, 255]", "[128, 128, 128]"))
    assert distill_check(student, teacher, tmp_path / "data").evaluation.warnings == ()


def test_one_coincidence_of_numbers_accuses_no_label_file(tmp_path: Path) -> None:
    student = write_project(tmp_path / "student", model=_leaning(0, 9, 0), pictures=0)
    text = CLASSIFIER.replace('"tiny"', '"teacher"')
    teacher = write_project(tmp_path / "teacher", text, _leaning(0, 0, 9), labels="c\nb\na\n", pictures=0)
    assert not distill_check(student, teacher, write_pictures(tmp_path / "data", 30)).verdict.passed


def _leaning(*bias: float) -> onnx.ModelProto:
    """The tiny classifier, which looks and yet finds the same class in nearly every image."""
    proto = tiny.classifier()
    proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array(bias, np.float32), "b2"))
    return proto


def test_a_background_that_wins_always_agrees_with_nobody(tmp_path: Path) -> None:
    text, labels = CLASSIFIER + "[classification]\nbackground_class = true\n", "background\nb\nc\n"
    student = write_project(tmp_path / "s", text, _leaning(6, 0, 0), labels=labels, pictures=0)
    teacher = write_project(tmp_path / "t", text.replace('"tiny"', '"teacher"'), labels=labels, pictures=0)
    report = distill_check(student, teacher, write_pictures(tmp_path / "data", 30))
    assert report.verdict.value < 0.9
    assert {row.label for row in report.classes} >= {"background"}
    assert any("background" in image.student for image in report.worst)


def test_a_teacher_far_below_its_student_is_doubted(tmp_path: Path, teacher: Path) -> None:
    other = write_project(tmp_path / "other", CLASSIFIER.replace('"tiny"', '"other"'), changed(3, 2.0), pictures=0)
    report = distill_check(teacher, other, write_labelled(tmp_path / "data", tiny.classifier(), 100))
    [warning] = report.evaluation.warnings
    assert "points below its student: are the student's labels in the order of its outputs?" in warning


def _project(folder: Path, bias: float = -10.0, *, name: str = "cells") -> Path:
    """A detector that needs more light for an object the lower its bias is."""
    proto = tiny.head_detector()
    values = numpy_helper.to_array(proto.graph.initializer[-1]).copy()
    values[4] = bias
    proto.graph.initializer[-1].CopyFrom(numpy_helper.from_array(values, "b"))
    return write_project(folder, DETECTOR.replace('"cells"', f'"{name}"'), proto, labels="red\nblue\n", pictures=0)


def _boxes(model: Path, images: Path) -> list[Boxes]:
    observed = observe(pair_up([open_subject(model)]), Dataset(find_images([images]), None, "images"))
    return [row for row in (record.rows[0] for record in observed.records) if isinstance(row, Boxes)]


def _label(model: Path, data: Path) -> None:
    """What `model` sees becomes the truth, in YOLO's format."""
    (data / "labels").mkdir()
    for path, boxes in zip(sorted((data / "images").iterdir()), _boxes(model, data / "images"), strict=True):
        relative = boxes.boxes_xyxy / [48, 40, 48, 40]
        rows = np.concatenate([(relative[:, :2] + relative[:, 2:]) / 2, relative[:, 2:] - relative[:, :2]], axis=1)
        lines = [f"{c} {' '.join(f'{x:.6f}' for x in row)}\n" for c, row in zip(boxes.class_ids, rows, strict=True)]
        (data / "labels" / f"{path.stem}.txt").write_text("".join(lines))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "data" / "images", 40)
    return tmp_path / "data"


def test_without_labels_the_teachers_detections_are_the_truth(tmp_path: Path, data: Path) -> None:
    student, teacher = _project(tmp_path / "s", -12), _project(tmp_path / "t", name="teacher")
    report = distill_check(student, teacher, data / "images")
    mine, theirs = (sum(len(b.confidences) for b in _boxes(m, data / "images")) for m in (student, teacher))
    assert 0 < mine < theirs
    # The student needs more light for the same cells: what it finds the teacher finds too.
    assert report.verdict.value == pytest.approx(2 * mine / (mine + theirs))
    lost, count = (sum(getattr(row, name) for row in report.classes) for name in ("lost", "count"))
    assert (lost, count, report.calibration.teacher, report.divergences) == (theirs - mine, theirs, None, ())
    assert report.worst[0].distance >= report.worst[-1].distance > 0
    assert "red" in report.worst[0].teacher or "blue" in report.worst[0].teacher


def test_with_labels_average_precision_is_judged(tmp_path: Path, data: Path) -> None:
    student, teacher = _project(tmp_path / "s", -12), _project(tmp_path / "t", name="teacher")
    _label(teacher, data)
    report = distill_check(student, teacher, data)
    assert [figure.name for figure in report.evaluation.quality] == ["mAP50-95", "mAP50", "F1"]
    [precise, _, confident] = report.evaluation.quality
    assert precise.reference.value == pytest.approx(1, abs=1e-3)
    assert confident.value.value < confident.reference.value == 1
    assert sum(row.lost for row in report.classes) > 0
    assert all(row.teacher == 1 for row in report.classes)
    assert report.p_value < 0.05
    same = distill_check(teacher, teacher, data)
    assert (same.verdict.passed, same.verdict.within_noise, same.p_value) == (True, True, 1)


def test_classes_that_only_the_teacher_knows_do_not_count(tmp_path: Path, data: Path) -> None:
    teacher = write_project(
        tmp_path / "t", DETECTOR.replace('"cells"', '"teacher"'), tiny.head_detector(classes=3),
        labels="Red\ngreen\nblue\n", pictures=0,
    )  # fmt: skip
    student = _project(tmp_path / "s")
    mine = _boxes(student, data / "images")
    reds, blues = (sum(int((boxes.class_ids == c).sum()) for boxes in mine) for c in (0, 1))
    assert min(reds, blues) > 0
    blind = _project(tmp_path / "blind", -1000, name="blind")
    with pytest.raises(AccuracyGateError, match="blind finds nothing on any of 40 images"):
        distill_check(student, blind, data / "images")
    report = distill_check(student, teacher, data / "images")
    # What the student calls blue is green to this teacher, a class that the student does not have.
    assert {row.label: (row.count, row.lost) for row in report.classes} == {"red": (reds, 0), "blue": (blues, -blues)}
    assert report.verdict.value == pytest.approx(2 * reds / (2 * reds + blues))
