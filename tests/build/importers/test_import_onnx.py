"""ONNX -> ONNX: what is written is ready for quantization and computes what the source computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper

from edge_sdk.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.importing.onnx_model import import_onnx
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_pictures, write_project


def write_source(folder: Path, source: onnx.ModelProto, text: str = CLASSIFIER) -> tuple[Path, Path]:
    """The source and the model.toml, which names another file; nothing is there yet."""
    toml = write_project(folder, text, pictures=0)
    (folder / "model.onnx").unlink()
    onnx.save(source, folder / "source.onnx")
    return folder / "source.onnx", toml


def run(path: Path, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


@pytest.mark.parametrize("opset", [11, 17])
def test_opset_and_shapes_are_settled(tmp_path: Path, opset: int) -> None:
    source, toml = write_source(tmp_path, tiny.classifier(opset=opset, batch="N"))
    report = import_onnx(source, toml, images=[write_pictures(tmp_path / "pictures", 3)])
    proto = onnx.load(tmp_path / "model.onnx")
    assert [o.version for o in proto.opset_import] == [max(opset, 13)] == [report.opset]
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 16]
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", picture), run(source, picture), rtol=1e-5, atol=1e-6)
    assert (report.images, report.replaced, report.input_shape) == (3, False, (1, 3, 16, 16))
    assert report.outputs[0].absolute <= 1e-6


def test_weights_beside_the_model_come_inside(tmp_path: Path) -> None:
    source, toml = write_source(tmp_path, tiny.classifier())
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    expected = run(source, picture)
    proto = onnx.load(source)
    external_data_helper.convert_model_to_external_data(proto, location="weights.bin", size_threshold=0)
    onnx.save(proto, source)
    import_onnx(source, toml)
    (tmp_path / "weights.bin").unlink()
    np.testing.assert_allclose(run(tmp_path / "model.onnx", picture), expected, rtol=1e-6)


def _softmax_of_old() -> onnx.ModelProto:
    """Softmax over all axes from the first on, which is what it meant before opset 13."""
    proto = tiny.classifier(opset=11)
    pool = next(i for i, node in enumerate(proto.graph.node) if node.op_type == "GlobalAveragePool")
    softmax = onnx.helper.make_node("Softmax", ["c2"], ["p"], axis=1)
    proto.graph.node[pool].input[0] = "p"
    proto.graph.node.insert(pool, softmax)
    return proto


def test_what_changed_its_meaning_with_the_opset_computes_the_same(tmp_path: Path) -> None:
    source, toml = write_source(tmp_path, _softmax_of_old())
    import_onnx(source, toml)
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", picture), run(source, picture), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "kind", "expected"),
    [
        ('"model.onnx"', '"source.onnx"', UsageError, "source.onnx: is the file that "),
        ('"model.onnx"', '"model.ort"', UsageError, "model is 'model.ort', expected the name of the .onnx file"),
        ("[16, 16]", "[24, 24]", ModelError, "has shape 1x3x16x16, model.toml says 1x3x24x24"),
        ('"softmax"', '"logits"\n[classification]\nbackground_class = 3', ModelError, "background_class"),
        ("labels.txt", "none.txt", ModelError, "none.txt: no such labels file"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, old: str, new: str, kind: type[EdgeError], expected: str) -> None:
    source, toml = write_source(tmp_path, tiny.classifier(), CLASSIFIER.replace(old, new))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(kind) as caught:
        import_onnx(source, toml)
    assert expected in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    source, toml = write_source(tmp_path, tiny.classifier())
    with pytest.raises(ModelError, match=r"none\.onnx: no such file; SOURCE is the ONNX file to import"):
        import_onnx(source.with_name("none.onnx"), toml, on_progress=lambda *_: pytest.fail("a bar was shown"))
