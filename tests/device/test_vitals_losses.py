"""The state's warning of lost events counts what telemetry counts, and changes seldom while few more are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge_sdk.daemon.outlet import Outlet
from edge_sdk.daemon.vitals import Vitals
from edge_sdk.health.notify import Notifier
from edge_sdk.health.progress import Progress
from edge_sdk.health.readings import Gauges
from edge_sdk.health.start import Start
from edge_sdk.health.watch import HealthWatch
from edge_sdk.publishing import PublisherStats
from edge_sdk.publishing.durable import EventStats, Losses
from tests.device.delivery import until
from tests.device.site import Site
from tests.device.test_vitals import Stream

_NOTHING = PublisherStats(
    put=0,
    queued=0,
    sent=0,
    acknowledged=0,
    rejected=0,
    dropped=0,
    too_large=0,
    connects=1,
    state="online",
    last_error="",
)


class Losing(Outlet):
    """Of which a test says how many events it lost."""

    lost, now_s = 0, 0.0
    warned: list[tuple[str, str]]

    def stats(self) -> PublisherStats:
        return msgspec.structs.replace(_NOTHING, events=EventStats(lost=Losses(quarantine=self.lost)))

    def warn(self, name: str, line: str) -> None:
        self.warned.append((name, line))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_it_counts_on_at_once_where_the_number_doubles_and_else_once_a_minute(site: Site, tmp_path: Path) -> None:
    outlet = Losing(site.run_settings("gate"), site.said.append, lambda: False)
    outlet.warned = []
    vitals = Vitals(
        Notifier(),
        Start(),
        site.said.append,
        outlet,
        Progress(60.0),
        begin_watch=lambda tell: HealthWatch(Gauges(None, tmp_path), tell, 0.001),
        clock_s=lambda: outlet.now_s,
    )
    shown = list[int]()
    for outlet.now_s, outlet.lost in (
        (0, 0),
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 3),
        (5, 7),
        (6, 8),
        (64, 9),
        (65, 9),
        (70, 0),
    ):
        vitals._look_at_losses()
        shown.append(len(outlet.warned))
    assert shown == [0, 1, 1, 2, 2, 3, 3, 3, 4, 5]
    assert outlet.warned[0] == (
        "events_lost",
        "1 event is lost since the start: 1 refused by the broker or too large",
    )
    assert outlet.warned[3][1].startswith("9 events are lost since the start: 9 refused")
    assert outlet.warned[4] == ("events_lost", "")
    outlet.lost = 4

    def look() -> bool:
        vitals.look([Stream("gate", "tiny")], have_begun=True)  # type: ignore[list-item]
        return len(outlet.warned) > 5

    until(look)
    vitals.close()
