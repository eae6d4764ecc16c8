"""`edge-sdk init`: what a file says about itself becomes a model.toml; what no decoder reads is never described."""

import json
import re
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from edge_sdk import Model
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.core.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.build.unproved import UNPROVED, unproved_bundle
from edge_sdk_tools.check.gate import examine
from edge_sdk_tools.datasets.class_names import LISTS, read_labels
from edge_sdk_tools.importers.describe import describe, write_description
from tests.support import models as tiny
from tests.support.logs import SAID, refusal
from tests.support.pictures import numbered_image
from tests.support.program import Cli, edge_sdk

ULTRALYTICS = {"description": "Ultralytics YOLO", "task": "detect", "imgsz": "[64, 64]", "names": "{0: 'a', 1: 'b'}"}

IMPORTED = '{"task":"detection","decoder":"yolov8","input":{"size_wh":[64,64]},"labels":["a","b"]}'

COCO80, COCO91, IMAGENET = ([*read_labels(LISTS[name])] for name in ("coco80", "coco91", "imagenet1k"))


def _file(
    folder: Path, shapes: dict[str, list[int]], metadata: dict[str, str] | None = None, *, last: str = "Identity",
    image: list[int | str] | None = None,
) -> Path:  # fmt: skip
    """A model whose outputs have these shapes, whatever it sees."""
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "no"], ["nothing"]),
    ]
    weights = {"no": np.zeros((), np.float32)}
    for name, shape in shapes.items():
        weights[f"{name}_rows"] = np.zeros(shape, np.float32)
        nodes.append(helper.make_node("Add", [f"{name}_rows", "nothing"], [f"{name}_added"]))
        nodes.append(helper.make_node(last, [f"{name}_added"], [name]))
    proto = tiny.model(nodes, image or [1, 3, 64, 64], shapes, weights)
    helper.set_model_props(proto, metadata or {})
    path = folder / "my net.onnx"
    onnx.save(proto, path)
    return path


def _levels(anchors: int, **kinds: int) -> dict[str, list[int]]:
    return {f"{name}_{n}": [1, n * anchors, values] for name, values in kinds.items() for n in (64, 16, 4)}


def _described(path: Path, **options: object) -> tuple[ModelSpec, list[str]]:
    """The model.toml as it is read again; it passes the check."""
    toml, *labels = write_description(describe(path, **options), path.parent)  # type: ignore[arg-type]
    spec = load_model_spec(toml)
    assert not examine(spec).of("error")
    return spec, read_labels(labels[0] if labels else Path(spec.labels)).file.decode().splitlines()


@pytest.mark.parametrize(
    ("shapes", "metadata", "decoder", "color", "labels"),
    [
        ({"y": [1, 6, 84]}, ULTRALYTICS, "yolov8", "RGB", ["a", "b"]),
        ({"y": [1, 300, 6]}, ULTRALYTICS, "end_to_end", "RGB", ["a", "b"]),
        ({"y": [1, 12, 84]}, {**ULTRALYTICS, "task": "pose", "kpt_shape": "[2, 3]"}, "yolov8_pose", "RGB", ["a", "b"]),
        ({"y": [1, 300, 38], "p": [1, 32, 16, 16]}, {**ULTRALYTICS, "task": "segment"}, "end_to_end_seg", "RGB",
         ["a", "b"]),
        ({"y": [1, 252, 7]}, {}, "yolov5", "RGB", ["class_0", "class_1"]),
        ({"y": [1, 84, 85]}, {}, "yolox", "BGR", COCO80),
        ({"logits": [1, 300, 4], "boxes": [1, 300, 2]}, {}, "detr", "RGB", ["class_0", "class_1"]),
        ({"y": [1, 300, 6]}, {**ULTRALYTICS, "description": "Ultralytics rtdetr-l"}, "detr_end_to_end", "RGB",
         ["a", "b"]),
        ({"y": [1, 300, 83]}, {}, "detr", "RGB", [f"class_{number}" for number in range(79)]),
        ({"y": [1, 7, 84]}, {**ULTRALYTICS, "task": "obb"}, "yolov8_obb", "RGB", ["a", "b"]),
        ({"y": [1, 300, 7]}, {**ULTRALYTICS, "task": "obb"}, "end_to_end_obb", "RGB", ["a", "b"]),
        ({"pred_logits": [1, 100, 92], "pred_boxes": [1, 100, 4]}, {}, "detr_softmax", "RGB", COCO91),
        ({"logits": [1, 100, 21], "boxes": [1, 100, 4]}, {}, "detr_softmax", "RGB", [*read_labels(LISTS["voc20"])]),
        ({"dets": [1, 300, 4], "labels": [1, 300, 91]}, {}, "detr", "RGB", COCO91),
        ({"detection_boxes": [1, 9, 4], "detection_classes": [1, 9], "detection_scores": [1, 9], "count": [1]}, {},
         "tensorflow_nms", "RGB", COCO91[1:]),
        ({"boxes": [9, 4], "scores": [9], "labels": [9]}, {}, "torchvision_nms", "RGB", COCO91[1:]),
        ({"detections": [1, 100, 7]}, {}, "efficientdet", "RGB", COCO91[1:]),
        ({"scores": [1, 235, 2], "boxes": [1, 235, 4]}, {}, "ultraface", "RGB", ["face"]),
        ({"y": [1, 1, 17, 3]}, {}, "movenet", "RGB", ["person"]),
        ({"y": [1, 6, 56]}, {}, "movenet", "RGB", ["person"]),
        ({"537": [1, 1, 16, 16], "538": [1, 2, 16, 16], "539": [1, 2, 16, 16], "540": [1, 10, 16, 16]}, {},
         "centerface", "RGB", ["face"]),
        ({"hm": [1, 80, 16, 16], "wh": [1, 2, 16, 16], "reg": [1, 2, 16, 16]}, {}, "centernet", "BGR", COCO80),
        (_levels(1, cls=1, obj=1, bbox=4, kps=10), {}, "yunet", "BGR", ["face"]),
        (_levels(2, score=1, bbox=4), {}, "scrfd", "RGB", ["face"]),
        ({"y": [1, 5]}, {"task": "classify"}, "logits", "RGB", [f"class_{number}" for number in range(5)]),
        ({"y": [1, 8, 5]}, {"character": "a\n \nc\n"}, "ctc", "BGR", ["a", " ", "c"]),
        ({"y": [1, 4]}, {"character": "0\n90\n180\n270"}, "logits", "RGB", ["0", "90", "180", "270"]),
        ({"y": [1, 1000]}, {}, "logits", "RGB", IMAGENET),
        ({"y": [1, 1001]}, {}, "logits", "RGB", ["background", *IMAGENET]),
        ({"y": [1, 24, 84]}, {}, "yolov8", "RGB", [*read_labels(LISTS["voc20"])]),
        ({"y": [1, 3, 16, 16]}, {}, "logits", "RGB", ["class_0", "class_1", "class_2"]),
    ],
)  # fmt: skip
def test_what_the_file_says_becomes_a_model_toml(
    tmp_path: Path, shapes: dict[str, list[int]], metadata: dict[str, str], decoder: str, color: str, labels: list[str]
) -> None:
    spec, lines = _described(_file(tmp_path, shapes, metadata))
    assert (spec.name, spec.decoder, spec.input.color, spec.input.size_wh) == ("my-net", decoder, color, (64, 64))
    assert lines == labels


@pytest.mark.parametrize("operator", ["Softmax", "Sigmoid"])
def test_an_activation_in_the_graph_is_known_by_its_operator(tmp_path: Path, operator: str) -> None:
    spec, _ = _described(_file(tmp_path, {"y": [1, 4]}, last=operator))
    assert (spec.task, spec.decoder, spec.input.resize) == ("classification", operator.lower(), "center_crop")
    wrong = msgspec.structs.replace(spec, decoder="logits")
    [found] = examine(wrong).of("error")
    assert found.next_step.startswith(f'set decoder = "{operator.lower()}"')


@pytest.mark.parametrize(
    ("shapes", "last", "metadata", "options", "expected"),
    [
        ({"y": [1, 8, 6]}, "Softmax", {"character": "a\nb\nc\n "}, {}, ("text", "ctc", 0.5, ["a", "b", "c", " "])),
        ({"y": [1, 1, 16, 16]}, "Sigmoid", {}, {}, ("detection", "db", 0.6, ["text"])),
        ({"y": [1, 64]}, "LpNormalization", {}, {}, ("embedding", "vector", 0.4, ["unknown"])),
        ({"y": [1, 64]}, "Identity", {}, {"task": "embedding"}, ("embedding", "vector", 0.4, ["unknown"])),
        ({"y": [1], "m": [1, 1, 8, 8]}, "Identity", {}, {"task": "anomaly"},
         ("anomaly", "score", 0.5, ["normal", "anomaly"])),
    ],
)  # fmt: skip
def test_what_shapes_alone_do_not_tell_is_known_by_operator_or_task(
    tmp_path: Path, shapes: dict[str, list[int]], last: str, metadata: dict[str, str], options: dict[str, str],
    expected: tuple[str, str, float, list[str]],
) -> None:  # fmt: skip
    spec, lines = _described(_file(tmp_path, shapes, metadata, last=last), **options)
    assert (spec.task, spec.decoder, spec.thresholds.confidence, lines) == expected


def test_boxes_that_are_not_decoded_get_their_priors(tmp_path: Path) -> None:
    text = """m = GlobalAveragePool(images) s = Conv(m, w0) r = Reshape(s, s0) scores = Softmax<axis: int = 2>(r)
        c1 = Conv(m, w1) r1 = Reshape(c1, s1) c2 = Conv(m, w2) r2 = Reshape(c2, s2)
        boxes = Concat<axis: int = 1>(r1, r2)"""
    sides = [(235, 2), (192, 4), (43, 4)]
    weights = {f"w{place}": np.zeros((rows * side, 3, 1, 1), np.float32) for place, (rows, side) in enumerate(sides)}
    weights |= {f"s{place}": np.array([1, *side]) for place, side in enumerate(sides)}
    shapes = {"scores": [1, 235, 2], "boxes": [1, 235, 4]}
    onnx.save(tiny.parsed(text, shapes, weights, shape=(1, 3, 64, 64)), tmp_path / "a.onnx")
    spec, _ = _described(tmp_path / "a.onnx")
    found = (spec.decoder, spec.detection.strides, spec.detection.anchors[0][2])
    assert found == ("ultraface", (8, 16, 32, 64), (24, 24))


def test_a_class_map_is_told_from_fastestdet_by_its_operator(tmp_path: Path) -> None:
    path = _file(tmp_path, {"parts": [1, 84, 4, 4]})
    assert _described(path)[0].decoder == "logits"
    proto = onnx.load(path)
    proto.graph.node.append(helper.make_node("Concat", ["parts", "one"], ["y"], axis=1))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 1, 4, 4), np.float32), "one"))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 85, 4, 4]))
    other = tmp_path / "other"
    other.mkdir()
    onnx.save(proto, other / path.name)
    spec, labels = _described(other / path.name)
    assert (spec.decoder, spec.input.color, labels) == ("fastestdet", "BGR", COCO80)
    (other / "85.txt").write_text("\n".join(map(str, range(85))))
    wrong = {"task": "segmentation", "decoder": "logits", "labels": str(other / "85.txt")}
    [found] = examine(msgspec.structs.replace(spec, **wrong)).of("warning")
    assert "look like those that fastestdet reads (detection), and not logits" in found.what


_AS_TORCHVISION = "b = Gather(corners, rows) s = Gather(sure, rows) l = Identity(rows)"
_AS_TENSORFLOW = """parts = Div(corners, side) turned = Gather<axis = 1>(parts, yxyx)
    b0 = Gather(turned, rows) b = Unsqueeze(b0, zero)
    s0 = Gather(sure, rows) s = Unsqueeze(s0, zero) l0 = Cast<to = 1>(rows) l = Unsqueeze(l0, zero)
    many = Shape(rows) n = Cast<to = 1>(many)"""


@pytest.mark.parametrize(
    ("decoder", "text", "shapes", "fixed", "found"),
    [
        # Class 0 is the background.
        ("torchvision_nms", _AS_TORCHVISION, {"b": ["n", 4], "s": ["n"], "l": ["n"]}, [(300, 4), (300,), (300,)],
         [0.8, 0.7]),
        # Class 0 is the first label's, as the names of the outputs are not those of a SavedModel.
        ("tensorflow_nms", _AS_TENSORFLOW, {"b": [1, "n", 4], "s": [1, "n"], "l": [1, "n"], "n": [1]},
         [(1, 300, 4), (1, 300), (1, 300), (1,)], [0.9, 0.8, 0.7]),
    ],
)  # fmt: skip
def test_rows_of_a_suppression_in_the_graph_are_filled_up(
    tmp_path: Path, decoder: str, text: str, shapes: dict[str, list[int | str]], fixed: list[tuple[int, ...]],
    found: list[float],
) -> None:  # fmt: skip
    """A detector as exporters write it takes an image of whole numbers, and gives boxes, scores and labels."""
    boxes = np.float32([[8, 8 + 8 * row, 24, 40 + 8 * row] for row in range(5)])
    weights = {
        "boxes": boxes[None], "corners": boxes, "side": np.float32(64), "yxyx": np.array([1, 0, 3, 2]),
        "scores": np.float32([[[0.9, 0.1, 0.8, 0.2, 0.7]]]), "sure": np.float32([0.9, 0.1, 0.8, 0.2, 0.7]),
        "most": np.array([5]), "iou": np.float32([1.0]), "least": np.float32([0.5]), "last": np.array([2]),
        "flat": np.array([-1]), "zero": np.array([0]),
    }  # fmt: skip
    text = f"""pixels = Cast<to = 1>(images) dark = ReduceMin<keepdims = 0>(pixels) nothing = Mul(dark, dark)
        all = Add(scores, nothing) found = NonMaxSuppression(boxes, all, most, iou, least)
        places = Gather<axis = 1>(found, last) rows = Reshape(places, flat) {text}"""
    proto = tiny.parsed(text, shapes, weights, shape=[1, 3, 64, 64])
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    if decoder == "torchvision_nms":
        proto.graph.output[2].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(proto, tmp_path / "net.onnx")
    description = describe(tmp_path / "net.onnx")
    assert (description.spec.decoder, description.spec.input.std) == (decoder, (1.0,) * 3)
    assert [output.shape for output in description.examined.report.outputs] == fixed
    toml = write_description(description, tmp_path)[0]
    (tmp_path / "made").mkdir()
    bundle, _ = unproved_bundle(toml, tmp_path / "made")
    got = Model.open(bundle)(np.zeros((64, 64, 3), np.uint8))
    assert got.confidence.tolist() == pytest.approx(found)
    corners = [[8, 8, 24, 40], [8, 24, 24, 56], [8, 40, 24, 64]]
    assert got.xyxy == pytest.approx(np.array(corners[-len(found) :]), abs=1e-4)


def test_guesses_stand_in_the_file_and_what_is_given_counts_more(tmp_path: Path) -> None:
    path = _file(tmp_path, {"y": [1, 84, 85]}, image=[1, 3, "h", "w"])
    (tmp_path / "mine.txt").write_text("\n".join(map(str, range(80))))
    spec, lines = _described(path, decoder="yolov5", labels=tmp_path / "mine.txt", size_wh=(64, 64))
    assert (spec.decoder, spec.input.std, lines[79]) == ("yolov5", (255.0,) * 3, "79")
    assert "# guessed: as yolov5 models are usually trained" in (tmp_path / "model.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.txt").write_text("a\nb\n")
    assert describe(_file(tmp_path, {"y": [1, 5, 6]}), labels=tmp_path / "mine.txt").spec.decoder == "end_to_end"


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
    metadata = {**ULTRALYTICS, "names": repr(names), "edge_sdk.model": '{"x":' + 9999 * "["}  # nobody's description
    _, lines = _described(_file(tmp_path, {"y": [1, 2004, 84]}, metadata))
    assert len(lines) == 2000
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("shapes", "metadata", "options", "error", "expected"),
    [
        ({"y": [1, 4, 84]}, {"task": "obb"}, {}, ModelError, "looks like a detector with 4 values a box, one for each"),
        (_levels(1, cls=1, obj=1, bbox=4, kps=16), {}, {}, ModelError,
         "looks like 12 outputs of 3 strides with 8 keypoints: a face detector of YuNet's kind; docs"),
        ({"a": [1, 255, 8, 8], "b": [1, 255, 4, 4], "c": [1, 255, 2, 2]}, {}, {}, ModelError,
         r"looks like raw heads of 3 strides \(8, 16, 32\): a YOLO whose boxes are not decoded"),
        ({"boxes": [1, 9, 4], **{name: [1, 9] for name in "abc"}, "n": [1]}, {}, {}, ModelError,
         "all outputs of TensorFlow's Detection API: tensorflow_nms reads detection_boxes"),
        ({"labels": [1, 300], "boxes": [1, 300, 4], "scores": [1, 300]}, {}, {}, ModelError, "are those of no decoder"),
        ({"y": [1, 84, 85]}, {"edge_sdk.model": IMPORTED}, {}, ModelError, "its metadata describe another model"),
        ({"y": [1, 6, 84]}, {"edge_sdk.model": IMPORTED.replace("64", "96")}, {}, ModelError, "input.size_wh is "),
        ({"y": [1, 6, 84]}, {"edge_sdk.model": IMPORTED.replace('"size_wh', '"color":"GRAY","size_wh')}, {}, ModelError,
         "describe another model: input 'images' has shape 1x3x64x64"),
        ({"y": [1, 17, 16, 12]}, {}, {}, ModelError, "looks like 17 heatmaps of a person's keypoints"),
        ({"y": [1, 1, 16, 16]}, {}, {}, ModelError, "if it is one for detection or anomaly, say so with --task"),
        ({"y": [1, 56, 84]}, {"task": "pose", "kpt_shape": "[9]"}, {}, ModelError,
         r"say task pose and kpt_shape '\[9\]', expected \[points, 2 or 3\]; export it again"),
        ({"y": [1, 34, 84]}, ULTRALYTICS, {}, ModelError, "name 2 classes, and its outputs 1x34x84 have 30 for yolov8"),
        ({"y": [1, 6, 84]}, ULTRALYTICS, {"task": "classification"}, ModelError, "say detection .* and --task says"),
        ({"y": [1, 6, 84]}, {"task": "depth"}, {}, ModelError, "its metadata say task depth, expected one of detect"),
        ({"y": [1, 9, 84]}, {"task": "pose", "kpt_shape": "[1, 3]"}, {"decoder": "yolov8"}, ModelError,
         "say task pose, which --decoder yolov8 does not read"),
        ({"y": [1, 6, 84]}, {}, {"size_wh": (32, 32)}, ModelError, "its input is 64x64, expected 32x32"),
        ({"y": [1, 6, 84]}, {}, {"decoder": "yolo99"}, UsageError, "--decoder yolo99: expected one of logits"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(
    tmp_path: Path, shapes: dict[str, list[int]], metadata: dict[str, str], options: dict[str, object],
    error: type[EdgeError], expected: str,
) -> None:  # fmt: skip
    with pytest.raises(error, match=expected):
        describe(_file(tmp_path, shapes, metadata), **options)  # type: ignore[arg-type]


def test_the_command_says_what_it_read_and_overwrites_nothing(tmp_path: Path, cli: Cli) -> None:
    model = _file(tmp_path, {"y": [1, 6, 84]}, ULTRALYTICS)
    said = cli(0, "init", model).out
    assert "detection with decoder yolov8, 2 labels, input 64x64" in said
    assert f"next: edge-sdk check {tmp_path / 'model.toml'}" in said
    assert "model.toml: exists and is kept" in cli(2, "init", model).err
    assert "yolo export model=" in cli(2, "run", tmp_path / "yolo11n.pt", "--source", "0").err
    for name, line in (("yolo.pt", "yolo export model={} format=onnx"), ("m.tflite", "tf2onnx.convert --tflite {}")):
        (tmp_path / name).touch()
        assert line.format(tmp_path / name) in cli(2, "init", tmp_path / name).err


def test_a_checkpoint_is_exported_by_the_program_of_ultralytics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    made = _file(tmp_path, {"y": [1, 6, 84]}, ULTRALYTICS).rename(tmp_path / "made")
    (tmp_path / "net.pt").touch()
    program = tmp_path / "yolo"
    exported = f'[ "$*" = "export model={tmp_path}/net.pt format=onnx" ] && cp {made} {tmp_path}/net.onnx'
    program.write_text(f"#!/bin/sh\n{exported}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    cli(0, "init", tmp_path / "net.pt")
    assert load_model_spec(tmp_path / "model.toml").decoder == "yolov8"
    assert "net.onnx: exists and is kept" in cli(2, "init", tmp_path / "net.pt").err
    (tmp_path / "net.onnx").unlink()
    program.write_text("#!/bin/sh\necho it broke >&2; exit 1")
    assert "format=onnx` failed: it broke" in cli(2, "init", tmp_path / "net.pt").err


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


def test_a_program_opens_a_bare_model(tmp_path: Path) -> None:
    onnx.save(tiny.classifier(), tmp_path / "net.onnx")
    model = Model.open(tmp_path / "net.onnx")
    assert len(model.classify(numbered_image(5)).labels) > 0
    assert model.clone().labels == model.labels
    assert SAID[-1].endswith(UNPROVED)
    assert "only a bundle is signed" in refusal(UsageError, Model.open, tmp_path / "net.onnx", ["fleet.key.pub"])


def test_a_free_size_is_the_one_that_the_file_names_or_a_guess(tmp_path: Path) -> None:
    named = {**ULTRALYTICS, "imgsz": "[64, 160]"}
    for shape, metadata, image, size_wh in (
        ([1, 6, 210], named, [1, 3, "h", "w"], (160, 64)),
        ([1, 6, 84], {}, ["n", 3, 48, "w"], (640, 48)),
        ([1, 5], {}, ["n", 3, "h", "w"], (224, 224)),
    ):
        found = describe(_file(tmp_path, {"y": shape}, metadata, image=image))
        assert (found.spec.input.size_wh, "size_wh" in found.guessed) == (size_wh, metadata is not named)


def test_an_answer_that_no_decoder_gives_is_refused(tmp_path: Path, cli: Cli) -> None:
    path = _file(tmp_path, {"y": [1, 300, 7]})
    proto, values = onnx.load(path), np.full((1, 300, 7), 0.5, np.float32)
    for value, expected in ((9, "decoder detr reads confidences of up to 9, expected 0-1"), (np.inf, "are not finite")):
        values[..., 4:] = value
        proto.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(values, "y_rows"))
        onnx.save(proto, path)
        assert expected in cli(2, "run", path, "--source", "pattern", "--frames", "1").err
