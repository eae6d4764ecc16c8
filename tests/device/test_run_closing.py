"""The last lines of a run."""

from __future__ import annotations

import msgspec
import pytest

from edge_sdk.camera import SourceStats
from edge_sdk.cli.run import _closing, _undelivered, _waiting
from edge_sdk.daemon.summary import RunSummary
from edge_sdk.percentiles import Percentiles
from edge_sdk.publishing import PublisherStats, StreamStats
from edge_sdk.publishing.durable import EventStats

_TIMES = Percentiles(1.0, 2.0, 3.0)


def _summary(*, put: int, sent: int, limited: int) -> RunSummary:
    stream = StreamStats(
        put=put, queued=0, sent=sent, acknowledged=0, rejected=0, dropped=0, too_large=0, limited=limited
    )
    publisher = PublisherStats(**msgspec.structs.asdict(stream), connects=1, state="closed", last_error="gone")
    nothing = RunSummary.of_nothing("gate", "signal", 50.0)
    return msgspec.structs.replace(
        nothing, results=put, age=_TIMES, serial=_TIMES, inference=_TIMES, delivery=stream, publisher=publisher
    )


def test_what_could_not_be_decoded_is_said() -> None:
    whole = _summary(put=10, sent=10, limited=0)
    for summary in (whole, RunSummary.of_nothing("gate", "signal", 50.0)):
        assert "decoded" not in _closing(summary)
        broken = msgspec.structs.replace(summary, source=SourceStats(unreadable=7))
        assert ", 7 could not be decoded" in _closing(broken)


@pytest.mark.parametrize(
    ("put", "sent", "limited", "expected"),
    [
        (10, 10, 0, None),
        (10, 2, 8, None),
        (10, 1, 8, "1 of 10 results did not reach the broker; gone"),
        (10, 0, 0, "10 of 10 results did not reach the broker; gone"),
    ],
)
def test_what_a_rate_leaves_out_is_not_lost(put: int, sent: int, limited: int, expected: str | None) -> None:
    summary = _summary(put=put, sent=sent, limited=limited)
    assert _undelivered(summary) == expected
    assert (f", {limited} not published, as max_per_s says" in _closing(summary)) is bool(limited)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (EventStats(is_durable=True), None),
        (EventStats(waiting=1, is_durable=True), "1 event waits on disk for the next start"),
        (EventStats(waiting=3, is_durable=True), "3 events wait on disk for the next start"),
        (EventStats(waiting=3), None),
    ],
)
def test_events_that_wait_for_the_next_start_are_said(events: EventStats, expected: str | None) -> None:
    summary = _summary(put=10, sent=10, limited=0)
    assert summary.publisher is not None
    left = msgspec.structs.replace(summary.publisher, events=events)
    assert _waiting(msgspec.structs.replace(summary, publisher=left)) == expected
    assert _waiting(msgspec.structs.replace(summary, publisher=None)) is None
