"""The status is renewed when tuning is over, once, also where the same model runs on."""

from __future__ import annotations

import msgspec
import pytest

from edge_sdk.budget import Budget
from edge_sdk.daemon.announcing import Announcing
from edge_sdk.loop import Loop, Tick
from edge_sdk.publishing import Running
from tests.device.results import make_detections
from tests.device.test_loop import Camera, Clock, Collector

START = Running(variant="int8", every=1, rung=0, rungs=6, reason="start")
CHOSEN = Running(variant="fp32", every=1, rung=0, rungs=7, reason="chosen by measurement")
TUNING = msgspec.structs.replace(START, tuning=True)


@pytest.mark.parametrize(("told", "expected"), [(None, [TUNING, START]), (CHOSEN, [TUNING, CHOSEN])])
def test_the_status_says_when_it_is_over(told: Running | None, expected: list[Running]) -> None:
    loop = Loop(Camera(Clock(), 33, 10), lambda frame: make_detections(0, frame), Collector(), Budget(100))
    published, variants, is_tuning = list[Running](), list[str](), True
    announcing = Announcing(variants.append, published.append, lambda: is_tuning)
    announcing.after(loop, Tick.ON_TIME)
    announcing.tell(START)
    announcing.after(loop, Tick.ON_TIME)
    assert published == expected[:1]
    is_tuning = False
    if told is not None:
        announcing.tell(told)
    for _ in range(3):
        announcing.after(loop, Tick.ON_TIME)
    assert published == expected
    assert variants == ["int8", *([told.variant] if told else [])]
