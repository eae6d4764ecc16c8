"""Events and pictures through a publisher beside results, and at most so many a second."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import RateLimiter
from edge_sdk.messages.schema import Channel
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream
from edge_sdk.publishing.settings import MqttSettings
from tests.support.connections import WAIT_S, Door, FakeLink, door_over, publisher_over, put, until
from tests.support.outboxes import outbox_at, taken
from tests.support.results import IDENTITY, make_encoder


def _events(link: FakeLink) -> list[tuple[str, int]]:
    documents = link.documents("event")
    return [(d["kind"], d["seq"] - documents[0]["seq"]) for d in documents]


def _tell(stream: MqttStream, *kinds: str) -> None:
    for kind in kinds:
        stream.put(Event(kind=kind, camera="elsewhere"))


def test_events_go_to_their_topic_with_numbers_of_their_own() -> None:
    link = FakeLink()
    publisher, stream = door_over(link)
    put(stream, 7)
    _tell(stream, "a", "b")
    stream.put_snapshot(b"x", 9)
    publisher.close()
    messages = {kind: message for kind, message in link.published if kind in ("event", "result")}
    assert messages["event"].topic == "edge/v1/default/pi/event/door"
    assert (messages["event"].seq, messages["result"].seq) == (link.documents("event")[-1]["seq"], 7)
    assert _events(link) == [("a", 0), ("b", 1)]
    assert {d["camera"] for d in link.documents("event")} == {"door"}
    assert (stream.stats().put, stream.stats().sent, stream.stats().acknowledged) == (1, 1, 1)
    assert (publisher.stats().put, publisher.stats().sent) == (1, 1)  # counts of results are of results


def test_events_go_before_results_and_pictures_after_them(tmp_path: Path) -> None:
    link = FakeLink()
    link.may_open.clear()
    with outbox_at(tmp_path / "events.sqlite") as events:
        publisher = publisher_over(link, events=events)
        stream = publisher.stream("door", make_encoder())
        stream.put_snapshot(b"\xff\xd8", 3)
        put(stream, 1, 2)
        _tell(stream, "a", "b")
        assert events.wait_committed(WAIT_S)
        until(lambda: events.is_ready)
        link.may_open.set()
        publisher.close()
    kinds = [kind for kind, _ in link.published if kind in ("event", "result", "snapshot")]
    assert kinds == ["event", "event", "result", "result", "snapshot"]
    [picture] = [message for kind, message in link.published if kind == "snapshot"]
    assert (picture.topic, picture.payload, picture.seq) == ("edge/v1/default/pi/snapshot/door", b"\xff\xd8", 3)


def test_what_did_not_arrive_comes_again_in_its_place() -> None:
    mute, link = FakeLink(answers=False), FakeLink()
    publisher, stream = door_over(mute, link)
    _tell(stream, "a", "b")
    until(lambda: len(mute.documents("event")) == 2)
    put(stream, 1)
    stream.put_snapshot(b"x", 9)
    until(lambda: sum(kind in ("event", "result", "snapshot") for kind, _ in mute.published) == 4)
    mute.drop("gone")
    publisher.close()
    assert link.documents("event") == mute.documents("event")
    again = [(kind, message.seq) for kind, message in link.published if message.camera]
    assert [kind for kind, _ in again[:2]] == ["event", "event"]
    assert again[2:] == [("result", 1), ("snapshot", 9)]


def test_events_of_a_stream_that_another_took_over_from_are_not_taken_and_numbers_go_on() -> None:
    link = FakeLink()
    publisher, first = door_over(link)
    _tell(first, "a")
    second = publisher.stream("door", make_encoder())
    _tell(first, "lost")
    first.put_snapshot(b"lost", 0)
    _tell(second, "b")
    publisher.close()
    assert _events(link) == [("a", 0), ("b", 1)]
    assert not [kind for kind, _ in link.published if kind == "snapshot"]


_AT_20 = Channel(qos=1, max_per_s=20.0)


def _limited(link: FakeLink, *, is_away: bool = False, outbox: EventOutbox | None = None, **channels: Any) -> Door:
    """With rates; over a link that is away until it may open."""
    link.may_open.clear()
    settings = MqttSettings(host="broker", port=1883, device="pi", **channels)
    links = itertools.chain([link], itertools.repeat(FakeLink(error=ConnectionRefusedError())))
    publisher = MqttPublisher(settings, IDENTITY, make_link=lambda: next(links), events=outbox)
    stream = publisher.stream("door", make_encoder())
    if not is_away:
        link.may_open.set()
    return Door(publisher, stream)


def test_of_results_that_come_too_fast_the_newest_goes_out_and_the_rest_is_counted() -> None:
    link = FakeLink()
    publisher, stream = _limited(link, max_per_s=2.0)
    put(stream, *range(10))
    until(lambda: [d["seq"] for d in link.documents("result")] == [0, 9])
    assert (stream.stats().limited, publisher.stats().limited, stream.stats().dropped) == (8, 8, 0)
    publisher.close()


def test_the_last_event_of_a_burst_is_on_disk_when_its_time_has_come_with_or_without_a_broker(tmp_path: Path) -> None:
    path, link = tmp_path / "events.sqlite", FakeLink()
    with outbox_at(path) as events:
        publisher, stream = _limited(link, is_away=True, outbox=events, events=_AT_20)
        _tell(stream, *"abcd")
        until(lambda: events.stats().waiting + events.stats().limited == 4)
        waiting = events.stats().waiting
        assert events.wait_committed(WAIT_S)
        publisher.close(0.0)
        link.may_open.set()
    with outbox_at(path) as events:
        kept = [msgspec.json.decode(event.payload)["kind"] for event in taken(events, waiting)]
        assert (kept[0], kept[-1]) == ("a", "d")


def test_what_a_limit_holds_goes_out_before_the_end() -> None:
    link = FakeLink()
    publisher, stream = _limited(link, max_per_s=0.001, events=Channel(qos=1, max_per_s=0.001))
    put(stream, 0, 1, 2)
    _tell(stream, "a", "b", "c")
    publisher.close()
    assert [d["seq"] for d in link.documents("result")] == [0, 2]
    assert _events(link) == [("a", 0), ("c", 1)]
    assert publisher.stats().events.limited == 1


class _Pace(RateLimiter[object, int]):
    """One whose clock is moved by hand, and what went through it."""

    def __init__(self, max_per_s: float) -> None:
        self.now_s, self.gone = 100.0, list[object]()
        super().__init__(max_per_s, self._go, lambda: self.now_s)

    def _go(self, item: object) -> int:
        self.gone.append(item)
        return len(self.gone)


def test_the_newest_is_held_until_its_time_and_the_others_are_counted() -> None:
    pace = _Pace(2.0)
    assert pace.wait_s() == math.inf
    assert pace.put("door", "a") == 1
    assert [pace.put("door", item) for item in "bcd"] == [None] * 3
    assert pace.wait_s() == pytest.approx(0.5)
    pace.now_s += 0.4
    pace.release()
    assert pace.gone == ["a"]
    pace.now_s += 0.2
    assert pace.wait_s() == 0.0
    pace.release()
    pace.release()
    assert (pace.gone, pace.wait_s(), pace.limited("door"), pace.limited()) == (["a", "d"], math.inf, 2, 2)


def test_what_is_held_goes_before_what_comes_after_its_time_and_takes_no_place_but_its_own() -> None:
    pace = _Pace(1.0)
    pace.put("door", 1)
    pace.put("door", 2)
    pace.now_s += 1.5
    assert pace.put("door", 3) is None
    assert pace.gone == [1, 2]
    pace.now_s += 5
    assert pace.put("door", 4) == 4
    assert (pace.gone, pace.limited("door")) == ([1, 2, 3, 4], 0)


@pytest.mark.parametrize("seed", range(3))
def test_of_any_arrivals_no_more_than_allowed_go_and_the_last_one_does(seed: int) -> None:
    chance, pace = random.Random(seed), _Pace(10.0)
    begun_s = pace.now_s
    for item in range(500):
        pace.now_s += chance.expovariate(30.0)
        pace.release()
        pace.put("door", item)
    span_s = pace.now_s - begun_s
    pace.now_s += 1
    pace.release()
    gone = pace.gone
    assert gone == sorted(set(gone))  # type: ignore[type-var]
    assert gone[-1] == 499
    assert len(gone) + pace.limited("door") == 500
    assert span_s * 10 * 0.7 <= len(gone) <= span_s * 10 + 2
