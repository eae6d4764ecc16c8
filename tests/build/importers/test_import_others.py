"""TensorFlow models that become ONNX, and ONNX files that `edge-sdk init` describes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.cli.root import run
from edge_sdk.core.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.check.gate import examine
from edge_sdk_tools.importers.describe import COCO80, describe, write_description
from edge_sdk_tools.importers.plan import silenced
from edge_sdk_tools.importers.tensorflow import import_tensorflow
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_project

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own modules use what they deprecate
    tf: Any = pytest.importorskip("tensorflow", reason="TensorFlow is not a part of any extra: pip install tensorflow")
    pytest.importorskip("tf2onnx", reason="tf2onnx is not a part of any extra: pip install tf2onnx")

FORMS = ["net.tflite", "net.keras", "net.h5", "net"]


class Channels(tf.Module):
    """Reads NCHW, as few TensorFlow models do."""

    @tf.function(input_signature=[tf.TensorSpec((1, 3, 16, 16), tf.float32)])
    def __call__(self, x: Any) -> Any:
        return tf.nn.softmax(tf.reduce_mean(x, (2, 3)))


@pytest.fixture(scope="module")
def net() -> Any:
    """Fixed normalisation, convolution, batch normalisation, ReLU6, mean, linear, softmax: 1x16x16x3 -> 1x3."""
    tf.keras.utils.set_random_seed(7)
    layers = tf.keras.layers
    with silenced():
        image = tf.keras.Input((16, 16, 3))
        x = layers.Normalization(mean=[0.4, 0.5, 0.6], variance=[0.1, 0.2, 0.3])(image)
        x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        x = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(x))
        return tf.keras.Model(image, layers.Dense(3, activation="softmax")(x))


@pytest.fixture(scope="module")
def saved(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the network in every form, and what cannot be imported."""
    folder = tmp_path_factory.mktemp("tensorflow")
    with silenced():
        net.save(folder / "net.keras")
        net.save(folder / "net.h5")
        net.export(folder / "net")
        converter = tf.lite.TFLiteConverter.from_keras_model(net)
        (folder / "net.tflite").write_bytes(converter.convert())
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([np.zeros((1, 16, 16, 3), np.float32)] for _ in range(2))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.uint8
        (folder / "bytes.tflite").write_bytes(converter.convert())
        tf.saved_model.save(Channels(), folder / "channels")
        tf.saved_model.save(tf.Module(), folder / "unsigned")
        a, b = tf.keras.Input((16, 16, 3)), tf.keras.Input((16, 16, 3))
        tf.keras.Model([a, b], a + b).save(folder / "two.keras")
    (folder / "damaged.keras").write_bytes((folder / "net.keras").read_bytes()[:500])
    (folder / "damaged.tflite").write_bytes(b"no flatbuffer")
    return folder


def write_toml(folder: Path, layout: str) -> Path:
    toml = write_project(folder, CLASSIFIER.replace("[16, 16]", f'[16, 16]\nlayout = "{layout}"'), pictures=0)
    (folder / "model.onnx").unlink()
    return toml


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_the_same(tmp_path: Path, net: Any, saved: Path, form: str, layout: str) -> None:
    report = import_tensorflow(saved / form, write_toml(tmp_path, layout))
    picture = np.random.default_rng(3).random((1, 16, 16, 3), np.float32)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    fed = picture if layout == "NHWC" else picture.transpose(0, 3, 1, 2)
    [found] = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(fed)})
    np.testing.assert_allclose(found, net(picture, training=False).numpy(), rtol=1e-5, atol=1e-6)
    operators = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert ("Transpose" in operators) is (layout == "NHWC")
    assert ("its NHWC input turned to NCHW" in report.exporter) is (layout == "NCHW")
    assert (report.opset, report.layout, report.input_shape[1:]) == (17, layout, fed.shape[1:])
    assert report.outputs[0].absolute <= 1e-6


def test_a_model_of_nchw(tmp_path: Path, saved: Path) -> None:
    report = import_tensorflow(saved / "channels", write_toml(tmp_path, "NCHW"))
    assert report.input_shape == (1, 3, 16, 16)
    assert "Transpose" not in {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert "turned" not in report.exporter


@pytest.mark.parametrize(
    ("source", "layout", "expected"),
    [
        ("bytes.tflite", "NHWC", "is uint8, expected float32; it was quantized already, import the model from before"),
        ("two.keras", "NHWC", "two.keras: takes 2 inputs, expected one image"),
        ("unsigned", "NHWC", "unsigned: has no signature serving_default (signatures: none)"),
        ("channels", "NHWC", 'channels: its input is NCHW; set input.layout = "NCHW" in model.toml'),
        ("damaged.keras", "NHWC", "damaged.keras: TensorFlow "),
        ("damaged.tflite", "NHWC", "damaged.tflite: TensorFlow "),
    ],
)
def test_what_cannot_be_imported(tmp_path: Path, saved: Path, source: str, layout: str, expected: str) -> None:
    toml = write_toml(tmp_path, layout)
    with pytest.raises(ModelError) as caught:
        import_tensorflow(saved / source, toml)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize("form", FORMS)
def test_a_size_that_the_model_does_not_have(tmp_path: Path, saved: Path, form: str) -> None:
    toml = write_toml(tmp_path, "NCHW")
    toml.write_text(toml.read_text().replace("[16, 16]", "[24, 16]"))
    with pytest.raises(EdgeError) as caught:
        import_tensorflow(saved / form, toml)
    assert "its input has shape ?x16x16x3 (NHWC), model.toml says 1x16x24x3" in str(caught.value)


ULTRALYTICS = {"description": "Ultralytics YOLO", "task": "detect", "imgsz": "[64, 64]", "names": "{0: 'a', 1: 'b'}"}


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


def _described(path: Path, **options: object) -> tuple[ModelSpec, list[str]]:
    """The model.toml as it is read again; it passes the export gate."""
    toml, labels = write_description(describe(path, **options), path.parent)  # type: ignore[arg-type]
    spec = load_model_spec(toml)
    assert not examine(spec).of("error")
    return spec, labels.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("shapes", "metadata", "decoder", "color", "labels"),
    [
        ({"y": [1, 6, 84]}, ULTRALYTICS, "yolov8", "RGB", ["a", "b"]),
        ({"y": [1, 300, 6]}, ULTRALYTICS, "end_to_end", "RGB", ["a", "b"]),
        ({"y": [1, 252, 7]}, {}, "yolov5", "RGB", ["class_0", "class_1"]),
        ({"y": [1, 84, 85]}, {}, "yolox", "BGR", list(COCO80)),
        ({"y": [1, 5]}, {"task": "classify"}, "logits", "RGB", [f"class_{number}" for number in range(5)]),
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


def test_two_thousand_odd_names(tmp_path: Path) -> None:
    names = {number: f"名 {number}\n\u202e'" for number in range(2000)}
    _, lines = _described(_file(tmp_path, {"y": [1, 2004, 84]}, {**ULTRALYTICS, "names": repr(names)}))
    assert len(lines) == 2000
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("shapes", "metadata", "options", "error", "expected"),
    [
        ({"y": [1, 56, 84]}, {"task": "pose"}, {}, ModelError, r"a pose model \(task pose\), which no decoder reads"),
        ({"y": [1, 34, 84]}, ULTRALYTICS, {}, ModelError, "name 2 classes, and its outputs 1x34x84 have 30 for yolov8"),
        ({"y": [1, 84, 84], "z": [1, 32, 16, 16]}, {}, {}, ModelError, "are those of no decoder at 64x64"),
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
    assert "detection with decoder yolov8, 2 classes, input 64x64" in said
    assert f"next: edge-sdk check {tmp_path / 'model.toml'}" in said
    assert run(["init", str(model)]) == 2
    assert "model.toml: exists and is kept" in capsys.readouterr().err
    (tmp_path / "yolo.pt").touch()
    assert run(["init", str(tmp_path / "yolo.pt")]) == 2
    assert f"yolo export model={tmp_path / 'yolo.pt'} format=onnx" in capsys.readouterr().err
