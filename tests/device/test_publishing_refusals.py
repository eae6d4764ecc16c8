"""What a broker refuses is said once for each right that is missing, shown while it lasts, and offered again."""

from __future__ import annotations

import msgspec

from edge_sdk.publishing import Topics
from edge_sdk.publishing.board import Board
from edge_sdk.publishing.link import NOT_AUTHORIZED, Answer
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.refusals import Refusals
from tests.device.results import IDENTITY

_TAKEN, _REFUSED = Answer(1), Answer(1, "Not authorized", NOT_AUTHORIZED)
_OURS, _THEIRS = "edge/v1/default/pi/", "homeassistant/device/pi/config"


class Refused:
    """Refusals with a clock that goes by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.board, topics = Board(IDENTITY, {}), Topics("edge/v1", "default", "pi")
        self.notices = Notices(self.board, topics, lambda: self.now_s)
        self.post = self.notices.post
        self.refusals = Refusals(topics, self.board, self.notices)

    def said(self, topic: str, answer: Answer = _REFUSED) -> str:
        self.refusals.settle(topic, answer)
        return self.refusals.take_line()

    @property
    def warning(self) -> str:
        warnings: dict[str, str] = msgspec.json.decode(self.board.state()).get("warnings", {})
        return warnings.get("messages_refused", "")


def test_topics_that_miss_one_right_are_said_once_and_another_right_for_itself() -> None:
    refused = Refused()
    first = refused.said(f"{_OURS}result/gate")
    assert first == (
        f"the broker did not take a message on {_OURS}result/gate: Not authorized; its ACL must let this device write "
        f"below {_OURS}"
    )
    assert refused.said(f"{_OURS}result/gate") == ""
    assert refused.said(f"{_OURS}result/yard") == ""
    assert refused.said(_THEIRS) == (
        f"the broker did not take a message on {_THEIRS}: Not authorized; its ACL must let this device write there"
    )
    assert refused.said(f"{_OURS}seen/gate", Answer(1, "Quota exceeded", 0x97)).endswith("seen/gate: Quota exceeded")
    assert refused.warning == first


def test_it_is_shown_until_all_is_taken_or_there_is_another_connection() -> None:
    refused = Refused()
    first, second = refused.said(f"{_OURS}result/gate"), refused.said(_THEIRS)
    assert refused.said(f"{_OURS}result/gate", _TAKEN) == ""
    assert refused.warning == second
    assert refused.said(f"{_OURS}status", _TAKEN) == ""
    assert refused.said(_THEIRS, _TAKEN) == ""
    assert refused.warning == ""
    refused.said(_THEIRS)
    refused.refusals.begin()
    assert refused.warning == ""
    assert refused.said(f"{_OURS}result/gate") == first


def test_what_is_retained_is_offered_again_in_a_minute() -> None:
    refused = Refused()
    refused.post.keep("discovery", _THEIRS, b"{}")
    assert refused.post.take(refused.now_s) is not None
    refused.said(_THEIRS)
    refused.said(f"{_OURS}result/gate")  # nothing is kept there
    assert (refused.post.take(refused.now_s + 59), refused.post.wait_s(refused.now_s)) == (None, 60)
    found = refused.post.take(refused.now_s + 60)
    assert found is not None
    assert (found[1].topic, found[1].payload) == (_THEIRS, b"{}")


def test_a_state_that_was_refused_is_offered_again_in_a_minute() -> None:
    refused = Refused()
    while refused.notices.take() is not None:
        pass
    refused.said(f"{_OURS}state")
    refused.now_s += 59
    assert refused.notices.take() is None
    refused.now_s += 1
    found = refused.notices.take()
    assert found is not None
    assert found[1].topic == f"{_OURS}state"


def test_answers_that_are_refused_are_one_however_their_topics_go_on() -> None:
    refused = Refused()
    said = [refused.said(f"{_OURS}res/{number}") for number in range(100)]
    assert [line.split(":")[0] for line in said if line] == [f"the broker did not take a message on {_OURS}res"]
    assert refused.said(f"{_OURS}res/other", _TAKEN) == refused.warning == ""
    refused.said(f"{_OURS}result/gate")
    assert "result/gate" in refused.warning
