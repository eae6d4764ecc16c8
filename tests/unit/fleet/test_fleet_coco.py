"""Detections collected as COCO results: pycocotools reads them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import msgspec
import pytest
from pycocotools.coco import COCO

from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.fleet.coco import MOST_CATEGORIES, CocoWriter
from edge_sdk.fleet.messages import DeviceAddress, read
from edge_sdk.messages.schema import DetectionMessage
from tests.support.connections import detections

_GATE = DeviceAddress("berlin", "pi", "result", "gate")


def _message(payload: bytes) -> DetectionMessage:
    message = read("result", payload)
    assert isinstance(message, DetectionMessage)
    return message


def test_pycocotools_reads_what_was_collected(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    writer.add(_GATE, _message(detections(("person", 0.5), ("car", 0.25), seq=7)))
    writer.add(_GATE, _message(detections(seq=8)))
    writer.add(_GATE._replace(camera="yard"), _message(detections(("person", 0.75), seq=7)))
    assert not (tmp_path / "seen.json").exists()
    writer.close()
    writer.close()
    with contextlib.redirect_stdout(io.StringIO()):
        images = COCO(str(tmp_path / "seen.images.json"))
        found = images.loadRes(str(tmp_path / "seen.json"))
    assert (writer.results, writer.images) == (3, 3)
    names = [image["file_name"] for image in images.loadImgs([1, 2, 3])]
    assert names == ["berlin/pi/gate/r/7", "berlin/pi/gate/r/8", "berlin/pi/yard/r/7"]
    [first, *_] = found.loadAnns(found.getAnnIds(imgIds=[1]))
    assert (first["bbox"], first["score"]) == ([1.0, 2.0, 10.0, 20.0], 0.5)
    assert {c["name"]: c["id"] for c in images.loadCats(images.getCatIds())} == {"person": 6, "car": 3}


def test_two_models_of_one_class_number_have_two_categories(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    for label in ("cat", "dog", "cat", "cow"):
        writer.add(_GATE, _message(detections((label, 0.5))))
    writer.close()
    results = msgspec.json.decode((tmp_path / "seen.json").read_bytes())
    assert [r["category_id"] for r in results] == [3, 10_000, 3, 10_001]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pi-01_b.local", "pi-01_b.local"),
        ("Tür", "Tür"),
        ("..", "%2E%2E"),
        (".ssh", "%2Essh"),
        ("a..b.", "a..b%2E"),
        ("a b%2E", "a%20b%252E"),
        ("c:\\x", "c%3A%5Cx"),
        ("\0\n\u202e", "%00%0A%E2%80%AE"),
        ("../../etc", "%2E%2E%2F..%2Fetc"),
        ("", "%"),
    ],
)
def test_a_file_name_leads_nowhere(tmp_path: Path, name: str, expected: str) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    writer.add(DeviceAddress(name, name, "result", name), _message(detections(seq=7, run_id=name)))
    writer.close()
    [image] = msgspec.json.decode((tmp_path / "seen.images.json").read_bytes())["images"]
    assert image["file_name"] == f"{expected}/{expected}/{expected}/{expected}/7"


def test_labels_without_end_are_left_out_and_counted(tmp_path: Path) -> None:
    writer, box = CocoWriter(tmp_path / "seen.json"), [1.0, 2.0, 11.0, 22.0]
    for start in range(0, MOST_CATEGORIES + 500, 500):
        found = [
            {"label": str(start + n), "class_id": 10_002 if n % 2 else 0, "confidence": 0.5, "box_xyxy": box}
            for n in range(500)
        ]
        writer.add(_GATE, _message(detections(detections=found)))
    writer.add(_GATE, _message(detections(("x" * 201, 0.5))))
    writer.close()
    assert (writer.results, writer.left_out) == (MOST_CATEGORIES, 501)
    document = msgspec.json.decode((tmp_path / "seen.images.json").read_bytes())
    assert len({category["id"] for category in document["categories"]}) == MOST_CATEGORIES


def test_a_box_without_an_end_is_left_out(tmp_path: Path) -> None:
    writer = CocoWriter(tmp_path / "seen.json")
    whole = msgspec.json.decode(detections(("person", 0.5), ("car", 0.25)))
    whole["detections"][0]["box_xyxy"] = [-1e308, 0.0, 1e308, 1.0]
    writer.add(_GATE, _message(msgspec.json.encode(whole)))
    writer.close()
    assert (writer.results, writer.left_out) == (1, 1)
    assert b"null" not in (tmp_path / "seen.json").read_bytes()


def test_nothing_seen_is_an_empty_list(tmp_path: Path) -> None:
    CocoWriter(tmp_path / "seen.json").close()
    assert msgspec.json.decode((tmp_path / "seen.json").read_bytes()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen.images.json", "seen.json"]


@pytest.mark.parametrize("there", ["seen.json", "seen.images.json"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(UsageError, match="it is there already"):
        CocoWriter(tmp_path / "seen.json")
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No such file or directory"):
        CocoWriter(tmp_path / "none" / "seen.json")
    with pytest.raises(UsageError, match="expected the name of a file"):
        CocoWriter(Path())
    (tmp_path / "seen.images.json.partial").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        CocoWriter(tmp_path / "seen.json")
    assert [path.name for path in tmp_path.iterdir()] == ["seen.images.json.partial"]
