"""The governor where memory for another model is short for a while."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.daemon.steering import Steering
from edge_sdk.errors import NoRoomError
from edge_sdk.governor import Governor
from edge_sdk.ladder import Rung
from edge_sdk.session import SessionSettings
from tests.device.governed import Scene
from tests.device.graded import LARGE, SMALL, write_graded
from tests.device.simulated import MS
from tests.device.test_governor import S, World, between

THREE = (Rung("large", 1, 40.0), Rung("middle", 1, 25.0), Rung("small", 1, 15.0), Rung("small", 2, 15.0))


def _names(world: World) -> list[str]:
    return [str(rung) for rung in world.governor.ladder]


def test_without_memory_frames_are_left_out_and_the_smaller_model_is_tried_less_and_less_often() -> None:
    world = World(lambda s: 4.0 if s >= 10 else 1.0, short=lambda _s: "small").run(2400)
    assert world.path[:2] == [1, 2]
    assert str(world.governor.rung) == "large, every 3rd frame"
    gaps = [b - a for a, b in pairwise(world.postponed_s)]
    assert [round(gap, -1) for gap in gaps[:4]] == [30, 60, 120, 240]
    assert max(gaps) < 700


def test_when_memory_is_free_again_the_smaller_model_runs_and_all_is_as_it_was() -> None:
    world = World(between(10, 400, 4.0), short=lambda s: "small" if s < 100 else "").run(330)
    assert (str(world.governor.rung), world.loop.every) == ("small", 1)
    assert world.steps[-1].reason == "memory for it may be free again"
    assert _names(world) == ["large", "small", "small, every 2nd frame", "small, every 3rd frame"]
    assert str(world.run(500).governor.rung) == "large"


def test_a_model_between_that_has_no_room_is_passed_over_in_both_directions() -> None:
    world = World(between(10, 40, 6.0), ladder=THREE, short=lambda _s: "middle").run(300)
    assert [step.rung for step in world.steps][-1] == 0
    assert str(world.governor.rung) == "large"
    assert len(world.postponed_s) >= 1


def _missing(governor: Governor, second: int) -> str:
    """Where it wants to go when all frames of a window are missed."""
    for _ in range(8):
        governor.note_stale()
    move = governor.decide(second * S)
    return str(move.rung) if move else ""


def test_several_that_come_back_at_once_are_tried_one_after_the_other() -> None:
    governor = Governor(THREE, 100 * MS, 100 * MS, 0)
    for second, wanted in ((2, "middle"), (4, "small")):
        assert _missing(governor, second) == wanted
        governor.postpone(second * S)
    assert _missing(governor, 6) == "large, every 2nd frame"
    governor.arrive(6 * S)
    assert _missing(governor, 1000) == "middle"
    governor.postpone(1000 * S)
    assert str(governor.rung) == "large, every 2nd frame"
    assert _missing(governor, 1002) == "small"
    governor.arrive(1002 * S)
    assert [str(rung) for rung in governor.ladder] == ["large", "small", "small, every 2nd frame"]


def test_no_move_that_is_not_under_way_is_postponed() -> None:
    with pytest.raises(ValueError, match="no move"):
        World().governor.postpone(0)


def test_that_memory_is_short_is_said_once_until_the_model_was_there(tmp_path: Path) -> None:
    is_short = True
    tried: list[str] = []

    def look(variant: str) -> None:
        tried.append(variant)
        if is_short:
            raise NoRoomError("9 MiB are free")

    scene = Scene(write_graded(tmp_path / "graded.edge"), prepare=look)
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
    steering = Steering(settings, bundle, SessionSettings(), 100.0, pytest.fail, lambda: False)
    with pytest.raises(NoRoomError, match=f"{SMALL} needs about .* MiB of memory to be loaded"):
        steering._make_ready(SMALL)
