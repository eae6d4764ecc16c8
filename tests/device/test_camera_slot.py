"""The slot: the newest wins, and nobody writes what somebody looks at."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edge_sdk.camera.slot import Slot
from edge_sdk.frame import Image


def _put(slot: Slot, number: int, size: int = 4, *, settles: bool = False) -> Image:
    """What a reader does: write into the slot's buffer, or hand in another array where its size is wrong."""
    buffer = slot.buffer()
    if buffer.shape != (size, size, 3):
        buffer = np.empty((size, size, 3), np.uint8)
    buffer[:] = number
    slot.put(buffer, captured_ns=number, captured_at=float(number), seq=number, settles=settles)
    return buffer


def test_the_newest_wins_and_the_others_are_counted() -> None:
    slot = Slot("door")
    for number in range(5):
        _put(slot, number)
    frame = slot.latest(0)
    assert frame is not None
    assert (frame.seq, frame.captured_ns, frame.captured_at, frame.camera) == (4, 4, 4.0, "door")
    assert (frame.image == 4).all()
    assert slot.latest(0) is None
    assert (slot.delivered, slot.dropped) == (1, 4)


def test_a_kept_picture_is_handed_out_unless_a_newer_one_comes_at_once() -> None:
    slot = Slot("c")
    _put(slot, 1, settles=True)
    assert slot.latest(0) is None
    _put(slot, 2, settles=True)
    frame = slot.latest(30)
    assert frame is not None
    assert frame.seq == 2
    _put(slot, 3, settles=True)
    _put(slot, 4)
    frame = slot.latest(0)
    assert frame is not None
    assert frame.seq == 4
    assert (slot.delivered, slot.dropped) == (2, 2)


def test_a_kept_picture_that_was_the_last_is_handed_out() -> None:
    slot = Slot("c")
    _put(slot, 1, settles=True)
    slot.finish()
    frame = slot.latest(0)
    assert frame is not None
    assert slot.ended


@pytest.mark.parametrize("puts_between", [0, 1, 2, 3, 7])
def test_what_the_consumer_holds_is_never_written(puts_between: int) -> None:
    slot = Slot("c")
    number = 1
    _put(slot, number)
    for _ in range(10):
        frame = slot.latest(0)
        assert frame is not None
        for _ in range(puts_between):
            number += 1
            _put(slot, number)
            assert (frame.image == frame.seq).all()
        if not puts_between:
            assert slot.latest(0) is None
            assert (frame.image == frame.seq).all()
            number += 1
            _put(slot, number)


def test_three_buffers_are_all_there_ever_are() -> None:
    slot = Slot("c")
    addresses = set()
    for number in range(100):
        addresses.add(_put(slot, number).ctypes.data)
        if number % 3 == 0:
            slot.latest(0)
    assert len(addresses) == 3


def test_a_new_size_goes_on_with_new_buffers() -> None:
    slot = Slot("c")
    sizes = []
    held = []
    for number, size in enumerate([4, 4, 4, 4, 6, 6, 6, 6, 4]):
        _put(slot, number, size)
        frame = slot.latest(0)
        assert frame is not None
        sizes.append(frame.size_wh)
        held.append(frame.image.ctypes.data)
        assert (frame.image == number).all()
    assert sizes == [(4, 4)] * 4 + [(6, 6)] * 4 + [(4, 4)]


def test_latest_wakes_up_for_a_frame_and_for_the_end() -> None:
    slot = Slot("c")
    timer = threading.Timer(0.02, _put, (slot, 7))
    timer.start()
    frame = slot.latest(10)
    assert frame is not None
    assert frame.seq == 7
    timer.join()
    timer = threading.Timer(0.02, slot.finish)
    timer.start()
    assert slot.latest(10) is None
    timer.join()
    assert slot.ended


def test_it_ends_after_the_last_frame_was_taken() -> None:
    slot = Slot("c")
    _put(slot, 1)
    slot.finish()
    _put(slot, 2)
    assert not slot.ended
    frame = slot.latest(0)
    assert frame is not None
    assert frame.seq == 1
    assert slot.ended
    assert slot.latest(10) is None


def test_a_reader_and_a_consumer_at_full_speed() -> None:
    slot = Slot("c")
    stop = threading.Event()

    def read() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            _put(slot, number % 251, size=32)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        frame = slot.latest(5)
        assert frame is not None
        for _ in range(3):
            assert (frame.image == frame.seq).all()
    stop.set()
    reader.join()
    assert slot.delivered == 300
