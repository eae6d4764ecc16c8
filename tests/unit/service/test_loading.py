"""Loading beside the loop: slow, hanging and hopeless models, and the stream goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edge_sdk.core.errors import IncompatibleError, StoppedError
from edge_sdk.inference.stages import Stages
from edge_sdk.loop import Tick
from tests.support.bundles import LARGE, SMALL, open_variant, write_graded
from tests.support.loops import WAIT_S, Scene


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_graded(tmp_path / "graded.edge")


def test_the_loop_goes_on_while_a_model_is_loaded(folder: Path) -> None:
    is_loading, may_end = threading.Event(), threading.Event()

    def open_slowly(variant: str) -> Stages:
        is_loading.set()
        assert may_end.wait(WAIT_S)
        return open_variant(folder, variant)

    scene = Scene(folder, open_stages=open_slowly)
    scene.until(is_loading.is_set)
    before = scene.loop.counts[Tick.LATE]
    scene.run(60)
    assert scene.loop.counts[Tick.LATE] >= before + 50
    assert scene.said == []
    may_end.set()
    scene.until(lambda: scene.variant == SMALL)
    scene.governing.close()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (IncompatibleError("another machine"), "does not load here and is left out: another machine"),
        (ValueError("no\nsuch"), "does not load here and is left out: this is a bug in edge-sdk: ValueError: no"),
        (MemoryError("2 GB at once"), "is left out until memory is free: out of memory: "),
    ],
    ids=["incompatible", "bug", "memory"],
)
def test_a_model_that_does_not_load_is_said_once_and_left_out(folder: Path, failure: Exception, said: str) -> None:
    def refuse(variant: str) -> Stages:
        raise failure

    scene = Scene(folder, open_stages=refuse)
    scene.until(lambda: len(scene.said) == 1)
    assert scene.said[0].startswith(f"{SMALL} {said}")
    if not isinstance(failure, MemoryError):  # for good
        scene.run(300)
        assert sum("does not load" in line for line in scene.said) == 1
        assert scene.variant == LARGE
        assert scene.loop.every > 1  # of what is left, frames are left out
    scene.governing.close()


def test_a_stop_while_a_model_is_loaded_is_no_fault_of_the_model(folder: Path) -> None:
    is_asked = threading.Event()

    def open_stopped(variant: str) -> Stages:
        is_asked.set()
        raise StoppedError

    scene = Scene(folder, open_stages=open_stopped)
    scene.until(is_asked.is_set)
    scene.governing.close()  # waits for the thread
    scene.run(60)
    assert (scene.said, scene.variant, scene.loop.every) == ([], LARGE, 1)
