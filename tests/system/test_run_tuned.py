"""A run that is new to its board tunes itself while results go out; the next one has it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker, Subscriber, wait_until
from tests.support.bundles import write_variants
from tests.support.pictures import write_video
from tests.support.program import PATIENCE_S, edge_sdk, start_edge_sdk
from tests.support.subscribers import running_in

pytestmark = pytest.mark.system

FPS = 50


class _Run:
    """A run that goes on, whose results somebody reads: else they are dropped when the pipe is full.

    Attributes:
        process: of the program.
        results: lines of standard output so far.
        said: lines of standard error so far.
    """

    def __init__(self, command: tuple[object, ...]) -> None:
        self.process = start_edge_sdk(*command)
        self.results, self.said = list[str](), list[str]()
        self._reader = threading.Thread(target=self.results.extend, args=[self.process.stdout])
        self._reader.start()

    def read_until(self, *words: str) -> str:
        """The next line with any of the words."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)
            if any(word in line for word in words):
                return line
        return pytest.fail(f"it ended and said none of {words}: {self.said}")

    def end(self) -> None:
        """By a signal, as a service is stopped."""
        assert self.process.stderr
        self.process.send_signal(signal.SIGTERM)
        self.said.extend(self.process.stderr)
        assert self.process.wait(PATIENCE_S) == 0, self.said
        self._reader.join()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """A run on a board that knows nothing of the bundle yet."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    bundle = write_variants(tmp_path / "a.edge")
    video = write_video(tmp_path / "v.avi", range(40 * FPS), fps=FPS, size_wh=(64, 48))
    return ("run", bundle, "--source", video, "--latency-ms", "1000")


def test_the_first_run_tunes_itself_and_the_second_has_it_at_once(command: tuple[object, ...]) -> None:
    with contextlib.closing(_Run((*command, "--json"))) as first:
        line = first.read_until("edge-sdk: tuned in ")
        first.end()
    begun = f"tuning for {FPS} frames a second: what runs best is measured while results go out"
    assert "".join(first.said).count(begun) == 1
    assert [one for one in first.said if "edge-sdk: tuned in " in one] == [line]
    assert " s: fp32, " in line
    assert " instead of int8, 1 thread (p99 " in line
    assert "the highest quality of those that keep 1000 ms" in line
    *results, summary = [msgspec.json.decode(line) for line in first.results]
    assert summary["ended_by"] == "signal"
    assert summary["results"] == len(results) > FPS
    sequence = [r["seq"] for r in results]
    assert sequence == sorted(set(sequence))

    again = edge_sdk(*command, "--json", "--frames", 5)
    assert again.returncode == 0, again.stderr
    chosen = line.partition(" s: ")[2].partition(" (p99")[0]
    assert "edge-sdk: tuned at 20" in again.stderr
    assert f"Z: {chosen} (p99 " in again.stderr
    was_busy = "the next start tunes again" in "".join(first.said)
    assert ("tuning for" in again.stderr) is was_busy


def test_the_status_says_that_models_are_measured_and_when_it_is_over(
    command: tuple[object, ...], broker: Broker
) -> None:
    with Subscriber(broker) as listener:

        def running() -> list[dict[str, object]]:
            return running_in(listener, "gate")

        with contextlib.closing(_Run((*command, "--mqtt", broker.url, "--camera", "gate"))) as run:
            wait_until(lambda: bool(running()) and "tuning" not in running()[-1], "the end of tuning")
            run.end()
        first, *_, last = running()
        already = len(running())
        with contextlib.closing(_Run((*command, "--mqtt", broker.url, "--camera", "gate"))) as run:
            wait_until(lambda: len(running()) > already, "what a second start runs")
            run.end()
        again = running()[already]
    assert (first["variant"], first["tuning"]) == ("int8", True)
    assert (again["variant"], again["reason"]) == ("fp32", "remembered from a measurement")
    assert (last["variant"], last["reason"]) == ("fp32", "chosen by measurement")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core to take away")
def test_a_core_that_is_taken_away_while_it_tunes_is_noticed(command: tuple[object, ...]) -> None:
    with contextlib.closing(_Run((*command, "--frames", 30 * FPS))) as run:
        run.read_until("tuning for")
        wait_until(lambda: len(run.results) >= FPS, "results of the first candidate")
        os.sched_setaffinity(run.process.pid, [min(os.sched_getaffinity(0))])
        line = run.read_until("tuned in ", "tuning anew")
        run.end()
    assert "edge-sdk: cores that may be used: 1 now" in line
