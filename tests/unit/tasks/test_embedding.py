"""Embeddings: the nearest name of a gallery, published with or without its vector."""

import io

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Geometry, Inferred, Prepared
from edge_sdk.messages.encoder import ResultEncoder
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.detection import draw
from edge_sdk.tasks.entry import Labels
from edge_sdk.tasks.spec import EmbeddingSpec, labels_by_id
from tests.support.results import IDENTITY, MODEL, make_frame

SPEC = ModelSpec(
    model="m.onnx", name="m", task="embedding", decoder="vector", labels="g.npz", input=InputSpec(size_wh=(64, 64))
)
NAN = float("nan")


def _gallery(*rows: tuple[str, list[float]]) -> Labels:
    data = io.BytesIO()
    np.savez(data, names=np.array([name for name, _ in rows]), vectors=np.array([vector for _, vector in rows]))
    return Labels.of(data.getvalue())


GALLERY = _gallery(("anna", [2, 0]), ("bert", [0, 1]), ("anna", [-1, 0]))


@pytest.mark.parametrize(
    ("vector", "label", "class_id", "confidence"),
    [
        ([3, 0], "anna", 0, 1),
        ([-5, 0], "anna", 0, 1),
        ([3, 4], "bert", 1, 0.8),
        ([4, -3], "anna", 0, 0.8),
        ([0.1, -1], "unknown", -1, 0.0995),
        ([0, 0], "unknown", -1, 0),
    ],
)
def test_the_name_is_that_of_the_nearest_vector(
    vector: list[float], label: str, class_id: int, confidence: float
) -> None:
    output = np.array([vector], np.float32)
    inferred = Inferred((output,), 5, Prepared(output, Geometry(1, 1, 0, 0), make_frame()))
    result = make_stage(SPEC, GALLERY, [output.shape])(inferred)
    assert result.labels == [label]
    encoder = ResultEncoder(IDENTITY, labels_by_id(SPEC, GALLERY), MODEL)
    message = msgspec.json.decode(encoder.encode(result))
    assert message["task"] == "embedding"
    assert message["matches"] == [{"label": label, "class_id": class_id, "confidence": confidence}]
    picture = np.zeros((480, 640, 3), np.uint8)
    draw(picture, result)
    assert picture[:240, :320].any()
    telling = msgspec.structs.replace(SPEC, embedding=EmbeddingSpec(vector=True))
    told = msgspec.json.decode(encoder.encode(make_stage(telling, 1, [output.shape])(inferred)))["matches"][0]
    assert told["label"] == "unknown"
    assert told["vector"] == pytest.approx(np.divide(vector, np.linalg.norm(vector) or 1), abs=1e-5)


def test_a_gallery_that_does_not_fit_is_refused() -> None:
    output = np.ones((1, 3), np.float32)
    stage = make_stage(SPEC, GALLERY, [output.shape])
    with pytest.raises(ModelError, match="have 2 numbers, the model's 3; make the gallery with this model"):
        stage(Inferred((output,), 5, Prepared(output, Geometry(1, 1, 0, 0), make_frame())))
    for gallery in (_gallery(("anna", [NAN, 1])), _gallery()):
        with pytest.raises(ModelError, match="expected one of finite numbers a name"):
            make_stage(SPEC, gallery, [(1, 2)])
    data = io.BytesIO()
    np.savez(data, names=np.array(["anna"]))
    with pytest.raises(ModelError, match="the gallery holds no vectors"):
        make_stage(SPEC, Labels.of(data.getvalue()), [(1, 2)])
    with pytest.raises(ValueError, match=r"not an \.npz with names"):
        Labels.of(data.getvalue()[:40])
    data = io.BytesIO()
    np.savez_compressed(data, names=np.array(["anna"]), vectors=np.zeros((1, 1 << 25)))
    with pytest.raises(ValueError, match="unpacks to more than 64 MiB"):
        Labels.of(data.getvalue())
    data = io.BytesIO()
    np.savez(data, names=np.array([{}]))
    with pytest.raises(ValueError, match="allow_pickle"):
        Labels.of(data.getvalue())
