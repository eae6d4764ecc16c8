"""TensorFlow -> ONNX through tf2onnx, with TensorFlow itself as the judge."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edge_sdk.core.errors import EdgeError, ModelError
from edge_sdk_tools.importers.plan import silenced
from edge_sdk_tools.importers.tensorflow import import_tensorflow
from tests.support.logs import refusal
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
    turned = ("Transpose" in operators, "its NHWC input turned to NCHW" in report.exporter)
    assert turned == ((True, False) if layout == "NHWC" else (False, True))
    assert (report.opset, report.layout, report.input_shape[1:]) == (17, layout, fed.shape[1:])
    assert report.outputs[0].absolute <= 1e-6


def test_a_model_of_nchw(tmp_path: Path, saved: Path) -> None:
    report = import_tensorflow(saved / "channels", write_toml(tmp_path, "NCHW"))
    assert (report.input_shape, "turned" in report.exporter) == ((1, 3, 16, 16), False)
    assert "Transpose" not in {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}


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
    assert expected in refusal(ModelError, import_tensorflow, saved / source, write_toml(tmp_path, layout))
    assert not list(tmp_path.glob("*.onnx"))


@pytest.mark.parametrize("form", FORMS)
def test_a_size_that_the_model_does_not_have(tmp_path: Path, saved: Path, form: str) -> None:
    toml = write_toml(tmp_path, "NCHW")
    toml.write_text(toml.read_text().replace("[16, 16]", "[24, 16]"))
    said = refusal(EdgeError, import_tensorflow, saved / form, toml)
    assert "its input has shape ?x16x16x3 (NHWC), model.toml says 1x16x24x3" in said
