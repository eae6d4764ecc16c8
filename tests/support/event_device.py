"""A device that puts events and says on standard output which of them are acknowledged; killed by tests.

Run as `python -m tests.support.event_device PORT FOLDER RATE`. A line `first N` comes first, then `committed N` after
every commit: all numbers in between are acknowledged.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from edge_sdk.publishing import Backoff, Identity, MqttPublisher, MqttSettings
from edge_sdk.publishing.durable import EventOutbox, OutboxSettings
from tests.support.results import make_encoder

DEVICE, CAMERA = "pi", "door"


def main(port: int, folder: Path, rate: float) -> None:
    """Put events until somebody ends this."""
    identity = Identity(DEVICE)
    settings = OutboxSettings(folder=folder)
    events = EventOutbox(settings, settings.path_of("default", DEVICE), identity.boot_id)
    broker = MqttSettings(host="127.0.0.1", port=port, device=DEVICE, keepalive_s=2)
    publisher = MqttPublisher(broker, identity, events=events, backoff=Backoff(0.05, 0.2))
    stream = publisher.stream(CAMERA, make_encoder(identity))
    said = None
    events.wait_committed(60.0)  # with nothing put: the file is read, and `first` has its number
    begun, count = time.monotonic(), 0
    while True:
        number = stream.put_event(lambda seq: encoded(identity, seq))
        if count == 0:
            _say(f"first {number}")
        count += 1
        committed = events.committed_seq(CAMERA)
        if committed != said:
            said = committed
            _say(f"committed {committed}")
        time.sleep(max(0.0, begun + count / rate - time.monotonic()))


def encoded(identity: Identity, seq: int) -> bytes:
    """A message that says which one it is."""
    return msgspec.json.encode({"device": DEVICE, "camera": CAMERA, "seq": seq, "run_id": identity.run_id})


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
