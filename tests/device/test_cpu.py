"""What tells one CPU from another, also where Linux has no name for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_sdk.cpu import Cpu
from edge_sdk.tuning import Machine

LITTLE = {"implementer": "0x41", "part": "0xd03", "revision": "4", "features": "fp asimd crc32"}
BIG = {**LITTLE, "part": "0xd08", "revision": "3"}
NEWER = {**LITTLE, "part": "0xd0b", "revision": "1", "features": "fp asimd crc32 asimddp"}


def _arm(*cores: dict[str, str]) -> str:
    """As an ARM kernel has it: no name anywhere."""
    blocks = [
        f"processor\t: {number}\nBogoMIPS\t: {100 + number}.00\nFeatures\t: {core['features']}\n"
        f"CPU implementer\t: {core['implementer']}\nCPU architecture: 8\nCPU variant\t: 0x0\n"
        f"CPU part\t: {core['part']}\nCPU revision\t: {core['revision']}\n\n"
        for number, core in enumerate(cores)
    ]
    return "".join(blocks) + f"Serial\t\t: {os.urandom(8).hex()}\n"


def _x86(model_name: str, flags: str, mhz: float) -> str:
    return (
        f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\nmodel name\t: {model_name}\nmicrocode\t: {mhz}\n"
        f"cpu MHz\t\t: {mhz}\nflags\t\t: {flags}\n\n"
    )


def _cpu(root: Path, cpuinfo: str = "", board: str = "") -> Cpu:
    for name, text in (("proc/cpuinfo", cpuinfo), ("proc/device-tree/model", board)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Cpu.read(root)


@pytest.mark.parametrize(
    ("cpuinfo", "board", "expected"),
    [
        (_x86("Intel(R) Xeon(R)", "fpu avx2", 2300), "", "Intel(R) Xeon(R)"),
        (_arm(BIG), "Raspberry Pi 4 Model B\0", "Raspberry Pi 4 Model B"),
        (_arm(BIG, BIG), "", f"{os.uname().machine} 0x41/0xd08"),
        (_arm(LITTLE, LITTLE, BIG), "", f"{os.uname().machine} 0x41/0xd03 + 0x41/0xd08"),
        ("", "", os.uname().machine),
    ],
)
def test_it_has_a_name(tmp_path: Path, cpuinfo: str, board: str, expected: str) -> None:
    assert _cpu(tmp_path, cpuinfo, board).name == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_arm(BIG, BIG), _arm(NEWER, NEWER)),
        (_arm(BIG, BIG), _arm({**BIG, "revision": "2"}, BIG)),
        (_arm(BIG, BIG), _arm(LITTLE, BIG)),
        (_arm(BIG), _arm({**BIG, "features": "fp asimd"})),
        (_x86("Xeon", "fpu avx2", 2300), _x86("Xeon", "fpu avx2 avx512_vnni", 2300)),
    ],
)
def test_boards_with_as_many_cores_are_told_apart_without_a_name(tmp_path: Path, one: str, other: str) -> None:
    first, second = _cpu(tmp_path, one), _cpu(tmp_path, other)
    assert first.digest != second.digest
    here = Machine.here(tmp_path)
    moved = here.difference(Machine.here(tmp_path))
    assert moved is None
    _cpu(tmp_path, one)
    assert Machine.here(tmp_path).difference(here) is not None


def test_one_board_is_itself_whatever_its_clock_and_the_order_of_its_cores(tmp_path: Path) -> None:
    assert _cpu(tmp_path, _arm(LITTLE, BIG)) == _cpu(tmp_path, _arm(BIG, LITTLE, LITTLE))
    assert _cpu(tmp_path, _x86("Xeon", "fpu", 2300)) == _cpu(tmp_path, _x86("Xeon", "fpu", 800))
    assert _cpu(tmp_path, _arm(BIG), "a board") != _cpu(tmp_path, _arm(BIG), "another board")


def test_this_machine_has_one() -> None:
    assert Cpu.read() == Cpu.read()
    assert len(Cpu.read().digest) == 64
