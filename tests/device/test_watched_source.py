"""Where a source stands is told: to people without tiring them, to the device's state whatever changes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from edge_sdk.camera import SourceStats, SourceStatus
from edge_sdk.daemon.watched_source import WatchedSource
from edge_sdk.frame import Frame, Result
from edge_sdk.publishing import Running, SourceState, StreamStats

_LOCATION = "rtsp://bob:s3cret@cam/live"
_SHOWN = "source rtsp://cam/live"


class _Source:
    """Stands where it is put."""

    fps, paced, ended, stats = 25.0, True, False, SourceStats()

    def __init__(self) -> None:
        self.status, self.trouble = SourceStatus.OPENING, ""
        self.remarks: tuple[str, ...] = ()

    def latest(self, timeout: float) -> Frame | None:
        return None

    def close(self) -> None:
        pass


class _Stream:
    """Keeps what it is told of the source."""

    camera = "gate"

    def __init__(self) -> None:
        self.states: list[SourceState] = []

    def source(self, state: SourceState) -> None:
        self.states.append(state)

    def put(self, result: Result) -> None:
        raise AssertionError

    def warn(self, name: str, line: str) -> None:
        raise AssertionError

    def announce(self, running: Running) -> None:
        raise AssertionError

    def stats(self) -> StreamStats:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


class _Watch:
    """A WatchedSource with all that it speaks to, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.source, self.stream, self.said = _Source(), _Stream(), list[str]()
        self.now_s = 1000.0
        self._watched = WatchedSource(self.source, _LOCATION, self.stream, self.said.append, lambda: self.now_s)

    def look(self, status: SourceStatus, trouble: str = "", times: int = 3) -> list[str]:
        """Put the source there and look, more than once; what was said."""
        self.source.status, self.source.trouble = status, trouble
        before = len(self.said)
        for _ in range(times):
            self._watched.look()
        return self.said[before:]

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(state.status, state.trouble) for state in self.stream.states]


def test_each_status_is_told_once() -> None:
    watch = _Watch()
    assert watch.look(SourceStatus.OPENING) == []  # a camera that is there opens in a moment
    assert watch.look(SourceStatus.OPENED) == [f"{_SHOWN} is open"]
    assert watch.look(SourceStatus.LOST, "no frame for 2 s") == [f"{_SHOWN}: lost: no frame for 2 s"]
    assert watch.look(SourceStatus.REOPENED) == [f"{_SHOWN}: reopened"]
    assert watch.look(SourceStatus.LOST) == [f"{_SHOWN}: lost"]
    assert watch.look(SourceStatus.ENDED) == [f"{_SHOWN}: ended"]
    assert watch.states == [
        ("opening", ""),
        ("opened", ""),
        ("lost", "no frame for 2 s"),
        ("reopened", ""),
        ("lost", ""),
        ("ended", ""),
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [(SourceStatus.LOST, ": lost: {}"), (SourceStatus.OPENING, ": not there yet: {}; it is waited for")],
)
def test_reasons_are_told_to_people_three_at_once_and_then_one_a_minute_and_all_to_the_stream(
    status: SourceStatus, words: str
) -> None:
    watch = _Watch()
    heard = {number: watch.look(status, f"reason {number}") for number in range(1, 7)}
    assert heard == {number: [f"{_SHOWN}{words.format(f'reason {number}')}"] if number <= 3 else [] for number in heard}
    watch.now_s += 59
    assert watch.look(status, "too soon") == []
    watch.now_s += 1
    assert watch.look(status, "a minute later") == [f"{_SHOWN}{words.format('a minute later')}"]
    assert watch.look(status, "and at once") == []
    watch.now_s += 60
    assert watch.look(status, "and at once") == []  # nothing changed
    assert watch.look(status, "") == []  # for the moment nothing is known to be wrong
    assert watch.look(status, "the next") == [f"{_SHOWN}{words.format('the next')}"]
    reasons = [
        *(f"reason {number}" for number in range(1, 7)),
        "too soon",
        "a minute later",
        "and at once",
        "",
        "the next",
    ]
    assert watch.states == [(status.value, reason) for reason in reasons]


def test_a_new_loss_is_told_with_its_reasons_again() -> None:
    watch = _Watch()
    for number in range(5):
        watch.look(SourceStatus.LOST, f"reason {number}")
    assert watch.look(SourceStatus.REOPENED) != []
    assert [len(watch.look(SourceStatus.LOST, f"again {number}")) for number in range(5)] == [1, 1, 1, 0, 0]


def test_since_is_when_the_status_came_and_not_the_reason() -> None:
    watch = _Watch()
    watch.look(SourceStatus.LOST, "one")
    watch.look(SourceStatus.LOST, "another")
    watch.look(SourceStatus.REOPENED)
    first, second, third = (state.since for state in watch.stream.states)
    assert first == second < third
    assert timedelta() <= datetime.now(timezone.utc) - first < timedelta(hours=1)
    assert third.utcoffset() == timedelta()


def test_remarks_are_told_once_when_the_camera_is_there() -> None:
    watch = _Watch()
    watch.source.remarks = (
        "asked for 15 frames a second, the camera gives 30",
        "asked for MJPG, the camera gives YUYV",
    )
    assert watch.look(SourceStatus.OPENING, "connection refused") == [
        f"{_SHOWN}: not there yet: connection refused; it is waited for"
    ]
    remarks = [f"{_SHOWN}: {remark}" for remark in watch.source.remarks]
    assert watch.look(SourceStatus.OPENED) == [f"{_SHOWN} is open", *remarks]
    assert watch.look(SourceStatus.LOST) == [f"{_SHOWN}: lost"]
    assert watch.look(SourceStatus.REOPENED) == [f"{_SHOWN}: reopened"]  # the same camera
    assert watch.look(SourceStatus.LOST) == [f"{_SHOWN}: lost"]
    watch.source.remarks = ("asked for 15 frames a second, the camera gives 25",)
    assert watch.look(SourceStatus.REOPENED) == [f"{_SHOWN}: reopened", f"{_SHOWN}: {watch.source.remarks[0]}"]


def test_nothing_secret_is_told() -> None:
    watch = _Watch()
    watch.look(SourceStatus.LOST, "connection refused")
    assert all("bob" not in line and "s3cret" not in line for line in watch.said)


def test_who_goes_on_with_a_source_tells_its_stream_at_once_and_people_nothing_twice() -> None:
    watch, heir, said = _Watch(), _Stream(), list[str]()
    watch.look(SourceStatus.OPENING)
    watch.look(SourceStatus.OPENING, "connection refused")
    [*_, last] = watch.stream.states
    watch._watched.go_on(heir, said.append)
    watch.look(SourceStatus.OPENING, "connection refused")
    assert (heir.states, said) == ([last], [])
    watch.look(SourceStatus.OPENED)
    assert [state.status for state in heir.states] == ["opening", "opened"]
    assert said == [f"{_SHOWN} is open"]


def test_a_camera_that_comes_and_goes_all_the_time_is_told_of_now_and_then() -> None:
    watch = _Watch()
    watch.look(SourceStatus.OPENED)
    for _ in range(50):
        watch.look(SourceStatus.LOST, "the camera ended the stream", times=1)
        watch.look(SourceStatus.REOPENED, times=1)
    assert len(watch.said) == 12
    assert len(watch.states) == 101
    watch.now_s += 61
    assert watch.look(SourceStatus.LOST) == [f"{_SHOWN}: lost (89 lines before were not told)"]
