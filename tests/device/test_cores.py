"""Cores: physical against logical ones, the affinity mask and the control group's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_sdk.cores import Cores


def _machine(
    root: Path,
    *,
    online: str = "0-3",
    siblings: dict[int, str] | None = None,
    mask: str = "0-3",
    group: str = "/",
    limits: dict[str, str] | None = None,
    name: str = "core_cpus_list",
) -> Path:
    files = {
        "sys/devices/system/cpu/online": online,
        "proc/self/status": f"Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t{mask}\n",
        "proc/self/cgroup": f"0::{group}\n",
    }
    for cpu, text in (siblings or {}).items():
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/{name}"] = text
    for folder, limit in (limits or {}).items():
        files[f"sys/fs/cgroup/{folder}/cpu.max"] = limit
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return root


PAIRS = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
SINGLE = {0: "0", 1: "1", 2: "2", 3: "3"}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"siblings": SINGLE}, Cores(4, 4, 4, 4)),
        ({"siblings": PAIRS}, Cores(4, 2, 4, 2)),
        ({"siblings": PAIRS, "name": "thread_siblings_list"}, Cores(4, 2, 4, 2)),
        ({"siblings": {}}, Cores(4, 4, 4, 4)),
        ({"online": "0,2-3", "siblings": SINGLE}, Cores(3, 3, 3, 3)),
        ({"siblings": PAIRS, "mask": "0,2"}, Cores(4, 2, 2, 1)),
        ({"siblings": PAIRS, "mask": "0-1"}, Cores(4, 2, 2, 2)),
        ({"siblings": PAIRS, "mask": "8-11"}, Cores(4, 2, 4, 2)),
        ({"siblings": SINGLE, "limits": {"": "250000 100000"}}, Cores(4, 4, 2, 2)),
        ({"siblings": SINGLE, "limits": {"": "50000 100000"}}, Cores(4, 4, 1, 1)),
        ({"siblings": SINGLE, "limits": {"": "max 100000"}}, Cores(4, 4, 4, 4)),
        ({"siblings": SINGLE, "group": "/a/b", "limits": {"a": "300000 100000", "a/b": "max 1"}}, Cores(4, 4, 3, 3)),
        ({"siblings": SINGLE, "group": "/a/b", "limits": {"a/c": "100000 100000"}}, Cores(4, 4, 4, 4)),
    ],
)
def test_what_a_machine_has_and_a_process_may_use(tmp_path: Path, machine: dict[str, object], expected: Cores) -> None:
    assert Cores.read(_machine(tmp_path, **machine)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [b"", b"-", b"0-", b"x\n", b"\xff\xfe"])
def test_files_that_say_nothing_are_passed_over(tmp_path: Path, damage: bytes) -> None:
    _machine(tmp_path)
    for path in ("sys/devices/system/cpu/online", "proc/self/status", "proc/self/cgroup"):
        (tmp_path / path).write_bytes(damage)
    count = os.cpu_count()
    assert Cores.read(tmp_path) == Cores(count, count, count, count)


def test_this_machine() -> None:
    cores = Cores.read()
    assert cores.logical == os.cpu_count()
    assert 1 <= cores.usable <= cores.allowed <= len(os.sched_getaffinity(0))
    assert cores.usable <= cores.physical <= cores.logical
