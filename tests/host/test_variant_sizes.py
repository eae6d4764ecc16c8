"""Other input sizes: what can have them gives outputs that its decoder reads; what cannot is refused first of all."""

from __future__ import annotations

from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk.cli.root import run
from edge_sdk.errors import UsageError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target
from edge_sdk_tools.build import build
from edge_sdk_tools.check import check_model
from edge_sdk_tools.variants import Request, parse_sizes
from edge_sdk_tools.variants.resize import resize
from tests.device import tiny
from tests.host.projects import CLASSIFIER, DETECTOR, write_project
from tests.host.variant_models import flat_detector

YOLOV8 = DETECTOR.replace("yolov4", "yolov8").replace("[detection]\nanchors = [[[16, 16]]]\n", "")
YOLOV5 = YOLOV8.replace("yolov8", "yolov5")
SEGMENTER = CLASSIFIER.replace("classification", "segmentation").replace("[16, 16]", "[32, 32]")
LOGITS = SEGMENTER.replace("softmax", "logits")
ARGMAX = SEGMENTER.replace("softmax", "argmax")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("416", ((416, 416),)),
        ("640x384, 416,416x416,320", ((640, 384), (416, 416), (320, 320))),
    ],
)
def test_sizes_are_read(text: str, expected: tuple[tuple[int, int], ...]) -> None:
    assert parse_sizes(text) == expected


@pytest.mark.parametrize("text", ["", "416,", "x", "416x", "41.5", "-8", "640*384", "٤١٦", "4", "416x9000", "123456"])
def test_what_is_no_size_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--sizes"):
        parse_sizes(text)
    model = write_project(tmp_path)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), f"--sizes={text}"]
    assert run(command) == 2
    assert not (tmp_path / "a.edge").exists()
    assert "Traceback" not in capsys.readouterr().err


MODELS = {
    "softmax": (CLASSIFIER, tiny.classifier(), "a\nb\nc\n", (20, 28)),
    "free sides": (CLASSIFIER, None, "a\nb\nc\n", (20, 28)),
    "yolov4": (DETECTOR, tiny.head_detector(), "red\nblue\n", (96, 48)),
    "yolov5": (YOLOV5, flat_detector(yolov5=True), "red\nblue\n", (96, 32)),
    "yolov8": (YOLOV8, flat_detector(), "red\nblue\n", (32, 96)),
    "logits": (LOGITS, tiny.segmenter(), "none\nred\nblue\n", (48, 24)),
    "argmax": (ARGMAX, tiny.segmenter(argmax=True), "none\nred\nblue\n", (24, 48)),
}


def _free_sides() -> onnx.ModelProto:
    proto = tiny.classifier()
    for axis, name in ((2, "height"), (3, "width")):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return proto


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_bundle_runs_at_the_other_size(tmp_path: Path, kind: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text, proto, labels, size_wh = MODELS[kind]
    model = write_project(tmp_path, text, proto or _free_sides(), labels=labels)
    build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=(size_wh,)))
    red = np.full((60, 90, 3), 110, np.uint8)
    red[..., 2] = 255
    cv2.imwrite(str(tmp_path / "red.png"), red)
    answers = []
    for variant in ("int8", f"int8.{size_wh[0]}x{size_wh[1]}"):
        flags = ["--source", str(tmp_path / "red.png"), "--variant", variant, "-q"]
        assert run(["run", str(tmp_path / "a.edge"), *flags]) == 0
        [line] = capsysbinary.readouterr().out.splitlines()
        answers.append(msgspec.json.decode(line))
    first, other = answers
    for key in ("classes", "detections", "segments"):
        assert (key in first) == (key in other)
        if key in first:
            assert first[key]
            assert [x["label"] for x in first[key]][:1] == [x["label"] for x in other[key]][:1]


def _pooled_flat(size: int = 16) -> onnx.ModelProto:
    """Flattens a map, so that its last layer has weights for one size only."""
    random = np.random.default_rng(7)
    weights = {
        "w1": random.normal(0, 0.4, (4, 3, 3, 3)).astype(np.float32),
        "w2": random.normal(0, 0.4, (size * size, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["c1"], name="first", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Flatten", ["c1"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w2"], ["logits"], name="last"),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    return tiny.model(nodes, [1, 3, size, size], {"probabilities": [1, 3]}, weights)


@pytest.mark.parametrize(
    ("text", "proto", "labels", "size_wh", "expected"),
    [
        (CLASSIFIER, _pooled_flat(), "a\nb\nc\n", (24, 24), "last"),
        (YOLOV8, flat_detector(fixed_rows=True), "red\nblue\n", (96, 96), ""),
        (YOLOV8, flat_detector(offsets=True), "red\nblue\n", (96, 96), "place"),
    ],
)
def test_a_model_for_one_size_is_refused_before_anything_slow(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    proto: onnx.ModelProto,
    labels: str,
    size_wh: tuple[int, int],
    expected: str,
) -> None:
    model = write_project(tmp_path, text, proto, labels=labels, pictures=0)  # nothing there to calibrate with
    size = f"{size_wh[0]}x{size_wh[1]}"
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes", size]
    assert run(command) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "cannot" in line]
    assert f"model.onnx: --sizes {size}: the model cannot have this input size: " in line
    assert "export it with dynamic height and width" in line
    assert expected in line
    assert ".building-" not in line
    assert not (tmp_path / "a.edge").exists()


@pytest.mark.parametrize(("text", "kind"), [(DETECTOR, "yolov4"), (LOGITS, "logits")])
def test_a_size_between_cells_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    _, proto, labels, _ = MODELS[kind]
    assert proto is not None
    model = write_project(tmp_path, text, proto, labels=labels, pictures=0)
    with pytest.raises(
        UsageError, match=r"layers divide its input by (16|4), expected a multiple of that: try (48x48|44x44|40x40)"
    ):
        build(model, "x86_64", tmp_path / "a.edge", variants=Request(sizes=((42, 42),)))


def test_a_size_at_which_nothing_is_found_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = (
        write_project(tmp_path, DETECTOR, tiny.head_detector(), labels="red\nblue\n", pictures=0),
        "pictures",
    )
    (tmp_path / folder).mkdir()
    for index in range(12):  # a bright cell of 64 pixels; of 16 pixels the only cell is dark
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[:16, :16] = (240 - index, 240, 250)
        cv2.imwrite(str(tmp_path / folder / f"{index}.png"), picture)
    command = ["build", str(model), "--target", "x86_64", "-o", str(tmp_path / "a.edge"), "--sizes"]
    assert run([*command, "16"]) == 3
    error = capsys.readouterr().err.splitlines()[-1]
    assert "at 16x16: " in error
    assert "finds nothing" in error
    assert error.endswith("leave that size out")
    assert not (tmp_path / "a.edge").exists()


def test_the_weights_stay_what_they_were(tmp_path: Path) -> None:
    spec, target = load_model_spec(write_project(tmp_path, pictures=0)), load_target("x86_64")
    checked = check_model(spec, target)
    before = checked.proto.SerializeToString()
    resized = resize(spec, checked, target, (40, 24), tmp_path / "resized.onnx")
    assert checked.proto.SerializeToString() == before
    assert [w.raw_data for w in resized.checked.proto.graph.initializer] == [
        w.raw_data for w in checked.proto.graph.initializer
    ]
    assert resized.spec.input.size_wh == (40, 24)
    assert resized.checked.labels == checked.labels
