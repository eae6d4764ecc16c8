"""What the streams of one process have in common: a gate, a turn to start, a turn to tune, a line that is said once."""

from __future__ import annotations

import threading

import pytest

from edge_sdk.daemon.machine_watch import MachineWatch
from edge_sdk.daemon.shared import Gate, Shared
from edge_sdk.daemon.turn import Turn
from edge_sdk.loop import Loop, Tick
from tests.device.delivery import WAIT_S, until


def test_a_gate_opens_when_the_last_has_come() -> None:
    gate, passed = Gate(2, patience_s=WAIT_S), threading.Event()

    def wait() -> None:
        gate.wait(lambda: False)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    gate.arrive()
    assert not passed.wait(0.2)
    gate.arrive()
    assert passed.wait(WAIT_S)
    gate.arrive()  # one that fails later on
    gate.wait(lambda: False)
    thread.join()


def test_the_machine_is_read_once_for_all_who_look_at_it_and_by_nobody_else() -> None:
    machine, before = MachineWatch(), _readers()
    with machine.watching() as first:
        with machine.watching() as second:
            assert second is first
        assert _readers() == before + 2
    until(lambda: _readers() == before)
    with machine.watching() as again:
        assert again is not first
        assert _readers() == before + 2


def _readers() -> int:
    return sum(thread.name in ("edge-board", "edge-cores") for thread in threading.enumerate())


@pytest.mark.parametrize("gate", [Gate(0, patience_s=WAIT_S), Gate(5, patience_s=0.0)], ids=["nobody", "no patience"])
def test_a_gate_without_anybody_or_without_patience_is_open(gate: Gate) -> None:
    asked = []
    gate.wait(lambda: len(asked) > 3 or bool(asked.append(1)))
    assert len(asked) <= 1


def test_whoever_is_told_to_end_does_not_wait_at_the_gate() -> None:
    Gate(1, patience_s=WAIT_S).wait(lambda: True)


def test_one_stream_at_a_time_starts_and_one_that_fails_gives_its_turn_on() -> None:
    shared, inside = Shared(), list[int]()
    most, lock = list[int](), threading.Lock()

    def work() -> None:
        with lock:
            inside.append(1)
            most.append(len(inside))
        threading.Event().wait(0.02)
        with lock:
            inside.pop()
        raise ValueError("no model")

    def start() -> None:
        with pytest.raises(ValueError, match="no model"):
            shared.start(work, lambda: False)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_whoever_is_told_to_end_gives_up_waiting_for_his_turn() -> None:
    shared, answers = Shared(), list[bool]()
    done = list[str]()

    def first() -> None:
        answers.append(shared.start(lambda: done.append("second"), lambda: True))

    assert shared.start(first, lambda: False)
    assert (answers, done) == ([False], [])
    assert shared.start(lambda: done.append("third"), lambda: True)  # a turn that is free needs no waiting
    assert done == ["third"]


def test_what_holds_for_all_is_said_once() -> None:
    said = list[str]()
    shared = Shared(say=said.append)
    for line in ("no key", "no key", "no disk", "no key"):
        shared.say_once(line)
    assert said == ["no key", "no disk"]
    Shared().say_once("to nobody")


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


def _turns(count: int = 2) -> tuple[list[_Tuner], list[Turn]]:
    lock, tuners = threading.Lock(), [_Tuner() for _ in range(count)]
    return tuners, [Turn(tuner, lock) for tuner in tuners]  # type: ignore[arg-type]


def _after(turn: Turn, tick: Tick = Tick.ON_TIME) -> None:
    turn.after(None, tick)  # type: ignore[arg-type]


def test_one_tunes_to_its_end_and_then_the_next_does() -> None:
    (first, second), (one, two) = _turns()
    seen = []
    for _ in range(5):
        _after(one)
        _after(two)
        seen.append((first.looks, second.looks))
    assert seen == [(1, 0), (2, 0), (3, 1), (3, 2), (3, 3)]
    assert one.done
    assert two.done


def test_one_that_ends_in_the_middle_gives_its_turn_on_once() -> None:
    (first, second), (one, two) = _turns()
    _after(one)
    two.close()  # it never had the turn, and cannot give it on
    one.close()
    one.close()
    (third,), (three,) = _turns(1)
    three._lock = one._lock
    _after(three)
    assert (first.looks, second.looks, third.looks) == (1, 0, 1)
    assert (first.closed, second.closed) == (2, 1)


def test_while_no_frame_comes_another_has_the_turn() -> None:
    """A tuner waits for its first frame, which a camera that was taken down never delivers."""
    (first, second), (one, two) = _turns()
    _after(one, Tick.IDLE)
    _after(two)
    _after(one)
    assert (first.looks, second.looks) == (0, 1)
    _after(two, Tick.IDLE)  # one that has begun goes on
    assert second.looks == 2
