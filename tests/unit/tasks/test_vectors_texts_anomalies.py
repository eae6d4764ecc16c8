"""Embeddings and the names of a gallery, recognised texts, and anomalies with their regions."""

import io
from typing import Any

import cv2
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
from edge_sdk.tasks.spec import AnomalySpec, EmbeddingSpec, Thresholds, labels_by_id
from tests.support.results import IDENTITY, MODEL, make_encoder, make_frame

SPEC = ModelSpec(
    model="m.onnx", name="m", task="embedding", decoder="vector", labels="g.npz", input=InputSpec(size_wh=(64, 64))
)
NAN = float("nan")


def _saved(save: Any = np.savez, **arrays: np.ndarray) -> bytes:
    data = io.BytesIO()
    save(data, **arrays)
    return data.getvalue()


def _gallery(*rows: tuple[str, list[float]]) -> Labels:
    names, vectors = np.array([name for name, _ in rows]), np.array([vector for _, vector in rows])
    return Labels.of(_saved(names=names, vectors=vectors))


GALLERY = _gallery(("anna", [2, 0]), ("bert", [0, 1]), ("anna", [-1, 0]))


def _read(spec: ModelSpec, labels: Any, *outputs: np.ndarray, scale: float = 1) -> Any:
    inferred = Inferred(outputs, 5, Prepared(outputs[0], Geometry(scale, scale, 0, 0), make_frame()))
    return make_stage(spec, labels, [output.shape for output in outputs])(inferred)


def _drawn(result: Any) -> np.ndarray:
    picture = np.zeros((480, 640, 3), np.uint8)
    draw(picture, result)
    return picture


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
def test_the_nearest_vector_gives_the_name(vector: list[float], label: str, class_id: int, confidence: float) -> None:
    output = np.array([vector], np.float32)
    result = _read(SPEC, GALLERY, output)
    assert result.labels == [label]
    encoder = ResultEncoder(IDENTITY, labels_by_id(SPEC, GALLERY), MODEL)
    message = msgspec.json.decode(encoder.encode(result))
    assert message["task"] == "embedding"
    assert message["matches"] == [{"label": label, "class_id": class_id, "confidence": confidence}]
    assert _drawn(result)[:240, :320].any()
    telling = msgspec.structs.replace(SPEC, embedding=EmbeddingSpec(vector=True))
    told = msgspec.json.decode(encoder.encode(_read(telling, 1, output)))["matches"][0]
    assert told["label"] == "unknown"
    assert told["vector"] == pytest.approx(np.divide(vector, np.linalg.norm(vector) or 1), abs=1e-5)


def test_a_gallery_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match="have 2 numbers, the model's 3; make the gallery with this model"):
        _read(SPEC, GALLERY, np.ones((1, 3), np.float32))
    names = np.array(["anna"])
    no_vectors = _saved(names=names)
    for gallery, said in (
        (_gallery(("anna", [NAN, 1])), "expected one of finite numbers a name"),
        (_gallery(), "expected one of finite numbers a name"),
        (Labels.of(no_vectors), "the gallery holds no vectors"),
    ):
        with pytest.raises(ModelError, match=said):
            make_stage(SPEC, gallery, [(1, 2)])
    for data, said in (
        (no_vectors[:40], r"not an \.npz with names"),
        (_saved(np.savez_compressed, names=names, vectors=np.zeros((1, 1 << 25))), "unpacks to more than 64 MiB"),
        (_saved(names=np.array([{}])), r"not an \.npz with names"),
    ):
        with pytest.raises(ValueError, match=said):
            Labels.of(data)


# Text recognition: the likeliest characters, repeated ones once, with the dictionary's own spaces.


TEXT_SPEC = ModelSpec(
    model="m.onnx", name="m", task="text", decoder="ctc", labels="dict.txt", input=InputSpec(size_wh=(320, 48))
)
PADDLE = Labels.of("a\nb\nä\n".encode())  # and a space of which it says nothing
WITH_SPACE = Labels.of("a\nb\nä\n \n".encode())


def _scores(path: str, classes: int, *, sure: float = 0.9, logits: bool = False) -> np.ndarray:
    """Float32 (1, T, C), whose likeliest classes are these digits."""
    rows = np.full((1, len(path), classes), (1 - sure) / (classes - 1), np.float32)
    rows[0, np.arange(len(path)), [int(digit) for digit in path]] = sure
    return np.log(rows) + 7 if logits else rows


@pytest.mark.parametrize(
    ("labels", "classes", "path", "text"),
    [
        (PADDLE, 4, "0110220", "ab"),
        (PADDLE, 4, "11011", "aa"),
        (PADDLE, 5, "1423", "a bä"),
        (WITH_SPACE, 6, "14523", "a  bä"),
        (WITH_SPACE, 5, "34", "ä "),
        (PADDLE, 4, "000", ""),
    ],
)
def test_repeated_characters_count_once_and_blanks_not(labels: Labels, classes: int, path: str, text: str) -> None:
    for output in (_scores(path, classes), _scores(path, classes, logits=True).reshape(-1, 1, classes)):
        result = _read(TEXT_SPEC, labels, output)
        message = msgspec.json.decode(make_encoder().encode(result))
        assert (message["task"], message["texts"]) == ("text", [{"label": text, "confidence": 0.9}] if text else [])
        assert _drawn(result)[:240, :320].any() == bool(text)


def test_a_text_that_is_not_sure_is_none_and_a_dictionary_of_another_model_is_refused() -> None:
    unsure = msgspec.structs.replace(TEXT_SPEC, thresholds=Thresholds(0.4))
    assert _read(unsure, PADDLE, _scores("12", 4, sure=0.3)).labels == []
    with pytest.raises(ModelError, match="labels has 3 lines, the model has 36 classes"):
        make_stage(TEXT_SPEC, PADDLE, [(1, 40, 37)])


def test_a_bundle_keeps_the_dictionary_with_its_spaces() -> None:
    assert (PADDLE.file, WITH_SPACE.file) == ("a\nb\nä\n".encode(), "a\nb\nä\n \n".encode())


def test_a_map_of_probabilities_becomes_boxes_around_lines() -> None:
    cells = np.zeros((1, 1, 96, 160), np.float32)
    cells[0, 0, 20:30, 40:100] = 0.8
    cells[0, 0, 50:90, 20:60] = np.eye(40) * 0.5  # a line that rises, too thin to be one
    cv2.line(cells[0, 0], (90, 80), (140, 55), 0.6, 8)
    spec = msgspec.structs.replace(TEXT_SPEC, task="detection", decoder="db", input=InputSpec(size_wh=(320, 192)))
    result = _read(spec, ("text",), cells, scale=0.5)
    assert result.labels == ["text", "text"]
    assert result.confidence == pytest.approx([0.8, 0.55], abs=0.05)  # the turned box has corners that are no text
    # The region reaches from the middle of its first cell to that of its last, 59 by 9 cells, and its box is larger by
    # 1.5 of its area over half its perimeter. A cell has two pixels of the input, and four of the frame.
    grown = 1.5 * 59 * 9 / (59 + 9) / 2
    box = np.array([40 - grown, 20 - grown, 99 + grown, 29 + grown]) * 4
    assert result.xyxy[0] == pytest.approx(box, abs=0.1)
    assert result.corners[0] == pytest.approx(box[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 2), abs=0.1)
    left, right = result.corners[1][[0, 1]]
    assert np.degrees(np.arctan2(*(right - left)[::-1])) == pytest.approx(-26.6, abs=2)
    with pytest.raises(ModelError, match="decoder db: finds lines of text, expected one label, got 2"):
        make_stage(spec, 2, [cells.shape])


# Anomalies: a score, a map, or both, and the region that reaches the threshold.


LABELS = ("good", "cracked")
ANOMALY_SPEC = ModelSpec(
    model="m.onnx", name="m", task="anomaly", decoder="score", labels="l.txt", input=InputSpec(size_wh=(64, 48)),
    thresholds=Thresholds(0.5),
)  # fmt: skip


def _map(*shape: int) -> np.ndarray:
    """A map for an input of 64x48 whose upper left quarter scores 0.9, and the rest 0.1."""
    scores = np.full((12, 16), 0.1, np.float32)
    scores[:6, :8] = 0.9
    return scores.reshape(shape)


@pytest.mark.parametrize(
    ("outputs", "score", "has_map"),
    [
        ([np.array([0.7], np.float32)], 0.7, False),
        ([np.array([[0.2]], np.float32)], 0.2, False),
        ([_map(1, 1, 12, 16)], 0.9, True),
        ([_map(1, 12, 16), np.array([[0.2]], np.float32)], 0.2, True),
        ([np.array([0.8], np.float32), np.array([True]), _map(1, 1, 12, 16), _map(1, 1, 12, 16) > 0.5], 0.8, True),
    ],
)
def test_the_score_decides_and_the_map_shows_where(outputs: list[Any], score: float, has_map: bool) -> None:
    result = _read(ANOMALY_SPEC, LABELS, *outputs, scale=0.1)
    [item] = msgspec.json.decode(make_encoder(labels=LABELS).encode(result))["anomalies"]
    is_anomalous = score >= 0.5
    assert (item["label"], item["class_id"], item["score"]) == (LABELS[is_anomalous], int(is_anomalous), score)
    assert ("polygons" in item) == has_map
    if has_map and is_anomalous:  # the frame has 640x480 pixels, so that a cell has 40x40
        corners = np.array(item["polygons"][0])
        assert corners.min(axis=0).tolist() == [0, 0]
        assert corners.max(axis=0) == pytest.approx([320, 240], abs=2)
    half = result.on(np.zeros((240, 320, 3), np.uint8)).plot()
    assert bool(_drawn(result)[200, 100].any()) == bool(half[100, 100].any()) == (has_map and is_anomalous)
    assert not half[200:, 200:].any()


def test_a_score_beside_a_map_that_is_no_number_may_miss_something() -> None:
    outputs = np.array([0.9], np.float32), np.full((1, 1, 12, 16), np.nan, np.float32)
    assert not _read(ANOMALY_SPEC, LABELS, *outputs, scale=0.1).is_finite


def test_other_ranges_count_from_0_to_1_and_other_labels_are_refused() -> None:
    spec = msgspec.structs.replace(ANOMALY_SPEC, anomaly=AnomalySpec((10, 30)))
    result = _read(spec, LABELS, np.array([25], np.float32))
    assert (result.labels, result.confidence) == (["cracked"], pytest.approx(0.75))
    with pytest.raises(ModelError, match="labels has 3 lines, expected two for anomaly"):
        make_stage(spec, 3, [(1,)])
    with pytest.raises(ValueError, match="expected the lower score first"):
        AnomalySpec((1, 1))
