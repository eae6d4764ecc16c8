"""Refusals: messages that the broker answers with a complaint: which topic, and what its ACL must allow.

Owns that each is said once, stands in the state for as long as it lasts, and that what is retained is offered again.
Of events the outbox tells itself.
"""

from __future__ import annotations

from edge_sdk.publishing.board import Board
from edge_sdk.publishing.link import NOT_AUTHORIZED, Answer
from edge_sdk.publishing.notices import Notices
from edge_sdk.publishing.topics import Topics

_NAME = "messages_refused"


class Refusals:
    """Of one device; for the publisher's thread.

    Args:
        topics: the device's own.
        board: what the device says of itself.
        notices: what is retained; it is sent again later where it was refused.
    """

    def __init__(self, topics: Topics, board: Board, notices: Notices) -> None:
        self._own, self._board, self._notices = topics.own, board, notices
        self._response = topics.response
        self._refused: dict[str, str] = {}  # lines by topic
        self._said: set[str] = set()
        self._line = ""

    def begin(self) -> None:
        """There is a new connection, perhaps with other rights."""
        self._refused.clear()
        self._said.clear()
        self._board.warn_of_device(_NAME, "")

    def take_line(self) -> str:
        """What is to be said now, for people; mostly empty. Of all topics that miss one right it is said once."""
        line, self._line = self._line, ""
        return line

    def settle(self, topic: str, answer: Answer) -> None:
        """A message was answered, or left."""
        if topic.startswith(self._response + "/"):  # who asks chooses how it goes on
            topic = self._response
        if answer.complaint:
            self._refuse(topic, answer)
        elif self._refused and self._refused.pop(topic, ""):
            self._board.warn_of_device(_NAME, next(iter(self._refused.values()), ""))

    def _refuse(self, topic: str, answer: Answer) -> None:
        self._notices.repeat_later(topic)
        if topic in self._refused:
            return
        why = answer.complaint
        if answer.code == NOT_AUTHORIZED and topic.startswith(self._own):
            why += f"; its ACL must let this device write below {self._own}"
        elif answer.code == NOT_AUTHORIZED:
            why += "; its ACL must let this device write there"
        self._refused[topic] = line = f"the broker did not take a message on {topic}: {why}"
        self._board.warn_of_device(_NAME, next(iter(self._refused.values())))
        reason = why if topic.startswith(self._own) else line
        if reason not in self._said:
            self._said.add(reason)
            self._line = line
