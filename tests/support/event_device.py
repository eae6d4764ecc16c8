"""A program that puts events with `Publisher`, which tests kill, and that says which are acknowledged.

Run as `python -m tests.support.event_device PORT FOLDER RATE`. A line `first N` comes first, then `committed N` after
every commit: all numbers in between are acknowledged.
"""

import itertools
import sys
import time
from collections import deque

import msgspec

from edge_sdk.core.protocols import Event
from edge_sdk.messages.schema import Identity
from edge_sdk.publisher import Publisher
from tests.support.outboxes import say_acknowledged

DEVICE, CAMERA = "pi", "door"


def main(port: str, folder: str, rate: str) -> None:
    publisher = Publisher.open(f"mqtt://127.0.0.1:{port}", device=DEVICE, outbox=folder)
    begun, numbers = time.monotonic(), deque[int | None]([None], maxlen=1)
    for count in itertools.count():
        number = publisher.put_event(Event(kind="door opened", camera=CAMERA, detail={"count": count}))
        if count == 0:
            _say(f"first {number}")
            say_acknowledged(publisher, numbers, lambda number: _say(f"committed {number}"))
        numbers.append(number)
        time.sleep(max(0.0, begun + (count + 1) / float(rate) - time.monotonic()))


def encoded(identity: Identity, seq: int) -> bytes:
    """An event as a device tells it, as far as a subscriber of the tests looks at it."""
    return msgspec.json.encode({"device": DEVICE, "camera": CAMERA, "seq": seq, "run_id": identity.run_id})


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
