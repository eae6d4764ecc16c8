"""Images that calibrate badly are warned of, with their ranges: on the screen, in JSON, in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.cli.root import run
from edge_sdk.model_spec import load_model_spec
from edge_sdk_tools.image_split import split_images
from edge_sdk_tools.quantize import Activations, doubts_about_calibration
from edge_sdk_tools.quantize.histogram import Histogram
from tests.host.images import write_pictures
from tests.host.projects import CLASSIFIER, write_project

_LABELS = ("a", "b", "c")


def _activations(answers: tuple[int, ...], *, different: int = 12, constant: float | None = None) -> Activations:
    histograms = {"moving": Histogram(), "still": Histogram()}
    histograms["moving"].add(np.array([-2, 3.5], np.float32))
    values = [0.25, 0.5] if constant is None else [constant, constant]
    histograms["still"].add(np.array(values, np.float32))
    return Activations(histograms, len(answers), different, answers, ())


@pytest.mark.parametrize(
    ("activations", "labels", "known", "expected"),
    [
        (_activations((0, 1) * 6), _LABELS, (), []),
        (_activations((1,) * 12), (), (), []),  # no classifier
        (_activations((0,) * 12), ("a",), (), []),  # it knows one class only
        (_activations((1,) * 12), _LABELS, ("a", "c") * 6, []),  # files know better than the model
        (_activations((1,) * 12), _LABELS, (), ["all 12 calibration images look like 'b' to FP32"]),
        (_activations((0, 1) * 6), _LABELS, ("c",) * 12, ["all 12 calibration images are labelled 'c'"]),
        (_activations((0,) * 12, different=1), _LABELS, (), ["all 12 calibration images are the same once prepared"]),
        (_activations((0, 1)), _LABELS, (), ["few images calibrate: 2, give 10 or more"]),
        (
            _activations((0, 1) * 6, constant=7),
            _LABELS,
            (),
            ["tensors with one value on all 12 calibration"],
        ),
    ],
)
def test_each_doubt_has_its_line(
    activations: Activations, labels: tuple[str, ...], known: tuple[str, ...], expected: list[str]
) -> None:
    lines = doubts_about_calibration(activations, labels, known)
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
    assert all("(from -2 to 3.5)" in line for line in lines if "so ranges" in line)


def _by_class(folder: Path, names: tuple[str, ...], kind: str) -> Path:
    """A project whose calibration images have classes, `names` in turn."""
    path = write_project(folder, CLASSIFIER, pictures=0)
    images = write_pictures(folder / "pictures", 12)
    rows = []
    for index, file in enumerate(sorted(images.iterdir())):
        name = names[index % len(names)]
        rows.append(f"{file.name},{_LABELS.index(name)}")
        if kind == "class folders":
            (images / name).mkdir(exist_ok=True)
            file.rename(images / name / file.name)
    if kind == "labels.csv":
        (images / "labels.csv").write_text("\n".join(["file,class_id", *rows]))
    if kind == "half of labels.csv":
        (images / "labels.csv").write_text("\n".join(["file,class_id", *rows[:5]]))
    return path


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        (("b",), "labels.csv", {"b"}),
        (("c",), "class folders", {"c"}),
        (("a", "b"), "class folders", {"a", "b"}),
        (("a",), "half of labels.csv", set()),  # of the other half nothing is known
        (("a",), "none", set()),
    ],
)
def test_classes_of_calibration_images_are_read_where_files_say_them(
    tmp_path: Path, names: tuple[str, ...], kind: str, expected: set[str]
) -> None:
    spec = load_model_spec(_by_class(tmp_path, names, kind))
    assert set(split_images(spec, _LABELS, [], []).calibration_classes) == expected


def test_labels_that_are_wrong_keep_nobody_from_calibrating(tmp_path: Path) -> None:
    spec = load_model_spec(_by_class(tmp_path, ("a",), "labels.csv"))
    (tmp_path / "pictures" / "labels.csv").write_text("file,class_id\n000.png,77\n")
    found = split_images(spec, _LABELS, [], [])
    assert (len(found.calibration), found.calibration_classes) == (9, ())


def test_a_doubt_is_on_the_screen_in_json_and_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = _by_class(tmp_path, ("b",), "class folders")
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge")]
    assert run(command) == 0
    start = "all 9 calibration images are labelled 'b', so ranges (from "
    assert f"edge-sdk: warning: {start}" in capsys.readouterr().err
    assert run([*command, "--json"]) == 0
    assert any(line.startswith(start) for line in json.loads(capsys.readouterr().out)["doubts"])
    warnings = json.loads((tmp_path / "a.edge" / "report.json").read_text())["warnings"]
    assert any(line.startswith(start) for line in warnings)
    assert start[:40] in (tmp_path / "a.edge" / "report.html").read_text().replace("&#39;", "'")
