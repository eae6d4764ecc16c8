"""Events that the broker answered, in whatever order: which is the lowest is known at each moment."""

from __future__ import annotations

import random
import time

import pytest

from edge_sdk.publishing.durable.answered import Answered
from edge_sdk.publishing.durable.held import Held

_WINDOW = 20


@pytest.mark.parametrize("settled_share", [0.02, 0.0], ids=["the broker is heard", "as many as there may be"])
@pytest.mark.parametrize("recalled_share", [0.001, 0.0], ids=["links break", "one link"])
def test_the_lowest_in_doubt_is_known_without_a_look_at_each(settled_share: float, recalled_share: float) -> None:
    numbers, answered, to_come, moments = random.Random(1), Answered(), list(range(6000)), [0.0]
    while to_come:
        moments.append(time.monotonic())
        number = to_come.pop(numbers.randrange(min(_WINDOW, len(to_come))))
        answered.add(Held("topic", b"", "door", id=number))
        if numbers.random() < settled_share:
            answered.settle(moments[-min(len(moments), numbers.randrange(1, 50))])
        if numbers.random() < recalled_share:
            to_come = sorted([*to_come, *(event.id for event in answered.recall())])
        if numbers.random() < 0.2:
            assert answered.lowest_id == min((event.id for event in answered.events()), default=None)
