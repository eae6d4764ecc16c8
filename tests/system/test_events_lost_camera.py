"""Events of a real stream that goes away and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from edge_sdk import Budget, Detections, Event, EventRule, EventWatch, Frame, Loop, Tick, open_source
from tests.support.streams import http_server

pytestmark = pytest.mark.system

PATIENCE_S = 60.0
GONE_S = 6.0  # longer than `disappear_s`


class _Told(list[str]):
    def put(self, event: Event, /) -> None:
        self.append(event.kind)


class _Stage:
    """Sees a cat unless that is hidden."""

    is_hidden = False

    def __call__(self, frame: Frame) -> Detections:
        count = 0 if self.is_hidden else 1
        boxes = np.array([[0, 0, 9, 9]], np.float32)[:count]
        return Detections(frame, 0, boxes, np.array([0.9], np.float32)[:count], np.array([0])[:count])


def _step_until(loop: Loop, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        loop.step(0.1)


def _results(loop: Loop) -> int:
    return loop.counts[Tick.ON_TIME] + loop.counts[Tick.LATE]


def test_what_was_there_before_an_outage_has_not_disappeared_in_it() -> None:
    told, stage = _Told(), _Stage()
    watch = EventWatch([EventRule(labels=("cat",), disappear_s=4.0)], {0: "cat"}, told)
    with http_server() as server, closing(open_source(server.url(login="bob@"), password="s3cret")) as source:
        loop = Loop(source, stage, None, Budget(60_000.0), observers=[watch])
        _step_until(loop, lambda: told == ["appeared"])
        stage.is_hidden = True  # for a moment, and in this moment the camera is lost
        before = _results(loop)
        _step_until(loop, lambda: _results(loop) > before)
        server.kill()
        gone_at = time.monotonic()
        _step_until(loop, lambda: time.monotonic() - gone_at > GONE_S)
        server.start()
        before = _results(loop)
        _step_until(loop, lambda: _results(loop) >= before + 3)
        stage.is_hidden = False
        _step_until(loop, lambda: _results(loop) >= before + 6)
        assert told == ["appeared"]
        stage.is_hidden = True
        _step_until(loop, lambda: told == ["appeared", "disappeared"])
