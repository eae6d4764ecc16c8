"""A device that has one event to tell over TLS, says what it hears of its broker, and ends when that has the event.

Run as `python -m tests.support.late_device PORT CA_FILE FOLDER`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from edge_sdk.event import Event
from edge_sdk.publishing import Backoff, EventOutbox, Identity, MqttPublisher, MqttSettings, OutboxSettings, State
from tests.support.results import make_encoder


def main(port: int, ca_file: Path, folder: Path) -> None:
    """Try every fraction of a second, where a real one waits for up to a minute."""
    identity = Identity("pi")
    broker = MqttSettings(host="localhost", port=port, tls=True, ca_file=ca_file, device="pi")
    events = EventOutbox(OutboxSettings(), folder / "events.sqlite", identity.boot_id)
    publisher = MqttPublisher(broker, identity, on_state=_say, events=events, backoff=Backoff(0.05, 0.2))
    publisher.stream("door", make_encoder(identity)).put(Event(kind="rang"))
    while not publisher.stats().events.delivered:
        time.sleep(0.01)
    publisher.close()


def _say(state: State, detail: str) -> None:
    sys.stdout.write(f"{state}: {detail}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
