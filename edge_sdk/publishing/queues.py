"""Queues: what the cameras' streams have put, each kind at its pace: events, results, snapshots.

Owns the pace of results and snapshots, and which goes first. How much of a kind may wait is its outbox's matter, and
the pace of events, which are held whether or not there is a connection, is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable

from edge_sdk.publishing.channels import Channel
from edge_sdk.publishing.durable import Encode, EventOutbox
from edge_sdk.publishing.outbox import CameraKind, MemoryOutbox, Message, Waiting
from edge_sdk.publishing.pace import Pace

_MOST_SNAPSHOTS = 16
_SNAPSHOT_BYTES = 4_000_000


class Queues:
    """Of all cameras; filled by their threads, emptied by the one that publishes.

    Args:
        results: where results wait.
        events: where events go.
        channels: how each kind travels.
    """

    def __init__(self, results: MemoryOutbox, events: EventOutbox, channels: dict[CameraKind, Channel]) -> None:
        self._events = events
        self._outboxes: dict[CameraKind, MemoryOutbox] = {  # in the order in which they are served
            "result": results,
            "snapshot": MemoryOutbox(_MOST_SNAPSHOTS, _SNAPSHOT_BYTES),
        }
        self._paces: dict[CameraKind, Pace[Message, None]] = {
            kind: Pace(channels[kind].max_per_s, outbox.put) for kind, outbox in self._outboxes.items()
        }
        self._latest: CameraKind = "snapshot"
        events.limit(channels["event"].max_per_s)

    def __len__(self) -> int:
        """Results and snapshots that wait."""
        return sum(map(len, self._outboxes.values()))

    def put(self, message: Message) -> None:
        """Append one message of a camera, or hold it until its time has come."""
        self._paces[message.kind].put(message.camera, message)

    def put_at_once(self, message: Message) -> None:
        """Append one message of a camera, whatever its rate: somebody asked for it."""
        self._outboxes[message.kind].put(message)

    def put_event(self, topic: str, camera: str, encode: Encode) -> int | None:
        """The same of an event; see `EventOutbox.put`."""
        return self._events.put(topic, camera, encode)

    def take(self, *, in_turn: bool = False) -> Message | None:
        """The result or snapshot that goes out next, which is the caller's from now on, or None.

        Args:
            in_turn: no kind waits for all of another.
        """
        for pace in self._paces.values():
            pace.release()
        kinds = list(self._outboxes)
        if in_turn and self._latest == kinds[0]:
            kinds.reverse()
        for kind in kinds:
            message = self._outboxes[kind].take()
            if message is not None:
                self._latest = kind
                return message
        return None

    def give_back(self, messages: Iterable[Message]) -> None:
        """Put messages that were taken, and did not arrive, before the others of their kind; oldest first."""
        returned = list(messages)
        for kind, outbox in self._outboxes.items():
            outbox.give_back([message for message in returned if message.kind == kind])

    def end(self) -> None:
        """Nothing is held any longer."""
        for pace in self._paces.values():
            pace.release(all_of_them=True)
        self._events.hasten()

    def wait_s(self) -> float:
        """Seconds until something that is held is due; infinity where nothing is."""
        return min(pace.wait_s() for pace in self._paces.values())

    def of_camera(self, camera: str) -> Waiting:
        """The counts of one camera's results."""
        return self._outboxes["result"].of_camera(camera)

    @property
    def dropped_snapshots(self) -> int:
        """How many pictures of all cameras made room for newer ones."""
        return self._outboxes["snapshot"].dropped_count

    def has_of(self, camera: str) -> bool:
        """Whether anything of a camera waits."""
        return any(outbox.of_camera(camera).queued for outbox in self._outboxes.values())

    def limited(self, camera: str | None = None) -> int:
        """How many results were left out for their rate, of one camera or of all."""
        return self._paces["result"].limited(camera)
