"""Events and pictures through a publisher, beside results."""

from __future__ import annotations

import itertools
import threading
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.event import Event
from edge_sdk.publishing import Channel, EventOutbox, JsonLinesPublisher, MqttPublisher, MqttSettings
from edge_sdk.publishing.mqtt_stream import MqttStream
from tests.device.delivery import WAIT_S, Door, door_over, publisher_over, put, until
from tests.device.event_outboxes import outbox_at, taken
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_detections, make_encoder, make_frame


def _events(link: FakeLink) -> list[tuple[str, int]]:
    """Kinds, and numbers from that of the first."""
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
    publisher.close()
    messages = {kind: message for kind, message in link.published if kind in ("event", "result")}
    assert messages["event"].topic == "edge/v1/default/pi/event/door"
    assert (messages["event"].seq, messages["result"].seq) == (link.documents("event")[-1]["seq"], 7)
    assert _events(link) == [("a", 0), ("b", 1)]
    assert {d["camera"] for d in link.documents("event")} == {"door"}


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


def test_counts_of_results_are_of_results() -> None:
    link = FakeLink()
    publisher, stream = door_over(link)
    put(stream, 1, 2)
    _tell(stream, "a")
    stream.put_snapshot(b"x", 9)
    publisher.close()
    stats = stream.stats()
    assert (stats.put, stats.sent, stats.acknowledged) == (2, 2, 2)
    assert (publisher.stats().put, publisher.stats().sent) == (2, 2)


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


def test_events_of_many_threads_are_each_once_and_in_order() -> None:
    link = FakeLink()
    publisher, stream = door_over(link)
    threads = [threading.Thread(target=_tell, args=(stream, *[f"{n}"] * 50)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.close()
    assert [seq for _, seq in _events(link)] == list(range(200))


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


def test_an_outage_leaves_out_nothing_that_comes_more_slowly_than_the_rate(tmp_path: Path) -> None:
    path, link = tmp_path / "events.sqlite", FakeLink()
    link.may_open.clear()
    with outbox_at(path) as events:
        publisher, stream = _limited(link, max_per_s=20.0, is_away=True, outbox=events, events=_AT_20)
        for number, kind in enumerate("abcdef"):
            _tell(stream, kind)
            put(stream, number)
            time.sleep(0.055 if number else 0.0)  # two at once, and from then on each after its time
        link.may_open.set()
        until(lambda: len(link.documents("event")) == len(link.documents("result")) == 6)
        assert [kind for kind, _ in _events(link)] == list("abcdef")
        assert [d["seq"] for d in link.documents("result")] == list(range(6))
        assert (publisher.stats().limited, publisher.stats().events.limited) == (0, 0)
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


def test_an_event_that_cannot_be_encoded_when_its_time_has_come_holds_up_no_other(tmp_path: Path) -> None:
    said: list[tuple[str, str]] = []
    with outbox_at(tmp_path / "events.sqlite", said=said) as events:
        events.limit(20.0)
        for camera in ("door", "yard"):
            events.put(camera, camera, lambda seq: b"%d" % seq)
            events.put(camera, camera, lambda seq, camera=camera: seq.to_bytes(1 if camera == "door" else 9, "big"))
        until(lambda: events.waiting == 3)
        until(lambda: [bool(line) for name, line in said if name == "event_encoding"][:1] == [True])
        assert "OverflowError" in said[0][1]
        time.sleep(0.06)
        assert events.put("door", "door", lambda seq: b"%d" % seq) is not None


def test_what_a_limit_holds_goes_out_before_the_end() -> None:
    link = FakeLink()
    publisher, stream = _limited(link, max_per_s=0.001, events=Channel(qos=1, max_per_s=0.001))
    put(stream, 0, 1, 2)
    _tell(stream, "a", "b", "c")
    publisher.close()
    assert [d["seq"] for d in link.documents("result")] == [0, 2]
    assert _events(link) == [("a", 0), ("c", 1)]
    assert publisher.stats().events.limited == 1


@pytest.mark.parametrize("kind", ["event", "result", "snapshot"])
def test_what_is_too_large_for_the_broker_is_said_and_left_out(kind: str) -> None:
    link = FakeLink(limit=10)
    publisher, stream = door_over(link)
    if kind == "event":
        _tell(stream, "a")
    elif kind == "result":
        put(stream, 0)
    else:
        stream.put_snapshot(bytes(11), 0)
    until(lambda: f"({kind})" in publisher.stats().last_error)
    publisher.close()
    assert "maximum packet size" in publisher.stats().last_error


def test_as_lines_events_stand_between_results() -> None:
    file = BytesIO()
    publisher = JsonLinesPublisher(file)
    stream = publisher.stream("door", make_encoder())
    stream.put(make_detections(1, make_frame(0)))
    stream.put(Event(kind="a"))
    stream.put_snapshot(b"x", 0)
    stream.put(Event(kind="b"))
    publisher.stream("door", make_encoder()).put(Event(kind="c"))
    stream.put(Event(kind="lost"))
    publisher.close()
    lines = [msgspec.json.decode(line) for line in file.getvalue().splitlines()]
    assert [(d["stream"], d.get("kind"), d["seq"]) for d in lines] == [
        ("result", None, 0),
        ("event", "a", 0),
        ("event", "b", 1),
        ("event", "c", 2),
    ]
