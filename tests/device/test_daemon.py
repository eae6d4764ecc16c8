"""Streams of one process as a whole: they end together, and a reload changes what it must and nothing else."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.daemon.loading import Loading
from edge_sdk.errors import CameraError, ConfigError, UsageError
from tests.device.daemon_process import Process
from tests.device.delivery import WAIT_S, until
from tests.device.graded import write_graded
from tests.device.site import Site, open_cameras


@pytest.fixture
def stdout() -> io.BytesIO:
    """What lines of results go to."""
    return io.BytesIO()


@pytest.fixture
def make(tmp_path: Path, stdout: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    threads = cv2.getNumThreads()
    with contextlib.ExitStack() as stack:

        def make_one(**changes: Any) -> Process:
            monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=stdout))
            made = Process(tmp_path, **changes)
            stack.callback(made.end)
            return made

        yield make_one
    cv2.setNumThreads(threads)
    until(lambda: not open_cameras())


def _pictures(folder: Path, count: int) -> str:
    folder.mkdir()
    cv2.imwrite(str(folder / "0.png"), np.zeros((8, 8, 3), np.uint8))
    for index in range(1, count):
        (folder / f"{index}.png").hardlink_to(folder / "0.png")
    return str(folder)


def _lines(stdout: io.BytesIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in stdout.getvalue().splitlines()]


def test_each_stream_has_a_summary_and_the_process_ends_with_the_last(
    make: Callable[..., Process], stdout: io.BytesIO, tmp_path: Path
) -> None:
    process = make()
    site = process.site
    process.config = process.settings(
        site.settings("gate", source=_pictures(tmp_path / "a", 3)),
        site.settings("yard", source=_pictures(tmp_path / "b", 5)),
        site.settings("hall", bundle=tmp_path / "none.edge"),
    )
    process.start()
    process.join()
    assert (process.failure, type(process.daemon.left_out)) == (None, UsageError)
    assert {name: (s.results, s.ended_by) for name, s in process.summaries.items()} == {
        "gate": (3, "end of source"),
        "yard": (5, "end of source"),
        "hall": (0, "failure"),
    }
    assert {(s.lines.put, s.lines.written) for s in process.summaries.values() if s.lines} == {(8, 8)}
    assert all(s.lines for s in process.summaries.values())
    assert sorted((d["camera"], d["seq"]) for d in _lines(stdout)) == [
        *(("gate", i) for i in range(3)),
        *(("yard", i) for i in range(5)),
    ]
    assert any(line.startswith("hall: cannot run, and is left out") for line in process.said)


def test_without_waiting_the_first_failure_is_the_process_s(make: Callable[..., Process], tmp_path: Path) -> None:
    process = make(waits=False)
    process.config = process.settings(process.site.settings(source=str(tmp_path / "none.mp4")), waits=False)
    process.start()
    process.join()
    assert isinstance(process.failure, CameraError)


def test_it_ends_after_so_long(make: Callable[..., Process]) -> None:
    process = make()
    process.config = process.settings(process.site.settings(), duration_s=0.3)
    process.start()
    process.join()
    assert (process.summaries["gate"].ended_by, process.failure) == ("duration", None)


def test_a_reload_changes_what_is_other_and_lets_the_rest_run(make: Callable[..., Process]) -> None:
    process = make()
    gate, yard, hall = map(process.site.settings, ("gate", "yard", "hall"))
    process.config = process.settings(gate)
    process.start()
    process.until_results("gate")
    before = process.daemon._streams.running["gate"]
    assert cv2.getNumThreads() == 1
    assert "source pattern:64x48@50 is open" in process.said
    process.reload(gate, yard)
    process.until_results("yard")
    assert "configuration read again: new: yard; as before: gate" in process.said
    assert "yard: source pattern:64x48@50 is open" in process.said
    process.reload(gate, msgspec.structs.replace(yard, latency_ms=4000.0), hall)
    process.until_results("hall", "yard")
    assert "configuration read again: new: hall; changing: yard; as before: gate" in process.said
    assert process.daemon._streams.running["gate"] is before
    process.reload(gate)
    until(lambda: open_cameras() == ["gate"])
    assert "configuration read again: ending: yard, hall; as before: gate" in process.said
    shutil.rmtree(process.site.bundle)
    write_graded(process.site.bundle, width=5)
    process.reload()
    until(lambda: process.daemon._streams.running["gate"] is not before)
    assert "configuration read again: changing: gate" in process.said
    process.until_results("gate")
    process.config = msgspec.structs.replace(process.config, commands=("pause",))
    process.reload()
    until(lambda: "configuration read again: commands: pause; as before: gate" in process.said)


def test_what_cannot_be_read_changes_nothing(make: Callable[..., Process]) -> None:
    process = make()
    process.config = process.settings(process.site.settings())
    process.start()
    process.until_results("gate")
    before = process.daemon._streams.running["gate"]
    process.config = ConfigError("config.toml: a is wrong\nconfig.toml: b is wrong")
    process.reload()
    until(lambda: "config.toml: b is wrong" in process.said)
    assert "the configuration is not taken, what runs goes on: config.toml: a is wrong" in process.said
    assert process.daemon._streams.running["gate"] is before
    assert not before.is_over


def test_who_asks_while_a_reading_begins_has_it_read_once_more(make: Callable[..., Process]) -> None:
    process = make()
    process.config = process.settings(process.site.settings())
    process.start()
    process.until_results("gate")
    process.asks = 1
    process.reload()
    until(lambda: process.reads == 2)


def test_without_a_configuration_a_reload_says_so(make: Callable[..., Process]) -> None:
    process = make()
    process.config = process.settings(process.site.settings())
    process.start(has_config=False)
    process.until_results("gate")
    process.stop.reload = True
    until(lambda: any("named on the command line" in line for line in process.said))
    assert process._thread.is_alive()


def test_threads_beside_a_model_are_those_of_the_only_stream(make: Callable[..., Process]) -> None:
    process = make()
    gate, yard = process.site.settings("gate"), process.site.settings("yard")
    process.config = process.settings(gate)
    process.start()
    process.until_results("gate")
    process.daemon._use_threads("gate", 3)  # a model that has more than this one
    assert cv2.getNumThreads() == 3
    process.reload(gate, yard)
    until(lambda: cv2.getNumThreads() == 1)
    process.until_results("yard")
    process.daemon._use_threads("gate", 3)  # one that was slow to start
    assert cv2.getNumThreads() == 1
    process.reload(gate)
    until(lambda: cv2.getNumThreads() == 3)


def test_under_another_name_streams_go_on_with_their_sources_and_those_that_went_close_theirs(
    make: Callable[..., Process], stdout: io.BytesIO
) -> None:
    process = make()
    gate, yard = process.site.settings("gate"), process.site.settings("yard")
    process.config = process.settings(gate, yard)
    process.start()
    process.until_results("gate", "yard")
    [thread] = [t for t in threading.enumerate() if t.name == "camera gate"]
    process.reload(gate, process.site.settings("door"), device="other")
    process.until_results("gate", "door")
    assert sum("all streams change" in line for line in process.said) == 1
    until(lambda: sorted(open_cameras()) == ["door", "gate"])
    assert thread.is_alive()
    process.stop.ask()
    process.join()
    assert sorted(process.summaries) == ["door", "gate"]
    named = {(d["device"], d["camera"]) for d in _lines(stdout)}
    assert named == {("pi", "gate"), ("pi", "yard"), ("other", "gate"), ("other", "door")}
    assert len({d["run_id"] for d in _lines(stdout)}) == 1  # numbers go on, too: together they name one result


def test_the_end_is_not_held_up_by_a_change_of_names_that_waits_for_a_reader(
    make: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of pictures are all kept, so that the change waits for whoever reads them, for ever."""
    with contextlib.ExitStack() as stack:
        ends = os.pipe()
        _, writing = (stack.enter_context(os.fdopen(ends[i], mode, 0)) for i, mode in enumerate(("rb", "wb")))
        process = make()
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=writing))
        pictures = process.site.settings(source=_pictures(tmp_path / "many", 3000))
        process.config = process.settings(pictures)
        process.start()
        until(lambda: getattr(process.daemon._outlet.stats(), "put", 0) > 1000)
        process.reload(pictures, device="other")
        until(lambda: any("all streams change" in line for line in process.said))
        time.sleep(0.3)
        assert process._thread.is_alive()
        process.stop.ask()
        process.join()
        assert (process.failure, list(process.summaries)) == (None, ["gate"])


def test_a_reload_before_the_first_start_is_over_ends_in_what_was_said_last(
    make: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, may_go_on, begin = make(), threading.Event(), Site.begin

    def begin_slowly(site: Site, *given: Any) -> Loading | None:
        assert may_go_on.wait(WAIT_S)
        return begin(site, *given)

    monkeypatch.setattr(Site, "begin", begin_slowly)
    gate, yard, hall, door = map(process.site.settings, ("gate", "yard", "hall", "door"))
    process.config = process.settings(gate, yard, hall)
    process.start()
    until(lambda: list(process.daemon._streams.running) == ["gate", "yard", "hall"])
    for latency_ms in (4000.0, 3000.0):
        process.reload(gate, msgspec.structs.replace(yard, latency_ms=latency_ms), door)
    until(lambda: process.said[-1].startswith("configuration read again: changing: yard; as before: gate, door"))
    may_go_on.set()
    process.until_results("gate", "yard", "door")
    until(lambda: not process.daemon._streams._leaving and not process.daemon._streams._coming)
    running = process.daemon._streams.running
    assert sorted(open_cameras()) == sorted(running) == ["door", "gate", "yard"]
    assert running["yard"].settings.latency_ms == 3000.0
    assert "hall: source pattern:64x48@50 is open" not in process.said
