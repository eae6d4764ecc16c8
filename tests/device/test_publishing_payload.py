"""The wire format: what subscribers rely on."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.frame import Classification, Detections
from edge_sdk.model_spec import ClassificationSpec
from edge_sdk.publishing import Identity, ResultEncoder, ResultMessage
from tests.device.bundles import make_manifest, write_bundle
from tests.device.results import (
    IDENTITY,
    MODEL,
    make_classification,
    make_detections,
    make_encoder,
    make_frame,
    make_segmentation,
)

DOCS = Path(__file__).parents[2] / "docs"


def _decode(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(data)
    return document


def _boxes(*rows: tuple[float, float, float, float, float, int]) -> Detections:
    table = np.array(rows, np.float32).reshape(-1, 6)
    return Detections(make_frame(), 0, table[:, :4], table[:, 4], table[:, 5].astype(np.int64))


def test_every_field_of_a_detection_message() -> None:
    encoder = make_encoder(Identity("pi", "boot", "run"), clock_ns=lambda: 5_041_237_999)
    frame = make_frame(seq=7, captured_ns=5_000_000_000, captured_at=1_700_000_000.1234)
    result = Detections(
        frame,
        12_345_678,
        np.array([[0.04, 12.34, 640.0, 479.96]], np.float32),
        np.array([0.87654], np.float32),
        np.array([1]),
    )
    assert _decode(encoder.encode(result)) == {
        "task": "detection",
        "schema": 1,
        "stream": "result",
        "device": "pi",
        "camera": "door",
        "boot_id": "boot",
        "run_id": "run",
        "seq": 7,
        "captured_at": "2023-11-14T22:13:20.123000Z",
        "age_ms": 41.237,
        "infer_ms": 12.345,
        "model": {"name": "tiny", "version": 3, "sha256": "0" * 64},
        "frame": {"width": 640, "height": 480},
        "detections": [{"label": "dog", "class_id": 1, "confidence": 0.8765, "box_xyxy": [0.0, 12.3, 640.0, 480.0]}],
    }


def test_a_classification_message() -> None:
    document = _decode(make_encoder().encode(make_classification([1, 0])))
    assert document["task"] == "classification"
    assert "detections" not in document
    assert document["classes"] == [
        {"label": "dog", "class_id": 1, "confidence": 0.9},
        {"label": "cat", "class_id": 0, "confidence": 0.1},
    ]


def test_a_segmentation_message_has_the_largest_first_and_no_share_of_nothing() -> None:
    document = _decode(make_encoder().encode(make_segmentation([0.25004, 0.6, 0.0, 0.00004, 0.14996])))
    assert document["task"] == "segmentation"
    assert document["infer_ms"] == 1.0
    assert "classes" not in document
    assert document["segments"] == [
        {"label": "dog", "class_id": 1, "share": 0.6},
        {"label": "cat", "class_id": 0, "share": 0.25},
        {"label": "class_4", "class_id": 4, "share": 0.15},
    ]


def test_equal_shares_come_in_the_order_of_the_labels() -> None:
    document = _decode(make_encoder().encode(make_segmentation([0.5, 0.5])))
    assert [s["class_id"] for s in document["segments"]] == [0, 1]
    assert _decode(make_encoder().encode(make_segmentation([0.0, 0.0])))["segments"] == []


@pytest.mark.parametrize(
    ("background_class", "labels", "class_id", "expected"),
    [
        (False, ("cat", "dog"), 0, "cat"),
        (False, ("cat", "dog"), 2, "class_2"),
        (False, ("cat", "dog"), -1, "background"),
        (False, ("cat", "dog"), -2, "class_-2"),
        (False, ("cat", ""), 1, "class_1"),
        (True, ("nothing", "cat", "dog"), -1, "nothing"),
        (True, ("nothing", "cat", "dog"), 0, "cat"),
        (True, ("nothing", "cat", "dog"), 2, "class_2"),
    ],
)
def test_labels(background_class: bool, labels: tuple[str, ...], class_id: int, expected: str) -> None:
    encoder = ResultEncoder(Identity("pi"), labels, MODEL, background_class=background_class)
    [item] = _decode(encoder.encode(make_classification([class_id])))["classes"]
    assert (item["label"], item["class_id"]) == (expected, class_id)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "bad",
    [(NAN, 0, 1, 1, 0.5, 0), (0, INF, 1, 1, 0.5, 0), (0, 0, -INF, 1, 0.5, 0), (0, 0, 1, 1, NAN, 0)],
)
def test_what_is_not_finite_is_left_out(bad: tuple[float, float, float, float, float, int]) -> None:
    good = (1.0, 2.0, 3.0, 4.0, 0.5, 1)
    data = make_encoder().encode(_boxes(good, bad, good))
    assert b"null" not in data
    assert [d["box_xyxy"] for d in _decode(data)["detections"]] == [[1, 2, 3, 4]] * 2


def test_classes_that_are_not_finite_are_left_out() -> None:
    result = Classification(make_frame(), 0, np.array([NAN, 0.25], np.float32), np.array([0, 1]))
    assert [c["label"] for c in _decode(make_encoder().encode(result))["classes"]] == ["dog"]


def test_the_largest_number_of_a_float32_is_finite() -> None:
    largest = float(np.finfo(np.float32).max)
    [item] = _decode(make_encoder().encode(_boxes((0, 0, largest, 1, 1, 0))))["detections"]
    assert item["box_xyxy"][2] == pytest.approx(largest)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 500])
def test_any_number_of_detections(count: int) -> None:
    result = make_detections(count)
    items = _decode(make_encoder().encode(result))["detections"]
    assert len(items) == count
    for item, box, confidence in zip(items, result.boxes_xyxy, result.confidences, strict=True):
        assert item["box_xyxy"] == np.round(box.astype(np.float64), 1).tolist()
        assert item["confidence"] == round(float(confidence), 4)


def test_the_result_is_not_changed_by_encoding() -> None:
    result = make_detections(3)
    boxes, confidences = result.boxes_xyxy.copy(), result.confidences.copy()
    make_encoder().encode(result)
    np.testing.assert_array_equal(result.boxes_xyxy, boxes)
    np.testing.assert_array_equal(result.confidences, confidences)


def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(msgspec.json.decode((DOCS / "result.schema.json").read_bytes()))


def _example() -> bytes:
    return (DOCS / "payload.md").read_bytes().split(b"```json\n")[1].split(b"```")[0]


@pytest.mark.parametrize(
    "data",
    [
        make_encoder().encode(make_detections(20)),
        make_encoder().encode(make_detections(0)),
        make_encoder().encode(_boxes((NAN, 0, 0, 0, 0, 0))),
        make_encoder().encode(make_classification([0, -1, 5])),
        make_encoder().encode(make_segmentation([0.3, 0.7])),
        make_encoder().encode(make_segmentation([])),
        _example(),
    ],
)
def test_messages_keep_to_the_schema_and_are_read_back(data: bytes) -> None:
    assert [e.message for e in _validator().iter_errors(_decode(data))] == []
    assert msgspec.json.decode(data, type=ResultMessage).schema == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", 2),
        ("task", "pose"),
        ("seq", -1),
        ("run_id", None),
        ("frame", None),
        ("detections", [{"label": "cat"}]),
    ],
)
def test_the_schema_refuses_other_messages(key: str, value: object) -> None:
    document = _decode(make_encoder().encode(make_detections(1))) | {key: value}
    assert not _validator().is_valid(document)


def test_results_name_the_variant_that_made_them() -> None:
    encoder = make_encoder()
    assert "variant" not in _decode(encoder.encode(make_detections(1)))["model"]
    for variant in ("int8.320x320", "int8"):
        encoder.answers_by(variant)
        assert _decode(encoder.encode(make_detections(1)))["model"]["variant"] == variant
    assert encoder.model.variant is msgspec.UNSET


def test_a_message_may_bear_another_number_than_its_frame() -> None:
    result = make_detections(1, make_frame(7))
    assert [_decode(make_encoder().encode(result, seq))["seq"] for seq in (None, 0, 41)] == [7, 0, 41]


def test_encoder_for_a_bundle(tmp_path: Path) -> None:
    bundle = Bundle.open(write_bundle(tmp_path / "tiny.edge"))
    document = _decode(ResultEncoder.for_bundle(bundle, Identity("pi")).encode(make_classification([1])))
    assert document["model"] == {"name": "tiny", "version": 1, "sha256": bundle.digest, "variant": "int8"}
    assert document["classes"][0]["label"] == "dog"


@pytest.mark.parametrize(
    ("task", "decoder", "expected"), [("classification", "softmax", "cat"), ("segmentation", "argmax", "dog")]
)
def test_only_a_classifiers_ids_are_counted_without_the_background(
    tmp_path: Path, task: Any, decoder: Any, expected: str
) -> None:
    manifest = msgspec.structs.replace(
        make_manifest(), task=task, decoder=decoder, classification=ClassificationSpec(background_class=True)
    )
    encoder = ResultEncoder.for_bundle(Bundle.open(write_bundle(tmp_path / "tiny.edge", manifest)), IDENTITY)
    result = make_segmentation([0.0, 1.0]) if task == "segmentation" else make_classification([-1])
    document = _decode(encoder.encode(result))
    assert (document.get("segments") or document["classes"])[0]["label"] == expected


def test_no_warning_from_odd_numbers() -> None:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        make_encoder().encode(_boxes((NAN, INF, 3e38, -3e38, 0.5, 0)))
