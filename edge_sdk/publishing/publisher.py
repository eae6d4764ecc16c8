"""What the daemon needs of whoever takes results: a Publisher for the process, of it a Stream for each camera.

Owns no behaviour: `MqttPublisher` brings results to a broker, `JsonLinesPublisher` writes them as lines.
"""

from __future__ import annotations

from typing import Protocol

from edge_sdk.event import Event
from edge_sdk.frame import Result
from edge_sdk.publishing.encoder import ResultEncoder
from edge_sdk.publishing.payload import ControlState, Running, SourceState, TelemetryMessage
from edge_sdk.publishing.stats import LinesStats, PublisherStats, StreamStats


class Stream(Protocol):
    """A `Sink` and an `EventSink` for one camera, used from its thread while others use theirs; only `put` ever raises.

    Events and snapshots may come from any thread.
    """

    @property
    def camera(self) -> str:
        """Whose results these are."""
        ...

    def put(self, value: Result | Event, /) -> None:
        """Encode one and leave it to the publisher's thread; of no effect once another stream has the camera.

        Raises:
            BrokenPipeError: nobody reads the lines any more; never over a network.
            LinesError: an earlier line could not be written; never over a network.
        """
        ...

    def put_snapshot(self, jpeg: bytes, seq: int) -> None:
        """Leave one picture to the publisher's thread; where lines are written it goes to nobody.

        Args:
            jpeg: the file's bytes.
            seq: the frame's number.
        """
        ...

    def warn(self, name: str, line: str) -> None:
        """Say that something is wrong, until this stream ends.

        Args:
            name: of what is wrong, such as `not_finite`; a later warning of that name takes its place.
            line: for people; empty when it is over.
        """
        ...

    def announce(self, running: Running) -> None:
        """Say what runs."""
        ...

    def source(self, state: SourceState) -> None:
        """Say where the source stands."""
        ...

    def controls(self, state: ControlState) -> None:
        """Say what commands have set."""
        ...

    def see(self, result: Result) -> None:
        """Say what is seen at present, where that is another thing than before."""
        ...

    def stats(self) -> StreamStats:
        """What happened to this camera's results so far."""
        ...

    def close(self) -> None:
        """Take nothing more; the camera is gone once what was put is on its way. Never blocks; may be called twice."""
        ...


class Publisher(Protocol):
    """Takes the results of all cameras of a device, from a thread of its own."""

    def stream(self, camera: str, encoder: ResultEncoder) -> Stream:
        """Add a camera, or take one over: what its stream before has put goes out, and its numbers go on.

        Args:
            camera: its name; frames bear the same.
            encoder: of its bundle, and of no other stream.

        Raises:
            UsageError: the name cannot be part of a topic, or the encoder is another device's.
        """
        ...

    def warn(self, name: str, line: str) -> None:
        """Say that something is wrong with the device itself, until it is taken back; see `Stream.warn`."""
        ...

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish how the device does, if there is a connection; only the newest waits for one. Never blocks."""
        ...

    def stats(self) -> PublisherStats | LinesStats:
        """What happened to all results so far."""
        ...

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what waits as far as the time allows, say goodbye, and end; may be called twice."""
        ...
