"""A broker that is away for a week, by a clock of the test's own: nothing grows without bound, and events go last."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from edge_sdk.publishing import Backoff, EventOutbox, MqttPublisher, MqttSettings, OutboxSettings, TelemetryMessage
from tests.support.broker import WAIT_S, Broker, wait_until
from tests.support.event_device import encoded
from tests.support.results import IDENTITY, make_encoder
from tests.support.subscribers import PERSISTENT, Witness, put

pytestmark = pytest.mark.system

_HOURS = 7 * 24
_EVENTS_AN_HOUR = 60
_JOURNAL_BYTES = 1_200_000


def _memory_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000


def test_a_week_without_a_broker(tmp_path: Path) -> None:
    now_s = 1000.0
    settings = OutboxSettings(max_mb=1.0, max_age_s=6 * 86400.0, commit_s=0.001)
    events = EventOutbox(settings, tmp_path / "outbox" / "events.sqlite", "boot", now_s=lambda: now_s)
    with Broker(tmp_path, persistence=True, config=PERSISTENT[1:]) as broker, Witness(broker) as witness:
        broker.stop()
        where = MqttSettings(host=broker.host, port=broker.port, device="pi")
        publisher = MqttPublisher(where, IDENTITY, events=events, backoff=Backoff(0.05, 0.2))
        stream = publisher.stream("door", make_encoder())
        numbers: list[int] = []
        largest, begun_mb = 0, 0.0
        for hour in range(_HOURS):
            numbers += [stream.put_event(lambda seq: encoded(IDENTITY, seq)) for _ in range(_EVENTS_AN_HOUR)]
            put(stream, *range(hour * 30, hour * 30 + 30))
            publisher.telemetry(
                TelemetryMessage(**msgspec.structs.asdict(IDENTITY), at=datetime.now(timezone.utc), load1=float(hour))
            )
            assert events.wait_committed(WAIT_S)
            now_s += 3600.0
            largest = max(largest, sum(file.stat().st_size for file in (tmp_path / "outbox").iterdir()))
            if hour == _HOURS // 2:
                begun_mb = _memory_mb()
        assert largest <= 1_000_000 + _JOURNAL_BYTES
        assert _memory_mb() < begun_mb + 10
        stats = publisher.stats()
        # Of telemetry one, of results a thousand, of events what the file holds.
        assert (stats.queued, stats.dropped) == (1000, _HOURS * 30 - 1000)
        broker.start()
        wait_until(lambda: publisher.stats().events.waiting == 0, "the end of waiting")
        wait_until(lambda: len(witness.numbers) >= publisher.stats().events.delivered, "the events")
        lost = publisher.stats().events.lost
        assert lost.overflow > 0
        assert lost.total == lost.overflow + lost.age
        kept = numbers[lost.total :]
        assert len(kept) > 2000
        assert list(dict.fromkeys(witness.order)) == kept  # the newest, in order
        publisher.close(WAIT_S)


def test_events_grow_too_old(tmp_path: Path) -> None:
    now_s = 0.0
    settings = OutboxSettings(max_age_s=3 * 86400.0, commit_s=0.001)
    events = EventOutbox(settings, tmp_path / "events.sqlite", "boot", now_s=lambda: now_s)
    for _ in range(7):
        for _ in range(10):
            events.put("edge/v1/default/pi/event/door", "door", lambda seq: encoded(IDENTITY, seq))
        assert events.wait_committed(WAIT_S)
        now_s += 86400.0
    assert (events.waiting, events.stats().lost.age) == (40, 30)
    events.close()
