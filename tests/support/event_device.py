"""Devices that put events in a process of their own, which tests kill, and say which are acknowledged.

Run as `python -m tests.support.event_device events|library PORT FOLDER RATE`. A line `first N` comes first, then
`committed N` after every commit: all numbers in between are acknowledged. `late PORT CA_FILE FOLDER` is another one.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff
from edge_sdk.messages.schema import Identity
from edge_sdk.outbox.event import OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publisher import Publisher
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.session import ConnectionState
from edge_sdk.publishing.settings import MqttSettings
from tests.support.outboxes import say_acknowledged
from tests.support.results import make_encoder

DEVICE, CAMERA = "pi", "door"


def events(port: str, folder: str, rate: str) -> None:
    """Put events by the parts of the publisher until somebody ends this."""
    identity = Identity(DEVICE)
    settings = OutboxSettings(folder=Path(folder))
    outbox = EventOutbox(settings, settings.path_of("default", DEVICE), identity.boot_id)
    broker = MqttSettings(host="127.0.0.1", port=int(port), device=DEVICE, keepalive_s=2)
    publisher = MqttPublisher(broker, identity, events=outbox, backoff=Backoff(0.05, 0.2))
    stream = publisher.stream(CAMERA, make_encoder(identity))
    outbox.wait_committed(60.0)  # with nothing put: the file is read, and `first` has its number
    begun, count, numbers = time.monotonic(), 0, deque[int | None]([None], maxlen=1)
    while True:
        number = stream.put_event(lambda seq: encoded(identity, seq))
        numbers.append(number)
        if count == 0:
            _say(f"first {number}")
            say_acknowledged(outbox, numbers, lambda number: _say(f"committed {number}"))
        count += 1
        time.sleep(max(0.0, begun + count / float(rate) - time.monotonic()))


def encoded(identity: Identity, seq: int) -> bytes:
    return msgspec.json.encode({"device": DEVICE, "camera": CAMERA, "seq": seq, "run_id": identity.run_id})


def library(port: str, folder: str, rate: str) -> None:
    """A program of the user's that puts events with `Publisher` until somebody ends this."""
    publisher = Publisher.open(f"mqtt://127.0.0.1:{port}", device=DEVICE, outbox=folder)
    count = 0
    while True:
        number = publisher.put_event(Event(kind="door opened", camera=CAMERA, detail={"count": count}))
        if count == 0:
            _say(f"first {number}")
        count += 1
        if count % 7 == 1 and publisher.wait_committed(60.0):
            _say(f"committed {number}")
        time.sleep(1 / float(rate))


def late(port: str, ca_file: str, folder: str) -> None:
    """Tell one event over TLS, say what is heard of the broker, and end when that has the event."""
    identity = Identity(DEVICE)
    broker = MqttSettings(host="localhost", port=int(port), tls=True, ca_file=Path(ca_file), device=DEVICE)
    outbox = EventOutbox(OutboxSettings(), Path(folder) / "events.sqlite", identity.boot_id)
    publisher = MqttPublisher(broker, identity, on_state=_say_state, events=outbox, backoff=Backoff(0.05, 0.2))
    publisher.stream(CAMERA, make_encoder(identity)).put(Event(kind="rang"))
    while not publisher.stats().events.delivered:
        time.sleep(0.01)
    publisher.close()


def _say_state(state: ConnectionState, detail: str) -> None:
    _say(f"{state}: {detail}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"events": events, "library": library, "late": late}[sys.argv[1]](*sys.argv[2:])
