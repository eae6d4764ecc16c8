"""Ahead: work in another thread gives what it gives in this one, and never holds up an end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from edge_sdk.core.errors import BundleError
from edge_sdk.core.threads import BackgroundTask, Stop, is_any_left


def test_what_comes_of_it_is_taken_once() -> None:
    thread: list[threading.Thread] = []

    def work() -> list[int]:
        thread.append(threading.current_thread())
        return [1]

    with BackgroundTask(work, "edge-test") as ahead:
        assert ahead.is_ready()
        assert ahead.take() == [1]
    assert thread[0] is not threading.current_thread()
    assert not is_any_left()


def test_what_goes_wrong_goes_wrong_for_who_takes_it() -> None:
    def fail() -> None:
        raise BundleError("b.edge: altered")

    with BackgroundTask(fail, "edge-test") as ahead:
        assert ahead.is_ready()
        with pytest.raises(BundleError, match=r"^b\.edge: altered$"):
            ahead.take()


def test_what_nobody_took_is_undone() -> None:
    undone: list[int] = []
    with BackgroundTask(lambda: 1, "edge-test", undo=undone.append) as ahead:
        assert ahead.is_ready()
    with BackgroundTask(lambda: 2, "edge-test", undo=undone.append) as ahead:
        assert ahead.take() == 2
    assert undone == [1]


def test_a_result_that_comes_after_the_close_is_undone() -> None:
    end, undone = threading.Event(), threading.Event()
    with BackgroundTask(end.wait, "edge-test", undo=lambda _: undone.set()) as ahead:
        ahead.close(0)
    assert not undone.is_set()
    end.set()
    assert undone.wait(10)


def test_who_is_told_to_stop_does_not_wait() -> None:
    stop, end = Stop(), threading.Event()
    with BackgroundTask(end.wait, "edge-test") as ahead:
        stop.ask()
        stop.ask("another reason")
        assert not ahead.is_ready(stop.is_asked)
    assert stop.reason == "signal"
    assert is_any_left()
    end.set()
    assert ahead.take()


def test_the_first_model_loads_before_opencv_and_what_speaks_mqtt() -> None:
    """Otherwise nothing is left to be loaded beside it."""
    code = "import sys, edge_sdk.service.startup; print({'cv2', 'paho', 'onnxruntime'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "{'onnxruntime'}"
