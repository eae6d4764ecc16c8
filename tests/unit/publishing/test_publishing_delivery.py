"""Delivery over a fake connection: windows, refusals, breaks, offline messages, and callbacks that raise."""

import itertools
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff, RateLimiter, Wakeup
from edge_sdk.messages.schema import Channel, Identity, Message
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.client import MqttConnection
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream
from edge_sdk.publishing.queues import MemoryOutbox
from edge_sdk.publishing.session import ConnectionState, PoisonMessageDetector
from edge_sdk.publishing.settings import MqttSettings
from tests.support.connections import WAIT_S, Door, FakeLink, door_over, has_connected, publisher_over, put, until
from tests.support.outboxes import outbox_at, taken
from tests.support.results import IDENTITY, make_detections, make_encoder, make_frame


@pytest.mark.parametrize("others_on_their_way", [False, True])
def test_a_put_wakes_a_publisher_that_has_nothing_to_do(others_on_their_way: bool) -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    until(lambda: publisher.stats().state == "online")
    link.answers = not others_on_their_way
    began_s = time.monotonic()
    for number in range(18):
        put(door, number)
        until(lambda number=number: len(link.published) == number + 3)  # type: ignore[misc]
    assert time.monotonic() - began_s < 10, "each waited for the end of a turn, one second"
    link.answers = True
    publisher.close()


def test_no_more_than_a_window_is_on_its_way() -> None:
    link = FakeLink(window=4, answers=False)
    publisher, door = door_over(link)
    until(lambda: publisher.stats().state == "online")
    put(door, *range(1000))
    until(lambda: len(link.published) == 4)
    put(door, *range(1000, 1200))
    assert link.most_unanswered == 4
    assert publisher.stats().queued == 1000
    link.answers = True
    until(lambda: publisher.stats().queued == 0)
    assert link.most_unanswered == 4
    publisher.close()
    assert link.contents()[-11:] == [*range(1190, 1200), "offline"]


def test_a_broker_that_stops_answering_is_left() -> None:
    first, second = FakeLink(answers=False), FakeLink()
    publisher, door = door_over(first, second, keepalive_s=1)
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    assert publisher.stats().last_error == "the broker answered nothing for 2 s"
    publisher.close()


def test_a_port_that_answers_and_is_no_broker_s_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.publishing.session._ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings = MqttSettings(host="127.0.0.1", port=mute.getsockname()[1], device="pi")
        publisher = MqttPublisher(settings, Identity("pi"))
        until(lambda: publisher.stats().last_error.endswith("is this a broker's port?"))
        publisher.close(0.5)


@pytest.mark.parametrize(
    ("link", "state", "detail"),
    [
        (FakeLink(error=ConnectionRefusedError(111, "Connection refused")), "connecting", "Connection refused"),
        (FakeLink(error=ValueError("malformed")), "connecting", "ValueError: malformed"),
        (FakeLink(phase="refused", detail="Not authorized"), "refused", "Not authorized"),
        (FakeLink(phase="lost", detail="Server busy"), "connecting", "Server busy"),
    ],
)
def test_trouble_is_said_once_and_ends_by_itself(link: FakeLink, state: ConnectionState, detail: str) -> None:
    states: list[tuple[ConnectionState, str]] = []
    publisher, _door = door_over(link, FakeLink(), on_state=lambda s, d: states.append((s, d)))
    until(lambda: publisher.stats().state == "online")
    publisher.close()
    assert [s for s, _ in states] == [state, "online", "closed"]
    assert (detail in states[0][1], detail in publisher.stats().last_error) == (True, True)


def test_a_broker_that_takes_and_drops_again_and_again_hints_at_a_rival() -> None:
    states: list[tuple[ConnectionState, str]] = []
    absent = FakeLink(error=ConnectionRefusedError(111, "Connection refused"))
    links = [FakeLink() for _ in range(6)]
    publisher, _door = door_over(*links[:2], absent, *links[2:], on_state=lambda *s: states.append(s))
    for number, link in enumerate(links[:5], start=1):
        until(has_connected(publisher, number))
        link.drop("connection lost")
    until(lambda: publisher.stats().connects == 6)
    publisher.close()
    lost = [d for s, d in states if s == "connecting" and "lost" in d]
    # The broker was away between the second and the third: that was no rival.
    assert ["does another program have the same" in d for d in lost] == [False, False, False, False, True]


def test_a_result_above_the_limit_is_counted_and_not_sent() -> None:
    link = FakeLink(limit=500)
    publisher, door = door_over(link)
    door.put(make_detections(20, make_frame(1)))
    door.put(make_detections(0, make_frame(2)))
    door.put_snapshot(bytes(501), 0)
    publisher.close()
    assert link.contents() == ["online", 2, "offline"]
    assert (publisher.stats().too_large, publisher.stats().snapshots_lost) == (1, 1)
    assert "maximum packet size" in publisher.stats().last_error


def test_a_complaint_is_counted_and_said_once() -> None:
    states: list[tuple[ConnectionState, str]] = []
    publisher, door = door_over(FakeLink(complaint="Not authorized"), on_state=lambda s, d: states.append((s, d)))
    put(door, 1, 2)
    publisher.close()
    stats = publisher.stats()
    assert (stats.sent, stats.acknowledged, stats.rejected) == (2, 0, 2)
    refused = ("online", "the broker did not take a message on edge/v1/default/pi/status: Not authorized")
    assert states == [("online", ""), refused, ("closed", "")]


@pytest.mark.parametrize(
    "link",
    [
        FakeLink(error=ConnectionRefusedError(111, "Connection refused")),
        FakeLink(phase="opening"),
        FakeLink(answers=False),
    ],
    ids=["no broker", "no answer to the connection", "no answer to a message"],
)
def test_close_gives_up_in_time(link: FakeLink) -> None:
    publisher, door = door_over(link)
    put(door, 1, 2, 3)
    publisher.close(timeout_s=1.0)
    until(lambda: not publisher._thread.is_alive())
    assert (publisher.stats().state, publisher.stats().queued) == ("closed", 3)


def test_a_break_after_the_offline_message_leaves_time_for_another() -> None:
    first, second = FakeLink(answers=False), FakeLink()
    publisher, door = door_over(first, second)
    until(lambda: publisher.stats().state == "online")
    put(door, 1)
    closer = threading.Thread(target=publisher.close, args=(2.0,))
    closer.start()
    until(lambda: first.contents() == ["online", 1, "offline"])
    first.drop("pulled out")
    closer.join()
    assert second.contents() == ["online", 1, "offline"]


@pytest.mark.parametrize("answers", [False, True])
def test_an_offline_message_is_sent_where_closing_has_no_time(answers: bool) -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    until(lambda: publisher.stats().state == "online")
    link.answers = answers
    put(door, 1)
    publisher.close(0)
    until(lambda: link.was_polite is not None)
    # A broker forgets the last will of one that leaves politely: without this it would be online there for ever.
    assert (link.contents()[-1], link.was_polite) == ("offline", True)


_STATUS = Message("edge/v1/default/pi/status", b"{}", kind="status")


def _event(seq: int) -> Message:
    return Message("edge/v1/default/pi/event/door", b"x" * 9, "door", "event", seq)


def test_a_broker_that_takes_nothing_costs_few_messages() -> None:
    detector = PoisonMessageDetector()
    blamed = [detector.ended([_event(0)]) is not None for _ in range(1000)]
    assert [number for number, is_blamed in enumerate(blamed, 1) if is_blamed] == [5, 13, 27, 53, 103, 201, 395, 781]
    detector.took()
    detector.relax()
    assert [detector.ended([_event(1)]) is not None for _ in range(5)] == [False] * 4 + [True]


def test_bad_luck_is_no_guilt() -> None:
    detector = PoisonMessageDetector()
    assert [detector.ended([_event(seq)]) for seq in range(100)] == [None] * 100  # each time another one
    detector.relax()
    # Never alone, or nothing of a camera.
    assert [detector.ended(flying) for flying in ([_STATUS, _event(1)], [_STATUS], []) * 100] == [None] * 300
    for _ in range(100):  # a connection that held in between
        assert [detector.ended([_event(1)]), detector.ended([_event(1)])] == [None, None]
        detector.relax()


def test_the_largest_message_is_to_blame_for_a_link_that_times_out_three_times() -> None:
    detector = PoisonMessageDetector()

    def picture(seq: int, size: int = 20_000) -> Message:
        return Message("edge/v1/default/pi/snapshot/door", b"x" * size, "door", "snapshot", seq)

    def timed_out(*messages: Message) -> Message | None:
        return detector.ended(messages, "timed out")

    flying = [_STATUS, _event(1), picture(1), picture(2, 30_000), _event(2)]
    for _ in range(2):
        assert [timed_out(*flying), timed_out(*flying)] == [None, None]
        detector.relax()  # a link that is slow holds for long
        assert timed_out(*flying) == flying[3]
    assert not detector.is_suspected
    assert [timed_out(picture(seq)) for seq in range(9)] == [None] * 9  # each time another one
    # The last one is of a size that the kernel takes at once.
    assert [timed_out(_STATUS, _event(1), picture(1, 16_000)) for _ in range(9)] == [None] * 9
    assert detector.ended(flying, "") is None


def test_a_picture_at_which_the_broker_hangs_up_is_found_behind_results_that_never_end() -> None:
    class Touchy(FakeLink):
        """Hangs up when it gets a payload of more than so many bytes, and answers what came before."""

        def publish(self, message: Message) -> int:
            number = super().publish(message)
            if message.kind in ("event", "result", "snapshot") and len(message.payload) > 1000:
                self._unanswered.remove(number)
                self.drop("connection lost")
            return number

    publisher, door = door_over(*(Touchy() for _ in range(20)))
    until(lambda: publisher.stats().state == "online")
    publisher.snapshot("door", b"x" * 2000, 1)
    numbers = itertools.count()

    def goes_on() -> bool:
        put(door, *itertools.islice(numbers, 100))  # as fast as they are answered, and faster
        return publisher.stats().snapshots_lost == 1

    until(goes_on)
    assert publisher.stats().connects <= 6
    publisher.close()


def test_a_packet_that_is_absurdly_large_ends_the_connection_before_it_takes_memory() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(Wakeup()) as wakeup:
        connection = MqttConnection(MqttSettings(host="127.0.0.1", port=listener.getsockname()[1], device="pi"), b"{}")
        connection.open()
        with listener.accept()[0] as broker:
            broker.sendall(b"\x20\x03\x00\x00\x00" + b"\x30\xff\xff\xff\x7f\x00\x01a\x00")
            until(lambda: connection.turn(0.1, wakeup) or connection.phase == "lost")  # type: ignore[func-returns-value]
        connection.close(politely=False)


# The queue of results in memory keeps the newest, and the back-off spreads.


def _of(camera: str, number: int, size: int = 10) -> Message:
    return Message(f"{camera}/{number}", bytes(size), camera)


def _names(outbox: MemoryOutbox) -> list[str]:
    return [message.topic for message in iter(outbox.take, None)]


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "size", "kept"),
    [(3, 1000, 10, [7, 8, 9]), (100, 30, 10, [7, 8, 9]), (100, 1000, 10, list(range(10))), (100, 9, 10, [])],
)
def test_the_oldest_make_room(max_messages: int, max_bytes: int, size: int, kept: list[int]) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    for number in range(10):
        outbox.put(_of("a", number, size))
        assert len(outbox) <= max_messages
    assert outbox.counts() == (10, len(kept), 10 - len(kept))
    assert _names(outbox) == [f"a/{number}" for number in kept]


@pytest.mark.parametrize(
    ("max_messages", "max_bytes", "loud_bytes"),
    [(6, 10_000, 10), (1000, 60, 10), (1000, 60, 30)],
    ids=["messages", "bytes", "large ones"],
)
def test_a_loud_camera_never_takes_a_quiet_ones_share(max_messages: int, max_bytes: int, loud_bytes: int) -> None:
    outbox = MemoryOutbox(max_messages, max_bytes)
    outbox.put(_of("quiet", 0))
    for number in range(100):
        outbox.put(_of("loud", number, loud_bytes))
        if number % 40 == 30:
            outbox.put(_of("quiet", number))
        assert len(outbox) <= max_messages
    _, queued, _ = outbox.counts("loud")
    assert (outbox.counts("quiet"), outbox.counts("loud")) == ((3, 3, 0), (100, queued, 100 - queued))
    assert outbox.counts().dropped == 100 - queued
    messages = [*iter(outbox.take, None)]
    assert sum(len(message.payload) for message in messages) <= max_bytes
    names = [message.topic for message in messages]
    assert [n for n in names if n.startswith("loud")] == [f"loud/{n}" for n in range(100 - queued, 100)]
    assert [n for n in names if n.startswith("quiet")] == ["quiet/0", "quiet/30", "quiet/70"]


def test_cameras_take_turns_each_in_its_own_order() -> None:
    outbox = MemoryOutbox()
    for camera, number in (("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("c", 0)):
        outbox.put(_of(camera, number))
    assert _names(outbox) == ["a/0", "b/0", "c/0", "a/1", "a/2", "a/3"]


def test_what_is_given_back_goes_to_its_own_camera_and_pushes_out_no_others_share() -> None:
    outbox = MemoryOutbox(max_messages=4)
    for message in (_of("a", 0), _of("b", 0)):
        outbox.put(message)
    taken = [m for m in (outbox.take(), outbox.take()) if m is not None]
    for number in range(1, 5):
        outbox.put(_of("a", number))
    outbox.give_back(taken)
    assert sorted(_names(outbox)) == ["a/2", "a/3", "a/4", "b/0"]
    assert (outbox.counts("a").dropped, outbox.counts("b").dropped) == (2, 0)


def test_what_is_offered_takes_nobodys_room() -> None:
    outbox = MemoryOutbox(max_messages=2, max_bytes=100)
    offered = [_of("a", 0), _of("b", 0, 95), _of("b", 1), _of("a", 1)]
    assert [outbox.offer(message) for message in offered] == [True, False, True, False]
    assert _names(outbox) == ["a/0", "b/1"]
    assert outbox.offer(_of("a", 2, 101)), "above all bounds: there is no room to wait for"
    assert outbox.counts() == (3, 0, 1)


def test_back_off_doubles_up_to_its_longest_and_begins_again() -> None:
    waits = list[tuple[float, float]]()
    backoff = Backoff(1, 10, uniform=lambda low, high: waits.append((low, high)) or high)  # type: ignore[func-returns-value]
    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert waits[:2] == [(0.5, 1), (1, 2)]  # jitter takes the upper half
    backoff.reset()
    assert [backoff.next_s() for _ in range(2)] == [1, 2]
    assert [backoff.next_s(slow=True), backoff.next_s()] == [10, 10]  # after a refusal


# Events and pictures through a publisher beside results, and at most so many a second.


def _events(link: FakeLink) -> list[tuple[str, int]]:
    documents = link.documents("event")
    return [(d["kind"], d["seq"] - documents[0]["seq"]) for d in documents]


def _tell(stream: MqttStream, *kinds: str) -> None:
    for kind in kinds:
        stream.put(Event(kind=kind, camera="elsewhere"))


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
    assert [*(kind for kind, _ in again[:2]), *again[2:]] == ["event", "event", ("result", 1), ("snapshot", 9)]


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


def _limited(link: FakeLink, *, is_away: bool = False, outbox: EventOutbox | None = None, **channels: Any) -> Door:
    """A publisher with rate limits, over a link that stays closed until it may open."""
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
        publisher, stream = _limited(link, is_away=True, outbox=events, events=Channel(qos=1, max_per_s=20.0))
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


def test_what_is_held_goes_before_what_comes_after_its_time_and_takes_no_place_but_its_own() -> None:
    gone: list[int] = []

    def go(item: int) -> int:
        gone.append(item)
        return item

    times_s = iter([100.0, 100.0, 101.5, 106.5])  # of a clock that each item reads once
    pace = RateLimiter(1.0, go, lambda: next(times_s))
    assert [pace.put("door", item) for item in (1, 2, 3, 4)] == [1, None, None, 4]
    assert (gone, pace.limited("door")) == ([1, 2, 3, 4], 0)
