"""`edge-sdk init`: what a file says about itself becomes a model.toml; what no decoder reads is never described."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.cli.root import run
from edge_sdk.core.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.build.unproved import UNPROVED
from edge_sdk_tools.check.gate import examine
from edge_sdk_tools.datasets.class_names import LISTS, read_labels
from edge_sdk_tools.importers.describe import describe, write_description
from tests.support import models as tiny
from tests.support.pictures import numbered_image
from tests.support.program import edge_sdk

ULTRALYTICS = {"description": "Ultralytics YOLO", "task": "detect", "imgsz": "[64, 64]", "names": "{0: 'a', 1: 'b'}"}

COCO80, IMAGENET = ([*read_labels(LISTS[name])] for name in ("coco80", "imagenet1k"))


def _file(
    folder: Path,
    shapes: dict[str, list[int]],
    metadata: dict[str, str] | None = None,
    *,
    last: str = "Add",
    image: list[int | str] | None = None,
) -> Path:
    """A model whose outputs have these shapes, whatever it sees."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "no"], ["nothing"]),
    ]
    weights = {"no": np.zeros((), np.float32)}
    for name, shape in shapes.items():
        weights[f"{name}_rows"] = np.zeros(shape, np.float32)
        added = name if last == "Add" else f"{name}_added"
        nodes.append(helper.make_node("Add", [f"{name}_rows", "nothing"], [added]))
        if last != "Add":
            nodes.append(helper.make_node(last, [added], [name]))
    proto = tiny.model(nodes, image or [1, 3, 64, 64], shapes, weights)
    helper.set_model_props(proto, metadata or {})
    path = folder / "my net.onnx"
    onnx.save(proto, path)
    return path


def _levels(anchors: int, **kinds: int) -> dict[str, list[int]]:
    return {f"{name}_{n}": [1, n * anchors, values] for name, values in kinds.items() for n in (64, 16, 4)}


def _described(path: Path, **options: object) -> tuple[ModelSpec, list[str]]:
    """The model.toml as it is read again; it passes the export gate."""
    toml, *labels = write_description(describe(path, **options), path.parent)  # type: ignore[arg-type]
    spec = load_model_spec(toml)
    assert not examine(spec).of("error")
    return spec, list(read_labels(labels[0] if labels else Path(spec.labels)))


@pytest.mark.parametrize(
    ("shapes", "metadata", "decoder", "color", "labels"),
    [
        ({"y": [1, 6, 84]}, ULTRALYTICS, "yolov8", "RGB", ["a", "b"]),
        ({"y": [1, 300, 6]}, ULTRALYTICS, "end_to_end", "RGB", ["a", "b"]),
        ({"y": [1, 12, 84]}, {**ULTRALYTICS, "task": "pose", "kpt_shape": "[2, 3]"}, "yolov8_pose", "RGB", ["a", "b"]),
        (
            {"y": [1, 300, 38], "p": [1, 32, 16, 16]},
            {**ULTRALYTICS, "task": "segment"},
            "end_to_end_seg",
            "RGB",
            ["a", "b"],
        ),
        ({"y": [1, 252, 7]}, {}, "yolov5", "RGB", ["class_0", "class_1"]),
        ({"y": [1, 84, 85]}, {}, "yolox", "BGR", COCO80),
        ({"logits": [1, 300, 4], "boxes": [1, 300, 2]}, {}, "detr", "RGB", ["class_0", "class_1"]),
        (
            {"y": [1, 300, 6]},
            {**ULTRALYTICS, "description": "Ultralytics rtdetr-l"},
            "detr_end_to_end",
            "RGB",
            ["a", "b"],
        ),
        ({"y": [1, 300, 83]}, {}, "detr", "RGB", [f"class_{number}" for number in range(79)]),
        (_levels(1, cls=1, obj=1, bbox=4, kps=10), {}, "yunet", "BGR", ["face"]),
        (_levels(2, score=1, bbox=4), {}, "scrfd", "RGB", ["face"]),
        ({"y": [1, 5]}, {"task": "classify"}, "logits", "RGB", [f"class_{number}" for number in range(5)]),
        ({"y": [1, 1000]}, {}, "logits", "RGB", IMAGENET),
        ({"y": [1, 1001]}, {}, "logits", "RGB", ["background", *IMAGENET]),
        ({"y": [1, 24, 84]}, {}, "yolov8", "RGB", [*read_labels(LISTS["voc20"])]),
        ({"y": [1, 3, 16, 16]}, {}, "logits", "RGB", ["class_0", "class_1", "class_2"]),
    ],
)
def test_what_the_file_says_becomes_a_model_toml(
    tmp_path: Path, shapes: dict[str, list[int]], metadata: dict[str, str], decoder: str, color: str, labels: list[str]
) -> None:
    spec, lines = _described(_file(tmp_path, shapes, metadata))
    assert (spec.name, spec.decoder, spec.input.color, spec.input.size_wh) == ("my-net", decoder, color, (64, 64))
    assert lines == labels


def test_a_softmax_in_the_graph_is_known_by_its_operator(tmp_path: Path) -> None:
    spec, _ = _described(_file(tmp_path, {"y": [1, 4]}, last="Softmax"))
    assert (spec.task, spec.decoder, spec.input.resize) == ("classification", "softmax", "center_crop")


def test_guesses_stand_in_the_file_and_what_is_given_counts_more(tmp_path: Path) -> None:
    path = _file(tmp_path, {"y": [1, 84, 85]}, image=[1, 3, "h", "w"])
    (tmp_path / "mine.txt").write_text("\n".join(map(str, range(80))))
    spec, lines = _described(path, decoder="yolov5", labels=tmp_path / "mine.txt", size_wh=(64, 64))
    assert (spec.decoder, spec.input.std, lines[79]) == ("yolov5", (255.0,) * 3, "79")
    assert "# guessed: as yolov5 models are usually trained" in (tmp_path / "model.toml").read_text(encoding="utf-8")


def test_a_list_of_labels_is_named_and_not_written(tmp_path: Path) -> None:
    spec, _ = _described(_file(tmp_path, {"y": [1, 84, 85]}))
    text = (tmp_path / "model.toml").read_text(encoding="utf-8")
    assert re.search('labels = "coco80" +# guessed: 80 classes are mostly', text)
    assert not (tmp_path / "labels.txt").exists()
    (tmp_path / "model.toml").unlink()
    spec, lines = _described(_file(tmp_path, {"y": [1, 1001]}), labels=Path("imagenet1k"))
    assert (spec.classification.background_class, lines[:2]) == (True, ["background", "tench"])


def test_two_thousand_odd_names(tmp_path: Path) -> None:
    names = {number: f"名 {number}\n\u202e'" for number in range(2000)}
    _, lines = _described(_file(tmp_path, {"y": [1, 2004, 84]}, {**ULTRALYTICS, "names": repr(names)}))
    assert len(lines) == 2000
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("shapes", "metadata", "options", "error", "expected"),
    [
        ({"y": [1, 20, 84]}, {"task": "obb"}, {}, ModelError, r"oriented boxes \(task obb\), which no decoder reads"),
        (
            {"y": [1, 56, 84]},
            {"task": "pose", "kpt_shape": "[9]"},
            {},
            ModelError,
            "are those of no decoder for detection",
        ),
        ({"y": [1, 34, 84]}, ULTRALYTICS, {}, ModelError, "name 2 classes, and its outputs 1x34x84 have 30 for yolov8"),
        (
            {"y": [1, 84, 84], "z": [1, 33, 16, 16]},
            ULTRALYTICS,
            {},
            ModelError,
            "are those of no decoder for detection",
        ),
        ({"y": [1, 6, 84]}, ULTRALYTICS, {"task": "classification"}, ModelError, "say detection .* and --task says"),
        ({"y": [1, 6, 84]}, {}, {"size_wh": (32, 32)}, ModelError, "its input is 64x64, expected 32x32"),
        ({"y": [1, 6, 84]}, {}, {"decoder": "yolo99"}, UsageError, "--decoder yolo99: expected one of logits"),
    ],
)
def test_what_cannot_be_right_is_refused(
    tmp_path: Path,
    shapes: dict[str, list[int]],
    metadata: dict[str, str],
    options: dict[str, object],
    error: type[EdgeError],
    expected: str,
) -> None:
    with pytest.raises(error, match=expected):
        describe(_file(tmp_path, shapes, metadata), **options)  # type: ignore[arg-type]


def test_the_command_says_what_it_read_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _file(tmp_path, {"y": [1, 6, 84]}, ULTRALYTICS)
    assert run(["init", str(model)]) == 0
    said = capsys.readouterr().out
    assert "detection with decoder yolov8, 2 labels, input 64x64" in said
    assert f"next: edge-sdk check {tmp_path / 'model.toml'}" in said
    assert run(["init", str(model)]) == 2
    assert "model.toml: exists and is kept" in capsys.readouterr().err
    (tmp_path / "yolo.pt").touch()
    assert run(["init", str(tmp_path / "yolo.pt")]) == 2
    assert f"yolo export model={tmp_path / 'yolo.pt'} format=onnx" in capsys.readouterr().err


def test_a_bare_model_runs_on_a_picture_and_says_that_it_is_unproved(tmp_path: Path) -> None:
    onnx.save(tiny.classifier(), tmp_path / "net.onnx")
    cv2.imwrite(str(tmp_path / "street.png"), numbered_image(5))
    (tmp_path / "temporary").mkdir()
    places = "--source", tmp_path / "street.png", "--annotate", tmp_path / "found.png"
    ran = edge_sdk("run", tmp_path / "net.onnx", *places, TMPDIR=str(tmp_path / "temporary"))
    assert (ran.returncode, ran.stderr.count(UNPROVED)) == (0, 1), ran.stderr
    assert "guessed labels: the file does not name its classes" in ran.stderr
    assert json.loads(ran.stdout)["classes"][0]["label"].startswith("class_")
    assert cv2.imread(str(tmp_path / "found.png")).shape == numbered_image(5).shape
    assert not list((tmp_path / "temporary").iterdir())


def test_a_free_size_is_the_one_that_the_file_names_or_a_guess(tmp_path: Path) -> None:
    path = _file(tmp_path, {"y": [1, 6, 210]}, {**ULTRALYTICS, "imgsz": "[64, 160]"}, image=[1, 3, "h", "w"])
    found = describe(path)
    assert (found.spec.input.size_wh, "size_wh" in found.guessed) == ((160, 64), False)
    found = describe(_file(tmp_path, {"y": [1, 6, 84]}, image=["n", 3, 48, "w"]))
    assert found.spec.input.size_wh == (640, 48)
    found = describe(_file(tmp_path, {"y": [1, 5]}, image=["n", 3, "h", "w"]))
    assert (found.spec.input.size_wh, "size_wh" in found.guessed, "decoder" in found.guessed) == (
        (224, 224),
        True,
        True,
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [(9.0, "decoder detr reads confidences of up to 9, expected 0-1"), (np.inf, "are not finite")],
)
def test_an_answer_that_no_decoder_gives_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float, expected: str
) -> None:
    path = _file(tmp_path, {"y": [1, 300, 7]})
    proto = onnx.load(path)
    [rows] = [weight for weight in proto.graph.initializer if weight.name == "y_rows"]
    values = np.full((1, 300, 7), 0.5, np.float32)
    values[..., 4:] = value
    rows.CopyFrom(onnx.numpy_helper.from_array(values, "y_rows"))
    onnx.save(proto, path)
    assert run(["run", str(path), "--source", "pattern", "--frames", "1"]) == 2
    assert expected in capsys.readouterr().err


def test_a_checkpoint_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(tmp_path / "yolo11n.pt"), "--source", "0"]) == 2
    assert "yolo export model=" in capsys.readouterr().err
