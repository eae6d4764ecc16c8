"""What the streams of one process have in common: a gate, a turn to start, a turn to tune, a line that is said once."""

from __future__ import annotations

import contextlib
import logging
import threading

from edge_sdk.core.logs import CAMERA, name_cameras
from edge_sdk.loop import Loop, Tick
from edge_sdk.service.model_selector import TuningLock
from edge_sdk.service.shared import Shared
from tests.support.connections import until
from tests.support.logs import SAID


def test_the_board_is_read_once_for_all_streams_and_by_nobody_before_one_looks() -> None:
    shared, before = Shared(), _readers()
    assert isinstance(shared.throttled() + shared.throttled(), str)
    assert _readers() == before + 1
    shared.close()
    until(lambda: _readers() == before)


def _readers() -> int:
    return sum(thread.name == "edge-board" for thread in threading.enumerate())


def test_one_stream_at_a_time_starts_and_one_that_fails_gives_its_turn_on() -> None:
    shared, inside, most = Shared(), list[int](), list[int]()

    def start() -> None:
        with contextlib.suppress(ValueError), shared.turn(lambda: False):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.01)
            inside.pop()
            raise ValueError("no model")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_line_that_holds_for_all_streams_is_said_once() -> None:
    shared, token = Shared(), CAMERA.set("gate")
    name_cameras(wanted=True)
    for line in ("no key", "no disk", "no key"):
        shared.log_once(logging.WARNING, line)
    CAMERA.reset(token)
    assert SAID == ["warning: no key", "warning: no disk"]


class _Tuner:
    """Takes three looks."""

    def __init__(self) -> None:
        self.looks, self.closed = 0, 0

    @property
    def done(self) -> bool:
        return self.looks >= 3 or bool(self.closed)

    def after(self, _loop: Loop | None, _tick: Tick) -> None:
        self.looks += 1

    def close(self) -> None:
        self.closed += 1


def _turns(count: int = 2) -> tuple[list[_Tuner], list[TuningLock]]:
    lock, tuners = threading.Lock(), [_Tuner() for _ in range(count)]
    return tuners, [TuningLock(tuner, lock) for tuner in tuners]  # type: ignore[arg-type]


def _after(turn: TuningLock, tick: Tick = Tick.ON_TIME) -> None:
    turn.after(None, tick)  # type: ignore[arg-type]


def test_one_pipeline_tunes_to_its_end_and_then_the_next_does() -> None:
    (first, second), (one, two) = _turns()
    _after(one, Tick.IDLE)  # a tuner whose camera delivers nothing does not take the turn
    seen = []
    for _ in range(5):
        _after(one)
        _after(two)
        seen.append((first.looks, second.looks))
    assert seen == [(1, 0), (2, 0), (3, 1), (3, 2), (3, 3)]
    assert (one.done, two.done) == (True, True)


def test_a_pipeline_that_ends_while_it_tunes_gives_its_turn_on_once() -> None:
    tuners, (one, two, three, four) = _turns(4)
    _after(one)
    two.close()  # it never had the turn, and cannot give it on
    _after(three)
    one.close()
    _after(three)
    one.close()
    _after(four)
    assert [tuner.looks for tuner in tuners] == [1, 0, 1, 0]
    assert [tuner.closed for tuner in tuners] == [2, 1, 0, 0]
