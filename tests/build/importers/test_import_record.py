"""What an import leaves in its ONNX file: it goes where the file goes, and is believed of that graph only."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import msgspec
import onnx
import pytest

from edge_sdk_tools.importing.comparison import OutputDifference
from edge_sdk_tools.importing.import_record import embed_record, read_import_record
from edge_sdk_tools.importing.onnx_model import import_onnx
from tests.support import models as tiny
from tests.support.projects import CLASSIFIER, write_pictures, write_project

DIFFERENCES = (
    OutputDifference("a", (1, 3), 2e-6, 1e-7, "ones", 1e-6),
    OutputDifference("b", (1, 3), 1e-6, 3e-7, "zeros", None),
)


def _recorded(differences: tuple[OutputDifference, ...] = DIFFERENCES) -> onnx.ModelProto:
    proto = tiny.classifier()
    embed_record(proto, "PyTorch", "an exporter", differences, inputs=24, images=16)
    return proto


def _read(proto: onnx.ModelProto, folder: Path) -> object:
    onnx.save(proto, folder / "model.onnx")
    return read_import_record(folder / "model.onnx")


def test_it_survives_a_copy_of_the_file(tmp_path: Path) -> None:
    onnx.save(_recorded(), tmp_path / "model.onnx")
    shutil.copy(tmp_path / "model.onnx", tmp_path / "copy.onnx")
    record = read_import_record(tmp_path / "copy.onnx")
    assert record is not None
    assert (record.origin, record.exporter, record.inputs, record.images) == ("PyTorch", "an exporter", 24, 16)
    assert (record.largest, record.largest_share, record.largest_on_images) == (2e-6, 3e-7, 1e-6)


def test_a_graph_that_was_changed_since_is_not_what_was_compared(tmp_path: Path) -> None:
    proto = _recorded()
    proto.producer_name = "somebody who loaded and saved it"
    assert _read(proto, tmp_path) is not None
    proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
    assert _read(proto, tmp_path) is None


@pytest.mark.parametrize(
    "change",
    [
        {"origin": "a friend"},
        {"exporter": "x" * 201},
        {"largest": -1},
        {"largest": None},
        {"largest": "0"},
        {"images": 10**7},
        {"graph_sha256": "0" * 64},
        {"graph_sha256": "x"},
        {"more": "x" * 5000},
    ],
    ids=str,
)
def test_a_record_that_no_import_writes_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    proto = _recorded()
    record = msgspec.json.decode(proto.metadata_props[0].value)
    proto.metadata_props[0].value = msgspec.json.encode({**record, **change}).decode()
    assert _read(proto, tmp_path) is None


def test_two_records_none_and_no_model_say_nothing(tmp_path: Path) -> None:
    proto = _recorded()
    proto.metadata_props.add(key=proto.metadata_props[0].key, value=proto.metadata_props[0].value)
    assert _read(proto, tmp_path) is None
    assert _read(tiny.classifier(), tmp_path) is None
    (tmp_path / "junk.onnx").write_bytes(b"\xff junk")
    assert read_import_record(tmp_path / "junk.onnx") is None
    assert read_import_record(tmp_path / "missing.onnx") is None
    os.mkfifo(tmp_path / "pipe.onnx")
    assert read_import_record(tmp_path / "pipe.onnx") is None


def test_an_error_that_is_no_number_is_not_recorded(tmp_path: Path) -> None:
    endless = (OutputDifference("a", (1, 3), math.inf, math.inf, "ones", None),)
    assert _read(_recorded(endless), tmp_path) is None
    assert _read(_recorded(()), tmp_path) is None


def test_an_import_replaces_the_record_of_the_file_it_reads(tmp_path: Path) -> None:
    model_toml = write_project(tmp_path, CLASSIFIER.replace('"model.onnx"', '"new.onnx"'), _recorded(), pictures=0)
    import_onnx(tmp_path / "model.onnx", model_toml, images=[write_pictures(tmp_path / "seen", 3)])
    record = read_import_record(tmp_path / "new.onnx")
    assert record is not None
    assert (record.origin, record.exporter, record.images) == ("ONNX", "the export gate", 3)
