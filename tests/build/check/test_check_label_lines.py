"""What the lines of a labels file show: one piece of advice, which no other one contradicts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.model_spec import ClassificationSpec, ModelSpec, load_model_spec
from edge_sdk_tools.check import Finding
from edge_sdk_tools.check.labels import check_labels
from edge_sdk_tools.check.report import CheckReport, TensorInfo
from tests.support.projects import CLASSIFIER, DETECTOR, write_project

ONE_A_CLASS = "write one line a class, in output order"


def _names(count: int) -> list[str]:
    return [f"class {number}" for number in range(count)]


def _findings(
    folder: Path, labels: list[str], classes: int, *, flag: bool = False, text: str = CLASSIFIER
) -> list[Finding]:
    """Of a model that declares so many classes."""
    path = write_project(folder, text, labels="\n".join(labels) + "\n", pictures=0)
    spec: ModelSpec = msgspec.structs.replace(
        load_model_spec(path), classification=ClassificationSpec(background_class=flag)
    )
    output = TensorInfo("y", "float", (1, classes))
    report = CheckReport(name="m", model="m.onnx", target=None, onnxruntime="", outputs=(output,))
    found = check_labels(spec, report)
    assert all(finding.next_step for finding in found)
    return found


@pytest.mark.parametrize("flag", [False, True])
def test_an_empty_line_too_many(tmp_path: Path, flag: bool) -> None:
    names = [*(["background"] if flag else []), *_names(1001 - flag)]
    names.insert(5, "")
    [finding] = _findings(tmp_path, names, 1001, flag=flag)
    assert finding.severity == "error"
    assert finding.what == "labels has 1002 lines, the model has 1001 classes (output 1x1001)"
    assert finding.next_step == "take out the empty line 6"


def test_empty_lines_too_many(tmp_path: Path) -> None:
    [finding] = _findings(tmp_path, ["a", "", "b", "", "c"], 3)
    assert finding.next_step == "take out the empty lines 2, 4"


def test_an_empty_line_that_is_not_too_much_wants_its_label(tmp_path: Path) -> None:
    [warning, error] = _findings(tmp_path, ["a", "", "b"], 5)
    assert warning.next_step == "write the label of that output"
    assert error.next_step == ONE_A_CLASS
    [warning, error] = _findings(tmp_path, ["a", "", "b", "c", "d"], 3)
    assert warning.next_step == "write the label of that output, or take the line out"
    assert error.next_step == ONE_A_CLASS


def test_the_line_of_output_0_is_missing(tmp_path: Path) -> None:
    [finding] = _findings(tmp_path, _names(1000), 1001, flag=True)
    assert finding.severity == "error"
    assert finding.what == "labels has 1000 lines, the model has 1001 classes (output 1x1001)"
    assert finding.next_step.startswith("the file lacks the line for output 0: write `background` as line 1")


def test_a_line_of_the_background_that_the_model_does_not_have(tmp_path: Path) -> None:
    [finding] = _findings(tmp_path, ["background", *_names(10)], 10)
    assert finding.severity == "error"
    assert finding.next_step == "take out line 1, 'background': the model has no such class"
    [finding] = _findings(tmp_path / "last", [*_names(10), "background"], 10)
    assert finding.next_step == "take out line 11, 'background': the model has no such class"


def test_a_background_that_both_files_name_may_be_meant(tmp_path: Path) -> None:
    [finding] = _findings(tmp_path, ["background", *_names(10)], 10, flag=True)
    assert finding.next_step == (
        "take out the line that is too much; if that is line 1, background_class = true under [classification] too"
    )


def test_a_missing_line_is_not_the_background_where_there_is_one(tmp_path: Path) -> None:
    [warning, error] = _findings(tmp_path, ["background", *_names(8)], 10)
    assert (warning.severity, error.next_step) == ("warning", ONE_A_CLASS)
    [error] = _findings(tmp_path, ["background", *_names(8)], 10, flag=True)
    assert error.next_step == ONE_A_CLASS


def test_a_label_too_many_that_is_there_already(tmp_path: Path) -> None:
    [finding] = _findings(tmp_path, ["crane", "dog", "crane"], 2)
    assert finding.next_step == ("take out line 3, if the model has that label once: an earlier line has the same")
    [finding] = _findings(tmp_path, ["a", "b", "b", "a"], 2)
    assert finding.next_step.startswith("take out lines 3, 4, if the model has those labels once")


def test_a_background_in_the_last_line(tmp_path: Path) -> None:
    labels = [*_names(1000), "background"]
    [finding] = _findings(tmp_path, labels, 1001, flag=True)
    assert finding.severity == "error"
    assert finding.what.endswith("'background' is line 1001 of 1001: the file looks reversed or shifted")
    [error, count] = _findings(tmp_path, labels, 1000, flag=True)
    assert error.what.endswith("the file looks reversed or shifted")
    assert count.next_step == ONE_A_CLASS


@pytest.mark.parametrize(("line", "count"), [(1001, 1001), (2, 3)])
def test_a_background_that_model_toml_does_not_name(tmp_path: Path, line: int, count: int) -> None:
    labels = _names(count - 1)
    labels.insert(line - 1, "background")
    [finding] = _findings(tmp_path, labels, count)
    assert finding.severity == "warning"
    assert f"'background' is line {line} of {count}, so output {line - 1} is the background?" in finding.what
    assert finding.next_step == (
        f"nothing to do, if output {line - 1} is; if output 0 is, the file is reversed or shifted: write 'background' "
        "first and set background_class = true under [classification]"
    )


SEGMENTER = CLASSIFIER.replace("classification", "segmentation").replace("softmax", "argmax")


@pytest.mark.parametrize(("text", "task"), [(DETECTOR, "detection"), (SEGMENTER, "segmentation")])
@pytest.mark.parametrize("labels", [["background", "a"], []])
def test_a_flag_that_does_nothing(tmp_path: Path, text: str, task: str, labels: list[str]) -> None:
    found = _findings(tmp_path, labels, 2, flag=True, text=text)
    [note] = [finding for finding in found if finding.severity == "note"]
    assert (note.rule, note.where) == ("labels", "model.toml")
    assert note.what.startswith(f"background_class = true in model.toml does nothing in {task}")
    assert _findings(tmp_path, ["background", "a"], 2, text=text) == []
