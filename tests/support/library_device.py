"""A program of the user's that puts events with `Publisher`, and says which are acknowledged; killed by tests.

Run as `python -m tests.support.library_device PORT FOLDER RATE`, with the lines of `event_device`.
"""

from __future__ import annotations

import sys
import time

from edge_sdk import Event, Publisher

_WAIT_S = 60.0


def main(port: str, folder: str, rate: float) -> None:
    """Put events until somebody ends this."""
    publisher = Publisher.open(f"mqtt://127.0.0.1:{port}", device="pi", outbox=folder)
    count = 0
    while True:
        number = publisher.put_event(Event(kind="door opened", camera="door", detail={"count": count}))
        if count == 0:
            _say(f"first {number}")
        count += 1
        if count % 7 == 1 and publisher.wait_committed(_WAIT_S):
            _say(f"committed {number}")
        time.sleep(1 / rate)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
