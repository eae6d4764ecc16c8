"""The status of a publisher: the latest warning and what runs are in it, after a break too."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edge_sdk.publishing import Running
from tests.device.delivery import has_connected, publisher_over, until
from tests.device.links import FakeLink


def test_a_warning_goes_out_with_the_status_now_and_after_a_break() -> None:
    first, second = FakeLink(), FakeLink()
    publisher = publisher_over(first, second)
    until(has_connected(publisher, 1))
    publisher.warn("not_finite", "nothing is known")
    until(lambda: len(first.published) == 2)
    first.drop("gone")
    until(lambda: len(second.published) == 1)
    publisher.close()
    for payload in (first.published[1], second.published[0]):
        status = msgspec.json.decode(payload)
        assert (status["status"], status["warnings"]) == ("online", {"not_finite": "nothing is known"})
    assert "warnings" not in msgspec.json.decode(first.published[0])
    assert second.contents() == ["online", "offline"]


def test_what_runs_is_in_every_status_of_being_online_the_latest_of_it() -> None:
    first, second = FakeLink(answers=False), FakeLink()
    publisher = publisher_over(first, second)
    until(lambda: publisher.stats().state == "online")
    for number, reason in enumerate(("start", "slow"), start=2):
        publisher.announce(_running(reason))
        until(_has_published(first, number))
    first.drop("pulled out")
    until(has_connected(publisher, 2))
    publisher.close()
    said = [msgspec.json.decode(payload).get("running", {}).get("reason") for payload in first.published]
    assert said == [None, "start", "slow"]
    assert msgspec.json.decode(second.published[0])["running"]["reason"] == "slow"
    assert second.contents() == ["online", "offline"]


def _running(reason: str) -> Running:
    return Running(variant="int8", every=1, rung=0, rungs=2, reason=reason)


def _has_published(link: FakeLink, times: int) -> Callable[[], bool]:
    return lambda: len(link.published) == times
