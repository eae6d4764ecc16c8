"""A wall clock that leaps, as it does when a board without a battery hears the time: nothing is dropped or held up."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.publishing import OutboxSettings
from tests.support.broker import Broker, Received, Subscriber, TlsBroker, wait_until
from tests.support.configs import Table
from tests.support.device import BlinkingCamera, Device, WallClock, own_folders, write_blinking_config

pytestmark = pytest.mark.system

_LONG_AGO, _NOW = timedelta(days=-18000), timedelta()
_EARLIER, _LATER = timedelta(hours=-3), timedelta(days=500)
_MINUTE = timedelta(minutes=1)
_WEEK_S = 7 * 86400


def _wait_for_commits(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    wait_until(log.exists, "the file")
    before = log.stat().st_size
    wait_until(lambda: log.stat().st_size > before + 20_000, "more events on disk")


def _documents(messages: list[Received]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(message.payload) for message in messages]


def _times(events: list[Received]) -> list[datetime]:
    return [msgspec.convert(document["at"], datetime) for document in _documents(events)]


def _leaps(times: list[datetime]) -> list[timedelta]:
    """Of more than a minute from one to the next."""
    steps = [after - before for before, after in itertools.pairwise(times)]
    return [step for step in steps if abs(step) > _MINUTE]


def test_events_and_results_over_leaps_of_the_wall_clock(cell_bundle: Path, tmp_path: Path) -> None:
    """A day is the most that an event may wait: by the wall clock each would be years old at the first leap."""
    clock = WallClock(tmp_path, _LONG_AGO)
    folder = tmp_path / "events"
    path = OutboxSettings(folder=folder).path_of("default", "pi")
    with Broker(tmp_path, start=False) as broker, BlinkingCamera() as camera:
        tables: dict[str, Table] = {"mqtt": {"url": broker.url}, "outbox": {"folder": folder, "max_age_days": 1}}
        config = write_blinking_config(tmp_path, cell_bundle, camera.url, **tables)
        with Device(config, environment={**own_folders(tmp_path), **clock.environment}) as device:
            device.hear("not reachable")
            for offset in (_NOW, _EARLIER, _NOW):
                _wait_for_commits(path)
                clock.leap(offset)
            _wait_for_commits(path)
            broker.start()
            with Subscriber(broker) as subscriber:
                # The back-off goes by another clock: it is not years until the next attempt.
                subscriber.wait_for(lambda _: len(_leaps(_times(subscriber.messages("event/gate")))) == 3, "events")
                clock.leap(_LATER)  # and so does the keep-alive
                results = len(subscriber.messages("result/gate"))
                subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) > results + 20, "results")
                clock.leap(_NOW)
                results = len(subscriber.messages("result/gate"))
                subscriber.wait_for(lambda _: len(subscriber.messages("result/gate")) > results + 20, "results")
                assert device.stop() == 0
                events, results_of = subscriber.messages("event/gate"), subscriber.messages("result/gate")
        assert len(device.lines_with("online")) == 1
        assert not device.lines_with("bug")
        assert not device.lines_with("events are lost")
    _are_whole(events)
    # What a broker may forget after a while it forgets so long after it got it, whatever anybody's clock says.
    assert {message.expiry_s for message in events} == {_WEEK_S}
    assert {message.expiry_s for message in results_of} <= set(range(50, 61))
    for document in _documents(results_of):
        assert 0 <= document["age_ms"] < 60_000  # by the monotonic clock


def _are_whole(events: list[Received]) -> None:
    seqs = [document["seq"] for document in _documents(events)]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    first, back, forth, *_ = _leaps(_times(events))
    assert first == pytest.approx(-_LONG_AGO, abs=_MINUTE)
    assert back == pytest.approx(_EARLIER, abs=_MINUTE)
    assert forth == pytest.approx(-_EARLIER, abs=_MINUTE)


def test_a_device_that_begins_in_the_past_connects_once_it_hears_the_time(tmp_path: Path) -> None:
    clock = WallClock(tmp_path, _LONG_AGO)
    with TlsBroker(tmp_path) as broker, Subscriber(broker, "edge/v1/default/pi/event/#") as subscriber:
        device = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.event_device",
                "late",
                str(broker.tls_port),
                str(broker.authority.file),
                tmp_path,
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **{name: str(value) for name, value in clock.environment.items()}},
            cwd=Path(__file__).parents[2],
        )
        with device:
            assert device.stdout
            line = device.stdout.readline()
            assert line.startswith(
                "refused: the broker's certificate is not valid yet; is this device's clock right? It is 19"
            )
            clock.leap(_NOW)
            assert device.stdout.read().splitlines() == ["online: ", "closed: "]
        [event] = _documents(subscriber.wait_for(bool, "the event"))
    assert event["at"].startswith("19")  # when it was put, by what the clock said
