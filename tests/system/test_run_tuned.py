"""A run that is new to its board tunes itself while results go out; the next one has it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.device.numbered import write_video
from tests.device.variant_bundles import write_variants
from tests.system.broker import Broker, Subscriber, wait_until
from tests.system.program import edge_sdk, start_edge_sdk

pytestmark = pytest.mark.system

FPS = 50


@contextlib.contextmanager
def _reading_results(process: subprocess.Popen[str], output: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Somebody reads the results, else they are dropped when the pipe is full."""
    assert process.stdout
    assert process.stderr
    reader = threading.Thread(target=output.extend, args=[process.stdout])
    reader.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


def test_the_first_run_tunes_itself_and_the_second_has_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle = write_variants(tmp_path / "a.edge")
    video = write_video(tmp_path / "v.avi", range(40 * FPS), fps=FPS, size_wh=(64, 48))
    command = ("run", bundle, "--source", video, "--latency-ms", "1000", "--json")
    output: list[str] = []
    said = []
    with _reading_results(start_edge_sdk(*command), output) as process:
        assert process.stderr
        for line in process.stderr:
            said.append(line)
            if "edge-sdk: tuned in " in line:
                break
        process.send_signal(signal.SIGTERM)
        said.extend(process.stderr)
        assert process.wait(20) == 0, said
    begun = f"tuning for {FPS} frames a second: what runs best is measured while results go out"
    assert "".join(said).count(begun) == 1
    [line] = [line for line in said if "edge-sdk: tuned in " in line]
    assert " s: fp32, " in line
    assert " instead of int8, 1 thread (p99 " in line
    assert "the highest quality of those that keep 1000 ms" in line
    *results, summary = [msgspec.json.decode(line) for line in output]
    assert summary["ended_by"] == "signal"
    assert summary["results"] == len(results) > FPS
    sequence = [r["seq"] for r in results]
    assert sequence == sorted(set(sequence))

    again = edge_sdk(*command, "--frames", 5)
    assert again.returncode == 0, again.stderr
    chosen = line.partition(" s: ")[2].partition(" (p99")[0]
    assert "edge-sdk: tuned at 20" in again.stderr
    assert f"Z: {chosen} (p99 " in again.stderr
    was_busy = "the next start tunes again" in "".join(said)
    assert ("tuning for" in again.stderr) is was_busy


def test_the_status_says_that_models_are_measured_and_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle = write_variants(tmp_path / "a.edge")
    video = write_video(tmp_path / "v.avi", range(40 * FPS), fps=FPS, size_wh=(64, 48))
    command = ("run", bundle, "--source", video, "--latency-ms", "1000", "--mqtt", broker.url, "--camera", "gate")
    with Subscriber(broker) as listener:

        def running() -> list[dict[str, object]]:
            statuses = [msgspec.json.decode(m.payload) for m in listener.messages("/status/gate")]
            return [status["running"] for status in statuses if "running" in status]

        with _reading_results(start_edge_sdk(*command), []) as process:
            wait_until(lambda: bool(running()) and "tuning" not in running()[-1], "the end of tuning", 60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        first, *_, last = running()
    assert (first["variant"], first["tuning"]) == ("int8", True)
    assert (last["variant"], last["reason"]) == ("fp32", "chosen by measurement")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to take away")
def test_a_core_that_is_taken_away_while_it_tunes_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle = write_variants(tmp_path / "a.edge")
    video = write_video(tmp_path / "v.avi", range(40 * FPS), fps=FPS, size_wh=(64, 48))
    command = ("run", bundle, "--source", video, "--latency-ms", "1000", "--frames", 30 * FPS)
    output: list[str] = []
    said = []
    with _reading_results(start_edge_sdk(*command), output) as process:
        assert process.stderr
        for line in process.stderr:
            said.append(line)
            if "tuning for" in line:
                wait_until(lambda: len(output) >= FPS, "results of the first candidate")
                os.sched_setaffinity(process.pid, [min(os.sched_getaffinity(0))])
            if "tuned in " in line or "tuning anew" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert "edge-sdk: cores that may be used: 1 now" in said[-1]
