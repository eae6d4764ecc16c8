"""Memory for one more model: what runs must not be killed for what is tried, and the stream goes on without it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import NoRoomError
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.inference.stages import Stages
from edge_sdk.service.model_selector import ModelSelector
from edge_sdk.service.settings import PipelineSettings
from edge_sdk.tuning.degradation import check_free_memory
from tests.support.bundles import LARGE, SMALL, open_variant, write_graded, write_variants
from tests.support.loops import Scene


def test_a_model_for_which_memory_is_short_is_not_tried_and_what_is_not_known_stops_nothing(tmp_path: Path) -> None:
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    check_free_memory(bundle, "fp32", tmp_path)
    (tmp_path / "proc").mkdir()
    for text in ("MemAvailable: 65536 kB\n", "MemTotal: 1 kB\n", "MemAvailable:\n"):
        (tmp_path / "proc" / "meminfo").write_text(text)
        check_free_memory(bundle, "fp32", tmp_path)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 8000000 kB\nMemAvailable:  {64 * 1024 - 1} kB\n")
    with pytest.raises(NoRoomError, match="fp32 needs about 64 MiB of memory to be loaded, 63 are free"):
        check_free_memory(bundle, "fp32", tmp_path)


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
        check_free_memory(bundle, "fp32", tmp_path)
    # Files that somebody read are given back before anybody is killed.
    (group / "memory.stat").write_text("anon 31457280\ninactive_file 41943040\nactive_file 9\nslab_reclaimable 4096\n")
    check_free_memory(bundle, "fp32", tmp_path)
    (group / "memory.stat").write_text("anon 73400320\n")
    (group / "memory.max").write_text("max\n")
    check_free_memory(bundle, "fp32", tmp_path)


def test_that_memory_is_short_is_said_once_until_the_model_was_there(tmp_path: Path) -> None:
    folder, is_short, tried = write_graded(tmp_path / "graded.edge"), True, list[str]()

    def open_stages(variant: str) -> Stages:
        tried.append(variant)
        if is_short:
            raise NoRoomError("9 MiB are free")
        return open_variant(folder, variant)

    scene = Scene(folder, open_stages=open_stages)
    scene.until(lambda: len(tried) == 3)
    lines = [line for line in scene.said if "memory" in line]
    assert lines == [f"{SMALL} is left out until memory is free: 9 MiB are free"]
    assert (scene.variant, scene.alive) == (LARGE, 1)
    is_short = False
    scene.until(lambda: scene.variant == SMALL)
    assert scene.loop.every == 1
    scene.governing.close()


def test_a_run_looks_for_room_before_it_loads_another_model(tmp_path: Path) -> None:
    bundle = Bundle.open(write_graded(tmp_path / "graded.edge"))
    huge = {f"model.{SMALL}.ort": 2**50}
    files = [msgspec.structs.replace(f, size=huge.get(f.name, f.size)) for f in bundle.manifest.files]
    bundle.manifest = msgspec.structs.replace(bundle.manifest, files=tuple(files))
    settings = PipelineSettings(bundle=bundle.path, source="0", tune=False)
    steering = ModelSelector(settings, bundle, SessionSettings(), 100.0, lambda: False)
    with pytest.raises(NoRoomError, match=f"{SMALL} needs about .* MiB of memory to be loaded"):
        steering.open_beside(SMALL)
