"""A configuration is read again beside what runs, one at a time, and whoever asked is told."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from edge_sdk.daemon.reloading import Reloading
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.errors import ConfigError
from edge_sdk.left_behind import is_any_left
from tests.device.delivery import until
from tests.device.site import Site


class Scene:
    """Readings that last until a test lets them through."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.now = RunSettings(device="pi", pipelines=(self.site.settings(),), waits=True)
        self.found: RunSettings | Exception = self.now
        self.may_read = threading.Semaphore(0)
        self.taken, self.refused, self.told = list[RunSettings](), list[str](), list[str]()
        self.said, self.now_s = list[str](), 100.0
        self.reloading = Reloading(
            self._reread, self.taken.append, self.refused.append, self.said.append, lambda: self.now_s
        )

    def _reread(self) -> RunSettings:
        self.may_read.acquire()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def wait(self, name: str) -> None:
        self.reloading.wait(lambda why: self.told.append(f"{name}: {why}"))

    def read(self) -> None:
        self.reloading.begin(self.now)
        self.reloading.look()
        assert self.reloading.is_reading
        self.go_on()

    def go_on(self) -> None:
        self.may_read.release()

        def is_through() -> bool:
            self.reloading.look()
            return not self.reloading.is_reading

        until(is_through)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_who_asks_while_one_is_read_is_told_of_the_next(scene: Scene) -> None:
    scene.wait("first")
    scene.reloading.begin(scene.now)
    scene.wait("second")
    scene.go_on()
    assert (scene.taken, scene.told) == ([scene.now], ["first: "])
    scene.found = ConfigError("a is wrong")
    scene.read()
    assert scene.told[1:] == ["second: a is wrong"]
    assert (scene.refused, len(scene.taken)) == (["a is wrong"], 1)


@pytest.mark.parametrize(
    ("failure", "words"),
    [(ValueError("no"), "this is a bug in edge-sdk: ValueError: no"), (MemoryError(), "out of memory: ")],
)
def test_whatever_goes_wrong_what_runs_goes_on(scene: Scene, failure: Exception, words: str) -> None:
    scene.found = failure
    scene.read()
    assert scene.refused[0].startswith(words)
    scene.found = scene.now
    scene.read()
    assert scene.taken == [scene.now]


def test_what_changes_all_streams_must_keep_none_from_running(scene: Scene, tmp_path: Path) -> None:
    [gate] = scene.now.pipelines
    missing = (msgspec.structs.replace(gate, bundle=tmp_path / "none.edge"),)
    scene.found = msgspec.structs.replace(scene.now, pipelines=missing)
    scene.read()
    assert scene.taken == [scene.found]  # that stream's trouble alone
    scene.found = msgspec.structs.replace(scene.found, device="other")
    scene.read()
    assert "no such bundle" in scene.refused[0]


def test_a_reading_that_takes_long_is_told_of_once(scene: Scene) -> None:
    scene.read()
    scene.reloading.begin(scene.now)
    for scene.now_s in (109.9, 110.0, 5000.0):
        scene.reloading.look()
        assert len(scene.said) == (scene.now_s >= 110)
    assert scene.said[0].startswith("warning: the configuration is being read for 10 s")
    scene.go_on()
    assert (len(scene.taken), len(scene.said)) == (2, 1)


def test_at_the_end_all_who_wait_are_told(scene: Scene) -> None:
    scene.wait("first")
    scene.reloading.begin(scene.now)
    for _ in range(100):
        scene.wait("another")
    scene.reloading.end()
    assert len(scene.told) <= 33
    assert {line.partition(": ")[2] for line in scene.told} == {"the program ends"}
    assert is_any_left()  # libraries are not taken down below what still reads
    scene.may_read.release()
    until(lambda: not is_any_left())


def test_without_a_thread_it_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    scene.wait("first")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        scene.reloading.begin(scene.now)
    assert not scene.reloading.is_reading
    assert scene.told[0].startswith("first: out of memory: ")
