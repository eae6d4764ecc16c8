"""Broker connections made by hand, publishers over them, and messages of devices that are not there."""

import select
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import msgspec

from edge_sdk.core.threads import Backoff, Wakeup
from edge_sdk.fleet.fleet import Fleet
from edge_sdk.fleet.messages import DeviceAddress, read
from edge_sdk.messages.schema import Message, MessageKind, Receiver
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.publisher import MqttPublisher, MqttStream, Stream
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings, Phase, PublishOutcome
from tests.support.broker import WAIT_S, wait_until
from tests.support.results import IDENTITY, make_detections, make_encoder, make_frame

# A connection to a broker, made by hand: answers at once, or when told to.


class FakeLink:
    """A connection whose broker is a few lines: answers at once, or when told to."""

    def __init__(
        self, *, phase: Phase = "up", detail: str = "", error: Exception | None = None, window: int = 20,
        answers: bool = True, complaint: str = "",
        judge: Callable[[MessageKind, Message], tuple[str, int]] | None = None, limit: int = 10**9,
    ) -> None:  # fmt: skip
        self.phase: Phase = "opening"
        self.detail = ""
        self.window = window
        self._becomes: tuple[Phase, str] = (phase, detail)
        self._error = error
        self.answers = answers
        self._judge = judge or (lambda _kind, _message: (complaint, 0x80 if complaint else 0))
        self._limit = limit
        self._unanswered: list[int] = []
        self.published: list[tuple[MessageKind, Message]] = []
        self.most_unanswered = 0
        self.is_heard = False
        self.doubtful: dict[str, str] = {}
        self.was_polite: bool | None = None
        self.pace, self.pause_s = 10**9, 0.0  # messages that are answered at once, and how long that takes
        self.receiver: Receiver | None = None
        self.may_open = threading.Event()
        self.may_open.set()

    def open(self) -> None:
        self.may_open.wait()
        if self._error is not None:
            raise self._error

    def turn(self, timeout_s: float, wakeup: Wakeup) -> None:
        if self.phase == "opening":
            self.phase, self.detail = self._becomes
        elif timeout_s and not (self.answers and self._unanswered):
            self._poll(timeout_s, wakeup)

    def _poll(self, timeout_s: float, wakeup: Wakeup) -> None:
        poll = select.poll()
        poll.register(wakeup.fileno(), select.POLLIN)
        until = time.monotonic() + timeout_s
        while self.phase == "up" and not (self.answers and self._unanswered) and time.monotonic() < until:
            if poll.poll(5):
                wakeup.clear()
                return

    def fits(self, message: Message) -> bool:
        return message.kind not in ("result", "event", "snapshot") or len(message.payload) <= self._limit

    def acknowledges(self, kind: MessageKind) -> bool:
        return True

    def publish(self, message: Message) -> int:
        self.published.append((message.kind, message))
        self._unanswered.append(len(self.published))
        self.most_unanswered = max(self.most_unanswered, len(self._unanswered))
        return len(self.published)

    def finished(self) -> list[PublishOutcome]:
        if not self.answers:
            return []
        time.sleep(self.pause_s)
        answered, self._unanswered = self._unanswered[: self.pace], self._unanswered[self.pace :]
        return [PublishOutcome(number, *self._judge(*self.published[number - 1])) for number in answered]

    def heard(self) -> bool:
        is_heard, self.is_heard = self.is_heard, False
        return is_heard or (self.answers and bool(self._unanswered))

    def listen(self, topics: Sequence[str], receiver: Receiver) -> None:
        self.receiver = receiver

    def warnings(self) -> dict[str, str]:
        return dict(self.doubtful)

    def close(self, *, politely: bool) -> None:
        self.was_polite = politely

    def drop(self, detail: str) -> None:
        self.phase, self.detail = "lost", detail

    def documents(self, *kinds: MessageKind) -> list[dict[str, Any]]:
        return [msgspec.json.decode(message.payload) for kind, message in list(self.published) if kind in kinds]

    def contents(self) -> list[object]:
        """Sequence numbers of results, and words of statuses."""
        return [d.get("seq", d.get("status")) for d in self.documents("result", "status")]

    def cameras(self) -> list[dict[str, Any]]:
        return [d["cameras"] for d in self.documents("state")]


# Tests of the publisher: make one over fake connections, give it results, wait for what happens.


class Door(NamedTuple):
    publisher: MqttPublisher
    stream: MqttStream


def publisher_over(
    *links: FakeLink, keepalive_s: int = 30, events: EventOutbox | None = None,
    on_state: Callable[[ConnectionState, str], None] = lambda _state, _detail: None, **changes: Any,
) -> MqttPublisher:  # fmt: skip
    remaining = iter(links)
    return MqttPublisher(
        MqttSettings(host="broker", port=1883, device="pi", keepalive_s=keepalive_s), IDENTITY, on_state=on_state,
        events=events, backoff=Backoff(0.001, 0.002),
        make_link=lambda: next(remaining, FakeLink(error=ConnectionRefusedError(111, "Connection refused"))), **changes,
    )  # fmt: skip


def door_over(*links: FakeLink, **changes: Any) -> Door:
    """The same, with one camera that is there before the first connection: nothing follows the first status."""
    links[0].may_open.clear()
    publisher = publisher_over(*links, **changes)
    stream = publisher.stream("door", make_encoder())
    links[0].may_open.set()
    return Door(publisher, stream)


def put(stream: Stream, *numbers: int, count: int = 1) -> None:
    for number in numbers:
        stream.put(make_detections(count, make_frame(number, stream.camera)))


def has_connected(publisher: MqttPublisher, times: int) -> Callable[[], bool]:
    return lambda: publisher.stats().connects == times


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what a test waits for", WAIT_S)


# Messages of devices that are not there, as a subscriber hears them.

NOON = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
_WHO = {"schema": 1, "device": "pi", "boot_id": "b", "run_id": "r"}
MODEL = {"name": "yolo", "version": 3, "sha256": "00"}


def status(word: str = "online", **more: Any) -> bytes:
    return msgspec.json.encode({"stream": "status", **_WHO, "status": word, **more})


def state(cameras: dict[str, Any], **more: Any) -> bytes:
    return msgspec.json.encode({"stream": "state", **_WHO, "cameras": cameras, **more})


def detections(*found: tuple[str, float], seq: int = 0, **more: Any) -> bytes:
    items = [
        {"label": label, "class_id": len(label), "confidence": sure, "box_xyxy": [1.0, 2.0, 11.0, 22.0]}
        for label, sure in found
    ]
    head = {"task": "detection", "stream": "result", **_WHO, "camera": "gate", "seq": seq, "captured_at": NOON}
    rest = {"age_ms": 17.4, "infer_ms": 3.0, "model": MODEL, "frame": {"width": 640, "height": 480}}
    return msgspec.json.encode({**head, **rest, "detections": items, **more})


def hear(fleet: Fleet, topic: str, payload: bytes, now: datetime = NOON, *, is_retained: bool = False) -> list[str]:
    """What a fleet finds new in one message on a topic below `edge/v1`."""
    address = DeviceAddress.of(f"edge/v1/{topic}", "edge/v1")
    assert address is not None
    return fleet.take(address, read(address.kind, payload), now, is_retained=is_retained)
