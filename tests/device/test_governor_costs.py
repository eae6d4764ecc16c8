"""The governor where models take something else than the bundle says of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from edge_sdk.frame import Classification, Frame, Result
from tests.device.simulated import MS
from tests.device.test_governor import S, World


def _large_takes(large_ms: Callable[[World], float], small_ms: Callable[[float], float] = lambda _s: 15.0) -> World:
    """Where the large model takes something else than its cost says."""
    world = World()

    def work(frame: Frame) -> Result:
        is_large = world.governor.rung.variant == "large"
        took_ms = large_ms(world) if is_large else small_ms(world.clock.now_ns / S)
        world.clock.advance(took_ms)
        return Classification(frame, int(took_ms * MS), np.empty(0, np.float32), np.empty(0, np.int64))

    world.work = work  # type: ignore[method-assign]
    world.loop.stages = work
    return world


def _ups(world: World) -> list[float]:
    return [step.at_s for step in world.steps if step.rung == 0]


def test_a_step_up_is_not_tried_again_that_is_known_to_miss() -> None:
    """Its cost says 40 ms where the small model takes 15; it takes 150."""
    ups = _ups(_large_takes(lambda _world: 150.0).run(4 * 3600))
    assert ups[0] < 30
    assert 2 <= len(ups) <= 9
    assert all(b - a >= 1800 for a, b in pairwise(ups))


def test_what_is_known_of_a_rung_follows_the_speed_of_the_board() -> None:
    def speed(s: float) -> float:
        return 3.0 if s > 300 else 1.0

    world = _large_takes(lambda world: 150.0 / speed(world.clock.now_ns / S), lambda s: 15.0 / speed(s)).run(600)
    assert world.path[-1] == 0
    assert [up for up in _ups(world) if 30 < up < 300] == []


def test_steps_up_that_fail_become_rarer() -> None:
    # Fast enough for some seconds: what makes it slow then is the large model itself, and no figure said so.
    def large_ms(world: World) -> float:
        began_s = world.steps[-1].at_s if world.steps else 0.0
        return 150.0 if world.clock.now_ns / S - began_s > 6 else 40.0

    world = _large_takes(large_ms).run(4 * 3600)
    ups = _ups(world)
    gaps = [b - a for a, b in pairwise(ups)]
    assert [round(gap) for gap in gaps] == sorted(round(gap) for gap in gaps)
    assert gaps[0] < 30
    assert all(640 <= gap < 660 for gap in gaps[8:])
    assert len(ups) < 30
