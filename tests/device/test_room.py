"""Memory for one more model: what runs must not be killed for what is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.errors import NoRoomError
from edge_sdk.room import check_room
from tests.device.variant_bundles import write_variants


@pytest.mark.parametrize("free_kb", [64 * 1024 - 1, 0])
def test_a_model_for_which_memory_is_short_is_not_tried(tmp_path: Path, free_kb: int) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 8000000 kB\nMemAvailable:  {free_kb} kB\n")
    with pytest.raises(
        NoRoomError, match=f"fp32 needs about 64 MiB of memory to be loaded, {free_kb // 1024} are free"
    ):
        check_room(bundle, "fp32", tmp_path)


def test_a_control_group_that_leaves_less_counts(tmp_path: Path) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    group = tmp_path / "sys/fs/cgroup/edge.service"
    for path, text in (
        (tmp_path / "proc/meminfo", "MemAvailable: 8000000 kB\n"),
        (tmp_path / "proc/self/cgroup", "0::/edge.service\n"),
        (group / "memory.max", f"{100 * 2**20}\n"),
        (group / "memory.current", f"{70 * 2**20}\n"),
        (group / "memory.stat", "anon 73400320\ninactive_file 0\nslab_reclaimable 0\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(NoRoomError, match="fp32 needs about 64 MiB of memory to be loaded, 30 are free"):
        check_room(bundle, "fp32", tmp_path)
    # Files that somebody read are given back before anybody is killed.
    (group / "memory.stat").write_text("anon 31457280\ninactive_file 41943040\nactive_file 9\nslab_reclaimable 4096\n")
    check_room(bundle, "fp32", tmp_path)
    (group / "memory.stat").write_text("anon 73400320\n")
    (group / "memory.max").write_text("max\n")
    check_room(bundle, "fp32", tmp_path)


@pytest.mark.parametrize("text", ["MemAvailable: 65536 kB\n", "MemTotal: 1 kB\n", "MemAvailable:\n", None])
def test_enough_is_enough_and_what_is_not_known_stops_nothing(tmp_path: Path, text: str | None) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "meminfo").write_text(text)
    check_room(bundle, "fp32", tmp_path)
