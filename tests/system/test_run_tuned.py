"""A run tunes itself while results go out, and takes another model or fewer threads where the machine changes."""

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import CameraError
from edge_sdk.sources.opening import open_source
from edge_sdk.tuning.candidates import Limits
from edge_sdk.tuning.tuning import Tuning, tune
from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.bundles import LARGE, SMALL, open_candidate, write_graded, write_variants
from tests.support.configs import config_text, write_config
from tests.support.device import Device
from tests.support.logs import refusal
from tests.support.pictures import write_video
from tests.support.streams import http_server
from tests.support.subscribers import documents, running_in, statuses

pytestmark = pytest.mark.system

_FPS = 50
_WAIT_S = 300.0


@pytest.fixture(autouse=True)
def _knows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that knows nothing of any bundle yet."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


def test_the_first_run_tunes_itself_and_the_next_has_it_at_once(tmp_path: Path, broker: Broker) -> None:
    video = write_video(tmp_path / "v.avi", range(60 * _FPS), fps=_FPS, size_wh=(64, 48))
    stream = {"source": video, "bundle": write_variants(tmp_path / "a.edge"), "latency_ms": 1000, "repeat": True}
    config = write_config(tmp_path, config_text({"gate": stream}, mqtt={"url": broker.url}))
    with Subscriber(broker) as listener, Device(config, "--json") as device:
        wait_until(lambda: bool(device.lines_with("tuned in ")) or device.is_over, "the end of tuning", _WAIT_S)
        line = device.hear("edge-sdk: tuned in ")
        wait_until(lambda: "tuning" not in running_in(listener, "gate")[-1], "a state that says so")
        assert device.stop() == 0
        listener.wait_for(lambda _: statuses(listener)[-1][0] == "offline", "the goodbye")
        first, *_, last = running_in(listener, "gate")
        sequence = [result["seq"] for result in documents(listener.messages("/result/gate"))]
        already = len(running_in(listener, "gate"))
        with Device(config) as again:
            wait_until(lambda: len(running_in(listener, "gate")) > already, "what the next one runs")
            remembered = running_in(listener, "gate")[already]
            assert again.stop() == 0
    begun = f"tuning for {_FPS} frames a second: what runs best is measured while results go out"
    assert (len(device.lines_with(begun)), len(device.lines_with("tuned in "))) == (1, 1)
    for words in (" s: fp32, ", " instead of int8, 1 thread (p99 ", "the highest quality of those that keep 1000 ms"):
        assert words in line
    assert (first["variant"], first["tuning"]) == ("int8", True)
    assert (last["variant"], last["reason"]) == ("fp32", "chosen by measurement")
    summary = msgspec.json.decode(device.printed[-1])
    assert summary["ended_by"] == "signal"
    assert summary["results"] >= len(sequence) > _FPS
    assert sequence == sorted(set(sequence))
    assert (remembered["variant"], remembered["reason"]) == ("fp32", "remembered from a measurement")
    chosen = line.partition(" s: ")[2].partition(" (p99")[0]
    assert again.lines_with("edge-sdk: tuned at 20", f"Z: {chosen} (p99 ")
    was_busy = bool(device.lines_with("the next start tunes again"))
    assert was_busy or not again.lines_with("tuning for")


def test_tuning_on_a_camera_that_falls_silent_ends_with_one_line(tmp_path: Path) -> None:
    limits = Limits(1000)
    bundle = Bundle.open(write_variants(tmp_path / "a.edge"))
    tuning = Tuning(bundle, limits, camera="c", variant=None, open_stages=open_candidate)
    with http_server() as server, contextlib.closing(open_source(server.url())) as source:
        server.pause()
        said = refusal(CameraError, tune, tuning, limits, source, source.fps, 2000, silence_s=1)
    assert said.startswith("the source delivered no frame for 1 s, so there is nothing to measure; ")
    assert not (tmp_path / "state" / "tuning").exists()


# A machine that becomes slow under a running stream, and fast again.


@pytest.fixture
def slow_video(tmp_path: Path) -> Path:
    return write_video(tmp_path / "slow.avi", range(3000), fps=10, size_wh=(32, 32))


@contextlib.contextmanager
def _stopped_mostly(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The program gets one part in sixteen of the time, however busy or fast this machine is."""
    over = threading.Event()

    def stop_and_go() -> None:
        while not over.wait(0.02):
            process.send_signal(signal.SIGSTOP)
            over.wait(0.3)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.long
def test_a_stream_steps_down_under_a_load_and_up_again(tmp_path: Path, slow_video: Path, broker: Broker) -> None:
    bundle = write_graded(tmp_path / "graded.edge", side=128, width=32, latency_ms=200)
    stream = {"source": slow_video, "bundle": bundle, "tune": False}
    config = write_config(tmp_path, config_text({"gate": stream}, mqtt={"url": broker.url}))
    with Subscriber(broker) as listener:

        def steps() -> list[dict[str, Any]]:
            return running_in(listener, "gate")

        def upwards() -> list[dict[str, Any]]:
            return [after for before, after in pairwise(steps()) if after["rung"] < before["rung"]]

        def results_of(variant: str) -> int:
            results = documents(listener.messages("/result/gate"))
            return sum(result["model"]["variant"] == variant for result in results)

        with Device(config) as device:
            wait_until(lambda: results_of(LARGE) > 0 and bool(steps()), "results and the state of the start")
            assert steps()[0] == {"variant": LARGE, "every": 1, "rung": 0, "rungs": 8, "reason": "start"}
            with _stopped_mostly(device.process):
                wait_until(lambda: results_of(SMALL) > 0, "the smaller model", _WAIT_S)
            # On a busy machine it may be many rungs down by now, and each takes ten seconds at least.
            wait_until(lambda: bool(upwards()), "a step up", _WAIT_S)
            assert device.stop() == 0
        # One rung at a time, and each with its numbers.
        assert all(abs(after["rung"] - before["rung"]) == 1 for before, after in pairwise(steps()))
        assert "missed 200 ms" in steps()[1]["reason"]
        assert "ms expected of 200" in upwards()[0]["reason"]
    assert device.lines_with(f"from {LARGE} to {SMALL}: {steps()[1]['reason']}")
    assert not device.lines_with("Traceback")
