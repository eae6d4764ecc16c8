"""Anomalies: a score, a map, or both, and the region that reaches the threshold."""

from typing import Any

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Geometry, Inferred, Prepared
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.detection import draw
from edge_sdk.tasks.spec import AnomalySpec, Thresholds
from tests.support.results import make_encoder, make_frame

LABELS = ("good", "cracked")
SPEC = ModelSpec(
    model="m.onnx",
    name="m",
    task="anomaly",
    decoder="score",
    labels="l.txt",
    input=InputSpec(size_wh=(64, 48)),
    thresholds=Thresholds(0.5),
)


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
    inferred = Inferred(tuple(outputs), 5, Prepared(outputs[0], Geometry(0.1, 0.1, 0, 0), make_frame()))
    result = make_stage(SPEC, LABELS, [output.shape for output in outputs])(inferred)
    [item] = msgspec.json.decode(make_encoder(labels=LABELS).encode(result))["anomalies"]
    is_anomalous = score >= 0.5
    assert (item["label"], item["class_id"], item["score"]) == (LABELS[is_anomalous], int(is_anomalous), score)
    assert ("polygons" in item) == has_map
    if has_map and is_anomalous:  # the frame has 640x480 pixels, so that a cell has 40x40
        corners = np.array(item["polygons"][0])
        assert corners.min(axis=0).tolist() == [0, 0]
        assert corners.max(axis=0) == pytest.approx([320, 240], abs=2)
    picture = np.zeros((480, 640, 3), np.uint8)
    draw(picture, result)
    assert bool(picture[200, 100].any()) == (has_map and is_anomalous)


def test_a_score_beside_a_map_that_is_no_number_may_miss_something() -> None:
    outputs = np.array([0.9], np.float32), np.full((1, 1, 12, 16), np.nan, np.float32)
    inferred = Inferred(outputs, 5, Prepared(outputs[0], Geometry(0.1, 0.1, 0, 0), make_frame()))
    assert not make_stage(SPEC, LABELS, [output.shape for output in outputs])(inferred).is_finite


def test_other_ranges_count_from_0_to_1_and_other_labels_are_refused() -> None:
    spec = msgspec.structs.replace(SPEC, anomaly=AnomalySpec((10, 30)))
    output = np.array([25], np.float32)
    inferred = Inferred((output,), 5, Prepared(output, Geometry(1, 1, 0, 0), make_frame()))
    result = make_stage(spec, LABELS, [output.shape])(inferred)
    assert (result.labels, result.confidence) == (["cracked"], pytest.approx(0.75))
    with pytest.raises(ModelError, match="labels has 3 lines, expected two for anomaly"):
        make_stage(spec, 3, [output.shape])
    with pytest.raises(ValueError, match="expected the lower score first"):
        AnomalySpec((1, 1))
