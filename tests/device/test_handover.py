"""A source on its way from one pipeline to another has one owner at every moment."""

from __future__ import annotations

import itertools
import threading

import pytest

from edge_sdk.daemon.handover import Handover
from tests.device.simulated import Camera, Clock


class _Source(Camera):
    """Counts how often it is closed."""

    def __init__(self) -> None:
        super().__init__(Clock(), 10, 10)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("order", list(itertools.permutations(("want", "leave", "take", "close"))))
def test_whatever_the_order_a_source_has_one_owner(order: tuple[str, ...]) -> None:
    handover, source = Handover(lambda: False), _Source()
    taken = list[object]()
    for step in order:
        if step == "want":
            handover.want()
        elif step == "leave":
            handover.give(source)  # type: ignore[arg-type]
            handover.give(source)  # type: ignore[arg-type]  # only the first call counts
        elif step == "take":
            taken.append(handover.take(lambda: True))
        else:
            handover.close_left()
    handover.close_left()
    assert source.closed + taken.count(source) == 1
    at = {step: index for index, step in enumerate(order)}
    is_for_it = at["want"] < at["leave"] < at["take"] and not at["want"] < at["close"] < at["take"]
    assert taken == [source if is_for_it else None]


def test_two_that_take_at_once_do_not_both_get_it() -> None:
    for _ in range(200):
        handover, source, taken = Handover(lambda: False), _Source(), list[object]()
        handover.want()
        handover.give(source)  # type: ignore[arg-type]
        takers = [
            threading.Thread(target=lambda h=handover, t=taken: t.append(h.take(lambda: False))) for _ in range(3)
        ]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
        assert taken.count(source) == 1
