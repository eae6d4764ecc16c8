"""SIGTERM and SIGINT at many moments: exit code 0, a goodbye, nothing half-written, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.bundles import endless_of_hostile, write_graded
from tests.support.device import MOMENTS, Device, Moment, Scene, broker_is_frozen, loading, running, tuning
from tests.support.pictures import write_video
from tests.support.program import PATIENCE_S, start_edge_sdk
from tests.support.streams import StreamServer, rtsp_server
from tests.support.subscribers import documents, statuses

pytestmark = pytest.mark.system

_UNANSWERED = ("broker_is_frozen", "broker_is_frozen_and_another_name_comes", "no_broker")


@pytest.fixture(scope="module")
def door() -> Iterator[StreamServer]:
    with rtsp_server() as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path, cell_bundle: Path, door: StreamServer, broker: Broker) -> Iterator[Scene]:
    yield Scene(tmp_path, cell_bundle, door, broker)
    broker.thaw()
    door.go_on()


def _check(scene: Scene, device: Device, listener: Subscriber, *, answers: bool = True) -> None:
    assert not device.lines_with("Traceback")
    assert not [str(path) for path in (scene.folder / "scratch").rglob("*")], "temporary files"
    assert not [str(path) for path in (scene.folder / "state").rglob(".*")], "halves of records"
    if not device.lines_with("online"):
        return
    wait_until(lambda: statuses(listener)[-1][0] == "offline", "the goodbye")
    name = documents(listener.messages("/status"))[-1]["device"]
    with Subscriber(scene.broker, f"edge/v1/default/{name}/status") as late:
        late.wait_for(lambda messages: len(messages) == 1, "the retained status")
        [(status, reason, is_retained)] = statuses(late)
    assert (status, is_retained) == ("offline", True)
    assert reason == "shutdown" or not answers


@pytest.mark.parametrize(
    ("moment", "number"),
    [*((moment, signal.SIGTERM) for moment in MOMENTS), *((moment, signal.SIGINT) for moment in (loading, running))],
    ids=lambda value: getattr(value, "__name__", None) or value.name,
)
def test_a_signal_at_any_moment(scene: Scene, moment: Moment, number: signal.Signals) -> None:
    scene.defaults["tune"] = moment is tuning
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        assert device.stop(number) == 0, device.said
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment.__name__ not in _UNANSWERED)


@pytest.mark.parametrize("moment", [running, broker_is_frozen])
def test_a_second_signal_changes_nothing(scene: Scene, moment: Moment) -> None:
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        device.process.send_signal(signal.SIGTERM)
        assert device.stop() == 0, device.said
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment is running)


_KILLED_BY_AN_IMPORT = """
import os, signal, sys

class Killer:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), int(sys.argv.pop()))

sys.meta_path.insert(0, Killer())
import edge_sdk.cli
"""


@pytest.mark.parametrize(("arguments", "is_heard"), [(["run"], True), (["run", "--check"], False), (["watch"], False)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_hears_a_signal_from_the_start(arguments: list[str], is_heard: bool, number: signal.Signals) -> None:
    """Other verbs have nothing to say goodbye to, and their exit code is an answer."""
    command = [sys.executable, "-c", _KILLED_BY_AN_IMPORT, *arguments, str(number.value)]
    process = subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    assert process.returncode == (0 if is_heard else -number)


# A run or a tuning that ends while a model is tried.


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose second variant hangs, on a board that tried nothing yet and has its own folder for scratch."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return write_graded(tmp_path / "graded.edge", hostile=endless_of_hostile(side=8))


def _trials(scratch: Path) -> list[int]:
    """Processes that try a model, and were started with this folder for scratch."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            is_trial = b"edge_sdk.inference.trial" in (folder / "cmdline").read_bytes()
            if is_trial and str(scratch).encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    ("verb", "number", "code", "last"),
    [
        ("run", None, 0, '"ended_by":"end of source"'),
        ("run", signal.SIGTERM, 0, '"ended_by":"signal"'),
        ("tune", signal.SIGINT, 130, "edge-sdk: interrupted"),
        ("tune", signal.SIGTERM, 130, "edge-sdk: interrupted"),
    ],
)
def test_no_trial_of_another_variant_goes_on_behind(
    tmp_path: Path, hanging: Path, verb: str, number: signal.Signals | None, code: int, last: str
) -> None:
    scratch, arguments = tmp_path / "scratch", list[object]()
    if verb == "run":
        video = write_video(tmp_path / "v.avi", range(1000 if number is None else 5000), fps=50, size_wh=(64, 48))
        arguments = ["--source", video, "--trial-seconds", 200, "--json"]
    process = start_edge_sdk(verb, hanging, "--latency-ms", 1000, *arguments)
    try:
        wait_until(lambda: any((tmp_path / "state").rglob("*.json")), "the trial of the first variant")
        wait_until(lambda: bool(_trials(scratch)), "that of the second, which hangs")
        if number is not None:
            process.send_signal(number)
        output, complaint = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, last in output + complaint) == (code, True), complaint
    assert "left out" not in complaint
    assert not _trials(scratch)
    assert not list(scratch.iterdir())


def test_a_signal_while_another_model_hangs_beside_the_stream_ends_the_run(tmp_path: Path, hanging: Path) -> None:
    """What was not tried hangs in the tuner's thread."""
    video = write_video(tmp_path / "v.avi", range(5000), fps=50, size_wh=(64, 48))
    process = start_edge_sdk("run", hanging, "--source", video, "--latency-ms", 1000, "--trial-seconds", 0, "-q")
    ended = threading.Thread(target=process.communicate)  # else results fill the pipe
    ended.start()
    try:
        wait_until(lambda: _busiest_s(process.pid) > 1, "the model that hangs")
        process.send_signal(signal.SIGTERM)
        ended.join(PATIENCE_S)
        assert process.returncode == 0
    finally:
        process.kill()
        ended.join()


def _busiest_s(pid: int) -> float:
    """CPU time of the busiest thread beside the main one, in seconds."""
    ticks = [0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it may have ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks.append(int(fields[11]) + int(fields[12]) if task.name != str(pid) else 0)
    return max(ticks) / os.sysconf("SC_CLK_TCK")
