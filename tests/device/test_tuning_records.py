"""Tuning is remembered for the same bundle, machine and wish, and only for them; records do not pile up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.cpu import Cpu
from edge_sdk.errors import OutputError
from edge_sdk.tuning.choice import Limits
from edge_sdk.tuning.machine import Machine
from edge_sdk.tuning.record import Record, Records, Request
from edge_sdk.tuning.tuned import Tuned
from tests.device.bundles import write_bundle
from tests.device.measured import CPU, candidate, measurement

HERE = Machine(
    cpu=Cpu("Cortex", "0" * 64), logical=4, physical=4, allowed=4, memory_gib=8, onnxruntime="1.31.1", providers=CPU
)
LIMITS = Limits(50)
TUNED = Tuned.of(
    [measurement(candidate(), 10.0)],
    candidate(threads=2),
    LIMITS,
    metric="agreement",
    providers=CPU,
    fps=30,
    seconds=12.34,
)


def _request(bundle: Bundle, **changes: object) -> Request:
    request = Request(digest=bundle.digest, camera="gate", variant=None, limits=LIMITS)
    return msgspec.structs.replace(request, **changes)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_bundle(tmp_path / "a.edge"))


def test_the_same_wish_on_the_same_machine_is_remembered(tmp_path: Path, bundle: Bundle) -> None:
    records = Records(tmp_path / "state")
    assert records.recall(bundle, _request(bundle), HERE) is None
    records.remember(_request(bundle), HERE, TUNED)
    found = records.recall(bundle, _request(bundle), HERE)
    assert isinstance(found, Record)
    assert found.tuned == TUNED
    assert found.at.endswith("Z")


@pytest.mark.parametrize(
    "other",
    [
        {"digest": "f" * 64},
        {"camera": "yard"},
        {"variant": "int8"},
        {"limits": Limits(51)},
        {"limits": Limits(50, 0.5)},
    ],
)
def test_another_wish_is_not(tmp_path: Path, bundle: Bundle, other: dict[str, object]) -> None:
    records = Records(tmp_path / "state")
    records.remember(_request(bundle), HERE, TUNED)
    assert records.recall(bundle, _request(bundle, **other), HERE) is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cpu": Cpu("Other", "1" * 64)}, "was measured on something else: CPU Cortex, now Other"),
        ({"cpu": Cpu("Cortex", "1" * 64)}, "CPU Cortex, now one of that name with other cores"),
        ({"logical": 2}, "logical cores 4, now 2"),
        ({"allowed": 1}, "allowed cores 4, now 1"),
        ({"memory_gib": 4}, "GiB of memory 8, now 4"),
        ({"onnxruntime": "1.32.0"}, "ONNX Runtime 1.31.1, now 1.32.0"),
        (
            {"providers": ("CUDAExecutionProvider", *CPU)},
            "execution providers CPUExecutionProvider, now CUDAExecutionProvider, CPUExecutionProvider",
        ),
    ],
)
def test_another_machine_is_told_apart(
    tmp_path: Path, bundle: Bundle, change: dict[str, object], expected: str
) -> None:
    records = Records(tmp_path / "state")
    records.remember(_request(bundle), HERE, TUNED)
    found = records.recall(bundle, _request(bundle), msgspec.structs.replace(HERE, **change))
    assert isinstance(found, str)
    assert found.endswith(expected)


def _edited(edit: Callable[[dict], None]) -> Callable[[bytes], bytes]:  # type: ignore[type-arg]
    def damage(data: bytes) -> bytes:
        document = msgspec.json.decode(data)
        edit(document)
        return msgspec.json.encode(document)

    return damage


def _name_variant(document: dict) -> None:  # type: ignore[type-arg]
    document["tuned"]["chosen"]["candidate"]["variant"] = "other"


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda _data: b"", "is damaged"),
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda _data: b"\xff\xfe", "is damaged"),
        (lambda _data: b"[" * 100_000, "is damaged"),
        (lambda _data: b"[]", "is damaged"),
        (lambda data: data + b" " * (1 << 20) + b"x", "is damaged"),
        (_edited(lambda d: d.update(schema_version=1)), "is of another version of edge-sdk"),
        (_edited(lambda d: d.pop("schema_version")), "is of another version of edge-sdk"),
        (_edited(lambda d: d.update(more=1)), "is damaged"),
        (_edited(lambda d: d["request"].update(camera="yard")), "is of something else"),
        (_edited(lambda d: d["tuned"]["chosen"]["candidate"].update(intra_op_num_threads=0)), "is damaged"),
        (_edited(lambda d: d["tuned"]["chosen"]["candidate"].update(graph_file="/tmp/x")), "is damaged"),
        (_edited(_name_variant), "what is remembered is other, 1 thread, which "),
        (
            _edited(lambda d: d["tuned"]["chosen"]["candidate"].update(providers=["EvilProvider", *CPU])),
            "what is remembered is int8, 1 thread, EvilProvider, which ",
        ),
        (_edited(lambda d: d["tuned"]["chosen"]["candidate"].update(providers=[])), "what is remembered is int8, "),
        (_edited(lambda d: d["tuned"]["measured"][0]["candidate"].update(variant="gone")), "is gone, "),
    ],
)
def test_what_is_damaged_or_names_what_is_not_there_is_passed_over_in_one_line(
    tmp_path: Path, bundle: Bundle, damage: Callable[[bytes], bytes], expected: str
) -> None:
    records = Records(tmp_path / "state")
    records.remember(_request(bundle), HERE, TUNED)
    path = tmp_path / "state" / _request(bundle).file_name
    path.write_bytes(damage(path.read_bytes()))
    found = records.recall(bundle, _request(bundle), HERE)
    assert isinstance(found, str)
    assert expected in found
    assert "\n" not in found


def test_records_of_bundles_that_are_gone_do_not_pile_up(tmp_path: Path, bundle: Bundle) -> None:
    folder = tmp_path / "state"
    records = Records(folder)
    records.remember(_request(bundle, camera="first"), HERE, TUNED)
    leftover = folder / ".half"  # of a process that was killed while it wrote
    leftover.write_bytes(b"")
    for number, path in enumerate(folder.iterdir()):
        os.utime(path, ns=(number, number))
    for number in range(40):
        records.remember(_request(bundle, camera=f"c{number}"), HERE, TUNED)
    assert len(list(folder.iterdir())) == 32
    assert not leftover.exists()
    assert records.recall(bundle, _request(bundle, camera="first"), HERE) is None
    assert isinstance(records.recall(bundle, _request(bundle, camera="c39"), HERE), Record)


def test_a_folder_that_cannot_be_written_or_read_is_one_error(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        Records(tmp_path / "file").remember(_request(bundle), HERE, TUNED)
    found = Records(tmp_path / "file").recall(bundle, _request(bundle), HERE)
    assert isinstance(found, str)
    assert "cannot be read" in found


def test_this_machine_is_itself() -> None:
    here = Machine.here()
    assert here.difference(Machine.here()) is None
    assert here.memory_gib.bit_count() == 1
