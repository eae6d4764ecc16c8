"""Delivery over a connection made by hand: windows, refusals, breaks and goodbyes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from edge_sdk.publishing import Backoff, Identity, MemoryOutbox, MqttPublisher, MqttSettings, State
from tests.device.delivery import WAIT_S, door_over, has_connected, put, until
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_detections, make_encoder, make_frame


def test_online_results_offline_in_that_order() -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    put(door, 1, 2, 3)
    publisher.close()
    publisher.close()
    assert link.contents() == ["online", 1, 2, 3, "offline"]
    assert link.goodbye is True
    stats = publisher.stats()
    assert (stats.put, stats.sent, stats.acknowledged, stats.rejected, stats.queued) == (3, 3, 3, 0, 0)
    assert (stats.state, stats.connects, stats.last_error) == ("closed", 1, "")


@pytest.mark.parametrize("others_on_their_way", [False, True])
def test_a_put_wakes_a_publisher_that_has_nothing_to_do(others_on_their_way: bool) -> None:
    link = FakeLink()
    publisher, door = door_over(link)
    until(lambda: publisher.stats().state == "online")
    link.answers = not others_on_their_way
    deadline = time.monotonic() + WAIT_S
    for number in range(18):
        put(door, number)
        while len(link.published) < number + 3 and time.monotonic() < deadline:
            time.sleep(0.002)
    assert len(link.published) == 20, "each waited for the end of a turn, one second"
    link.answers = True
    publisher.close()


def test_no_more_than_a_window_is_on_its_way() -> None:
    link = FakeLink(window=4, answers=False)
    publisher, door = door_over(link, outbox=MemoryOutbox(max_messages=10))
    until(lambda: publisher.stats().state == "online")
    put(door, *range(100))
    until(lambda: len(link.published) == 4)
    put(door, *range(100, 200))
    assert link.most_unanswered == 4
    assert publisher.stats().queued == 10
    link.answers = True
    until(lambda: publisher.stats().queued == 0)
    assert link.most_unanswered == 4
    publisher.close()
    assert link.contents()[-11:] == [*range(190, 200), "offline"]


def test_what_was_not_answered_is_sent_again_after_a_break() -> None:
    first, second = FakeLink(answers=False), FakeLink()
    publisher, door = door_over(first, second)
    until(lambda: publisher.stats().state == "online")
    put(door, 1, 2, 3)
    until(lambda: len(first.published) == 5)
    first.drop("pulled out")
    until(lambda: publisher.stats().sent == 3)
    publisher.close()
    assert second.contents() == ["online", 1, 2, 3, "offline"]
    assert first.goodbye is False
    assert publisher.stats().last_error == "pulled out"


def test_a_broker_that_stops_answering_is_left() -> None:
    first, second = FakeLink(answers=False), FakeLink()
    publisher, door = door_over(first, second, keepalive_s=1)
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    assert publisher.stats().last_error == "the broker answered nothing for 2 s"
    publisher.close()


def test_a_port_that_answers_and_is_no_broker_s_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk.publishing.delivery._ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        settings = MqttSettings(host="127.0.0.1", port=mute.getsockname()[1], device="pi")
        publisher = MqttPublisher(settings, Identity("pi"))
        until(lambda: publisher.stats().last_error.endswith("is this a broker's port?"))
        publisher.close(0.5)


@pytest.mark.parametrize(
    ("link", "state", "detail"),
    [
        (FakeLink(error=ConnectionRefusedError(111, "Connection refused")), "connecting", "Connection refused"),
        (FakeLink(error=TimeoutError("timed out")), "connecting", "timed out"),
        (FakeLink(error=ValueError("malformed")), "connecting", "ValueError: malformed"),
        (FakeLink(phase="refused", detail="Not authorized"), "refused", "Not authorized"),
        (FakeLink(phase="lost", detail="Server busy"), "connecting", "Server busy"),
    ],
)
def test_trouble_is_said_once_and_ends_by_itself(link: FakeLink, state: State, detail: str) -> None:
    states: list[tuple[State, str]] = []
    publisher, _door = door_over(link, FakeLink(), on_state=lambda s, d: states.append((s, d)))
    until(lambda: publisher.stats().state == "online")
    publisher.close()
    assert states[0][0] == state
    assert detail in states[0][1]
    assert [s for s, _ in states[1:]] == ["online", "closed"]
    assert detail in publisher.stats().last_error


def test_a_broker_that_takes_and_drops_again_and_again_hints_at_a_rival() -> None:
    states: list[tuple[State, str]] = []
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
    publisher.close()
    assert link.contents() == ["online", 2, "offline"]
    assert publisher.stats().too_large == 1
    assert "maximum packet size" in publisher.stats().last_error


def test_a_complaint_is_counted_and_said_once() -> None:
    states: list[tuple[State, str]] = []
    publisher, door = door_over(FakeLink(complaint="Not authorized"), on_state=lambda s, d: states.append((s, d)))
    put(door, 1, 2)
    publisher.close()
    stats = publisher.stats()
    assert (stats.sent, stats.acknowledged, stats.rejected) == (2, 0, 2)
    refused = ("online", "the broker did not take a message on edge/v1/default/pi/status: Not authorized")
    assert states == [("online", ""), refused, ("closed", "")]


def test_the_listener_is_called_from_the_publishers_thread() -> None:
    threads: list[str] = []
    publisher, _door = door_over(FakeLink(), on_state=lambda *_: threads.append(threading.current_thread().name))
    publisher.close()
    assert set(threads) == {"edge-mqtt"}


@pytest.mark.parametrize(
    ("link", "queued"),
    [
        (FakeLink(error=ConnectionRefusedError(111, "Connection refused")), 3),
        (FakeLink(phase="refused", detail="Not authorized"), 3),
        (FakeLink(phase="opening"), 3),
        (FakeLink(answers=False), 3),
    ],
)
def test_close_gives_up_in_time(link: FakeLink, queued: int) -> None:
    publisher, door = door_over(link)
    put(door, 1, 2, 3)
    publisher.close(timeout_s=0.5)
    assert not publisher._thread.is_alive()
    assert publisher.stats().state == "closed"
    assert publisher.stats().queued == queued


def test_a_break_after_the_goodbye_leaves_time_for_another() -> None:
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


def test_close_before_the_first_connection_still_delivers() -> None:
    link = FakeLink()
    publisher, door = door_over(FakeLink(error=ConnectionRefusedError(111, "Connection refused")), link)
    put(door, 1)
    publisher.close()
    assert link.contents() == ["online", 1, "offline"]


def test_put_waits_for_no_network() -> None:
    class Hanging(FakeLink):
        def open(self) -> None:
            assert go_on.wait(WAIT_S)

    go_on = threading.Event()
    link = Hanging()
    publisher, door = door_over(link)
    put(door, 1, 2, 3)
    assert publisher.stats().queued == 3
    assert not go_on.is_set()
    go_on.set()
    publisher.close()
    assert link.contents() == ["online", 1, 2, 3, "offline"]


def test_a_connection_that_cannot_be_made_is_tried_again() -> None:
    links: Iterator[FakeLink | Exception] = iter([UnicodeEncodeError("utf-8", "x", 0, 1, "surrogate"), FakeLink()])

    def make_link() -> FakeLink:
        found = next(links)
        if isinstance(found, Exception):
            raise found
        return found

    settings = MqttSettings(host="broker", port=1883, device="pi")
    publisher = MqttPublisher(settings, IDENTITY, backoff=Backoff(0.001, 0.002), make_link=make_link)
    door = publisher.stream("door", make_encoder())
    put(door, 1)
    until(lambda: publisher.stats().sent == 1)
    assert "UnicodeEncodeError" in publisher.stats().last_error
    publisher.close()


def test_put_after_close_does_no_harm() -> None:
    publisher, door = door_over(FakeLink(), outbox=MemoryOutbox(max_messages=2))
    publisher.close()
    put(door, 1, 2, 3)
    assert publisher.stats().queued == 2
