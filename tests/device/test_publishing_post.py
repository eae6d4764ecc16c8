"""Single messages beside results, and what comes from the broker, over connections made by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from edge_sdk.commands import Inbox
from edge_sdk.publishing import Incoming, Message, MqttPublisher, MqttSettings
from edge_sdk.publishing.post import Post
from tests.device.delivery import until
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_detections, make_encoder, make_frame


class Counter:
    """A post, and the clock that it goes by."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.post = Post(lambda: self.now_s)

    def said(self) -> list[tuple[str, bytes]]:
        found = iter(lambda: self.post.take(self.now_s), None)
        return [(message.topic, message.payload) for _, message in found]


def test_what_is_kept_is_said_at_once_then_once_a_second_and_the_last_always() -> None:
    counter = Counter()
    post = counter.post
    post.keep("seen", "a", b"1")
    assert counter.said() == [("a", b"1")]
    for payload in (b"2", b"3"):
        post.keep("seen", "a", payload)
    post.keep("seen", "b", b"1")
    assert counter.said() == [("b", b"1")]
    assert 0 < post.wait_s(counter.now_s) <= 1
    counter.now_s += 1
    assert post.wait_s(counter.now_s) == 0
    assert counter.said() == [("a", b"3")]
    assert (post.wait_s(counter.now_s), post.has_news) == (math.inf, False)


def test_the_same_again_is_no_news_but_after_a_connection_or_on_request() -> None:
    counter = Counter()
    post = counter.post
    post.keep("discovery", "a", b"1")
    post.keep("discovery", "b", b"")
    counter.said()
    post.keep("discovery", "a", b"1")
    assert not post.has_news
    post.begin()
    assert counter.said() == [("a", b"1"), ("b", b"")]
    counter.now_s += 1
    post.repeat("a")
    post.repeat("unknown")
    assert counter.said() == [("a", b"1")]


def test_of_what_is_said_once_the_newest_wait() -> None:
    counter = Counter()
    for number in range(40):
        counter.post.send("response", Message("r", b"%d" % number))
    assert [payload for _, payload in counter.said()] == [b"%d" % number for number in range(8, 40)]


def _publisher(link: FakeLink, inbox: Inbox) -> MqttPublisher:
    settings = MqttSettings(host="broker", port=1883, device="pi")
    return MqttPublisher(settings, IDENTITY, make_link=lambda: link, listens_to=["x/cmd"], receiver=inbox)


def test_what_comes_is_left_in_the_inbox_and_answered() -> None:
    link, inbox = FakeLink(), Inbox()
    publisher = _publisher(link, inbox)
    until(lambda: link.subscribed == ["x/cmd"])
    link.incoming.append(Incoming("x/cmd", b"{}", correlation=b"7"))
    link.refused.append("the broker does not let this device read x/cmd")
    taken: list[Incoming] = []
    until(lambda: bool(taken) or bool(taken.extend(inbox.take()[0])))
    assert [incoming.correlation for incoming in taken] == [b"7"]
    until(lambda: inbox.take_refusals() == ["the broker does not let this device read x/cmd"])
    publisher.answer(Message("x/res", b"{}", correlation=b"7"))
    until(lambda: ("response", "x/res", b"7") in [(k, m.topic, m.correlation) for k, m in link.published])
    publisher.close(5)


def test_an_answer_goes_out_before_the_goodbye() -> None:
    link, inbox = FakeLink(), Inbox()
    publisher = _publisher(link, inbox)
    until(lambda: publisher.stats().connects == 1)
    link.answers = False
    publisher.stream("door", make_encoder())
    publisher.answer(Message("x/res", b"{}"))
    link.answers = True
    publisher.close(5)
    kinds = [kind for kind, _ in link.published]
    assert kinds.index("response") < len(kinds) - 1
    assert kinds[-1] == "status"


@pytest.mark.parametrize("is_finite", [True, False])
def test_what_is_seen_is_said_when_it_changes(is_finite: bool) -> None:
    link = FakeLink()
    publisher = _publisher(link, Inbox())
    stream = publisher.stream("door", make_encoder())
    for number, count in enumerate((2, 2, 2, 0)):
        result = make_detections(count, make_frame(number))
        stream.see(msgspec.structs.replace(result, is_finite=is_finite))
    if not is_finite:  # nothing is known of what there is: no count falls to 0 for that
        assert not publisher._delivery.post.has_news
    else:
        until(lambda: [d["total"] for d in link.documents("seen")][-1:] == [0])
        assert len(link.documents("seen")) <= 2
    stream.close()
    until(lambda: not is_finite or link.published[-1][1].payload == b"")
    publisher.close(5)
