"""A machine that becomes slow under a running stream, and fast again: what subscribers see of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.bundles import LARGE, SMALL, edit_manifest, write_graded
from tests.support.program import PATIENCE_S, start_edge_sdk
from tests.support.subscribers import running_in

pytestmark = pytest.mark.system

_FPS = 10.0
_WAIT_S = 90.0


@pytest.fixture
def long_video(tmp_path: Path) -> Path:
    """Five minutes of small pictures."""
    path = tmp_path / "long.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), _FPS, (32, 32))
    for _ in range(int(_FPS * 300)):
        writer.write(np.full((32, 32, 3), 90, np.uint8))
    writer.release()
    return path


@contextmanager
def _stopped_mostly(process: subprocess.Popen[str]) -> Iterator[None]:
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


def _running(subscriber: Subscriber) -> list[dict[str, Any]]:
    return running_in(subscriber, "gate")


def _variants(subscriber: Subscriber) -> list[str]:
    results = [msgspec.json.decode(m.payload) for m in subscriber.messages("/result/gate")]
    return list(dict.fromkeys(result["model"]["variant"] for result in results))


@pytest.mark.long
def test_a_stream_steps_down_under_a_load_and_up_again_when_it_is_over(
    tmp_path: Path, long_video: Path, broker: Broker
) -> None:
    bundle = write_graded(tmp_path / "graded.edge", side=128, width=32, latency_ms=200)
    with Subscriber(broker) as listener:
        process = start_edge_sdk(
            *("run", bundle, "--source", long_video, "--mqtt", broker.url, "--device", "d", "--camera", "gate"),
            *("--json", "--no-tune"),
        )
        try:
            wait_until(lambda: bool(_variants(listener)), "results")
            wait_until(lambda: bool(_running(listener)), "the status of the start")
            assert _running(listener)[0] == {"variant": LARGE, "every": 1, "rung": 0, "rungs": 8, "reason": "start"}
            with _stopped_mostly(process):
                wait_until(lambda: SMALL in _variants(listener), "the smaller model", _WAIT_S)
            wait_until(lambda: _running(listener)[-1]["rung"] == 0, "the larger model", _WAIT_S)
            seen = len(listener.messages())
            wait_until(lambda: len(listener.messages()) > seen, "its results")
            with Subscriber(broker, "edge/v1/+/+/state") as late:
                late.wait_for(lambda messages: len(messages) == 1, "the retained state")
                assert [running["variant"] for running in _running(late)] == [LARGE]
            process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    steps = _running(listener)
    # One rung at a time, and each with its numbers.
    assert all(abs(b["rung"] - a["rung"]) == 1 for a, b in pairwise(steps))
    assert "missed 200 ms" in steps[1]["reason"]
    assert "ms expected of 200" in steps[-1]["reason"]
    assert f"from {LARGE} to {SMALL}: {steps[1]['reason']}" in stderr
    assert msgspec.json.decode(stdout)["results"] > 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to take away")
def test_a_core_that_is_taken_away_in_the_middle_is_said_once_and_the_model_goes_on_with_fewer_threads(
    tmp_path: Path, long_video: Path
) -> None:
    bundle = write_graded(tmp_path / "graded.edge", latency_ms=1000)
    edit_manifest(bundle, intra_op_num_threads=len(os.sched_getaffinity(0)))
    with (tmp_path / "results").open("w+") as results:
        process = subprocess.Popen(
            [sys.executable, "-m", "edge_sdk", "run", bundle, "--source", long_video, "--json", "--no-tune"],
            stdout=results,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: results.seek(0) or len(results.readlines()) > 2, "results")
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if "runs on 1 thread now" in line:
                    break
            results.seek(0)
            before = len(results.readlines())
            wait_until(lambda: results.seek(0) or len(results.readlines()) > before + 5, "results on one core")
            process.send_signal(signal.SIGTERM)
            said.extend(process.communicate(timeout=20)[1].splitlines())
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, said
    [noticed] = [line for line in said if "cores that may be used" in line]
    assert f"1 now, {len(os.sched_getaffinity(0))} before; {LARGE} is loaded again for 1 thread" in noticed
