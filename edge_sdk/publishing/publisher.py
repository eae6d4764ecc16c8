"""MqttPublisher: publishes the results of all cameras of a device to a broker, and reconnects after every failure.

The daemon makes one publisher for the process, and from it one `Stream` for each camera. `MqttPublisher` sends to a
broker, `json_lines.JsonLinesPublisher` writes lines. A camera's loop puts results and events into its stream, which
encodes and queues them; the publisher's thread runs a `session.PublishSession`, which sends them. A stream's `put`
never waits for the network.

    camera's loop -> MqttStream.put -> queues, event outbox -> PublishSession (thread) -> MqttConnection -> broker
                     warn, report_... -> DeviceState         -> RetainedPublisher ^
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from edge_sdk.core.errors import OutputError, PublishError
from edge_sdk.core.files import state_folder
from edge_sdk.core.frame import Result
from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff
from edge_sdk.messages.encoder import EventEncoder, ResultEncoder, encode_seen
from edge_sdk.messages.schema import Identity, Message, Receiver, TelemetryMessage, check_name
from edge_sdk.outbox.event import Encode, EventStats, OutboxSettings
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.publishing.queues import Queues
from edge_sdk.publishing.retained import DeviceState, RetainedPublisher
from edge_sdk.publishing.session import ConnectionState, PublishSession
from edge_sdk.publishing.settings import MqttSettings

if TYPE_CHECKING:
    from edge_sdk.publishing.client import MqttConnection  # loads paho

LAST_COMMIT_S = 3.0
"""Seconds for the last commit, which takes milliseconds; a memory card's own clean-up may add a second or two."""

_STALL_KEEPALIVES = 2.0  # MQTT itself allows a silent peer 1.5


class StreamStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one camera's results so far, with those of the streams from which this one took over."""

    put: int
    queued: int  # those that wait
    sent: int  # written to the network (QoS 0), answered by the broker (QoS 1), or written as a line
    acknowledged: int  # at QoS 1 those that the broker accepted ...
    rejected: int  # ... and those that it answered with a complaint
    dropped: int  # the oldest, because the queue was full
    too_large: int  # above the broker's maximum packet size, and not sent
    limited: int = 0  # left out because more came than `max_per_s` allows


class PublisherStats(StreamStats, frozen=True, kw_only=True):
    """What happened to the results of all cameras so far, and to events and snapshots."""

    connects: int  # connections that the broker accepted
    state: ConnectionState  # `refused` is by the broker, or because we do not trust it
    last_error: str  # the latest error or rejection, for people; empty when there was none
    events: EventStats = EventStats()  # which no other count includes
    snapshots_lost: int = 0  # pictures for which there was no room, or that the broker rejected


class LinesStats(msgspec.Struct, frozen=True):
    """How many lines of all cameras were put, written completely, and dropped (oldest first) by a full queue."""

    put: int
    written: int
    dropped: int


class Stream(Protocol):
    """A `Sink` and an `EventSink` for one camera, used from that camera's thread; any may put events and snapshots.

    By default a stream ignores everything but results and events.
    """

    camera: str

    def put(self, value: Result | Event, /) -> None:
        """Encode and queue one result or event; do nothing once another stream has the camera.

        With a broker it never raises. Lines raise `BrokenPipeError` where their reader is gone, and `LinesError` where
        an earlier one could not be written.
        """
        ...

    def stats(self) -> StreamStats:
        """Return the counts of this camera's results so far."""
        ...

    def close(self) -> None:
        """Accept nothing more; queued results are still sent. Never block; may be called twice."""
        ...

    def put_snapshot(self, jpeg: bytes, seq: int) -> None:
        """Queue one picture, with its frame's number."""
        return

    def warn(self, name: str, line: str) -> None:
        """Publish a warning in place of an earlier one of this name, until this stream ends or the line is empty."""
        return

    def report(self, **changes: object) -> None:
        """Change fields of this camera's `CameraState` in the retained state."""
        return

    def report_seen(self, seen: Mapping[str, int] | str | None) -> None:
        """Report what the camera sees at present: objects by label, or the class that a task without objects finds."""
        return


class CameraSequence:
    """Numbers the results of one camera, for as long as the program runs; one stream at a time holds it.

    Numbers go on when another stream takes the sequence, even if its source counts from 0 again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None
        self._is_fresh = False
        self._offset = 0
        self._last = -1
        self.events = itertools.count()  # numbers of events, used where no outbox keeps them over restarts

    def take(self, holder: object) -> None:
        """Give the sequence to a stream, whichever stream had it."""
        with self._lock:
            self._holder, self._is_fresh = holder, True

    def leave(self, holder: object) -> bool:
        """Give the sequence back; return False when another stream has it by now."""
        with self._lock:
            is_mine = self._holder is holder
            if is_mine:
                self._holder = None
            return is_mine

    def is_of(self, holder: object) -> bool:
        """Return whether a stream has the sequence."""
        return self._holder is holder

    def number(self, holder: object, seq: int) -> int | None:
        """Return the number of a stream's frame in its message; None if the stream does not have the sequence."""
        with self._lock:
            if self._holder is not holder:
                return None
            if self._is_fresh:
                self._is_fresh = False
                self._offset = max(0, self._last + 1 - seq)
            self._last = seq + self._offset
            return self._last


class MqttStream(Stream):
    """One camera's stream to a broker, made by `MqttPublisher.stream`; see `Stream`."""

    def __init__(
        self,
        camera: str,
        encoder: ResultEncoder,
        sequence: CameraSequence,
        session: PublishSession,
        state: DeviceState,
    ) -> None:
        self.camera, self._encoder, self._sequence = camera, encoder, sequence
        self._session, self._queues, self._state = session, session.queues, state
        self._topics = state.retained.topics
        self._topic = self._topics.of("result", camera)
        self._has_seen = False
        self._events = EventEncoder.beside(encoder, camera)
        sequence.take(self)
        self._entry = state.join(camera, encoder.model)
        session.notify()

    def put(self, value: Result | Event) -> None:
        """Encode and queue one result or event; see `Stream.put`."""
        if isinstance(value, Event):
            self.put_event(lambda seq: self._events.encode(value, seq))
            return
        seq = self._sequence.number(self, value.frame.seq)
        if seq is not None:
            self._queues.put(Message(self._topic, self._encoder.encode(value, seq), self.camera, "result", seq))
            self._session.notify()

    def put_event(self, encode: Encode) -> int | None:
        """Queue one event as `EventOutbox.put` does; return None also where another stream has the camera."""
        if not self._sequence.is_of(self):
            return None
        return self._queues.events.put(self._topics.of("event", self.camera), self.camera, encode)

    def put_snapshot(self, jpeg: bytes, seq: int) -> None:
        """Queue one picture; see `Stream.put_snapshot`."""
        if self._sequence.is_of(self):
            topic = self._topics.of("snapshot", self.camera)
            self._queues.put(Message(topic, jpeg, self.camera, "snapshot", seq))
            self._session.notify()

    def warn(self, name: str, line: str) -> None:
        """Set a warning in the retained state; see `Stream.warn`."""
        self._state.warn(self._entry, name, line)

    def report(self, **changes: object) -> None:
        """Change fields of the camera's state; see `Stream.report`."""
        self._state.update(self._entry, **changes)

    def report_seen(self, seen: Mapping[str, int] | str | None) -> None:
        """Publish what the camera sees on a retained topic; see `Stream.report_seen`."""
        self._has_seen = True
        payload = encode_seen(self._encoder.identity, self.camera, seen)
        self._state.retained.keep("seen", self._topics.of("seen", self.camera), payload)

    def stats(self) -> StreamStats:
        """Return the counts so far; see `Stream.stats`."""
        return StreamStats(**_result_counts(self._session, self.camera))

    def close(self) -> None:
        """Accept nothing more; see `Stream.close`."""
        if self._sequence.leave(self):
            self._state.leave(self._entry)
            if self._has_seen:
                self._state.retained.keep("seen", self._topics.of("seen", self.camera), b"")


def _result_counts(session: PublishSession, camera: str | None) -> dict[str, int]:
    """Return the counts of the results of one camera or of all, by the names of `StreamStats`."""
    waiting, limited = session.queues.counts("result", camera), session.queues.limited(camera)
    sent = msgspec.structs.asdict(session.sent("result", camera))
    return {
        **sent,
        "put": waiting.put + limited,
        "queued": waiting.queued,
        "dropped": waiting.dropped,
        "limited": limited,
    }


class MqttPublisher:
    """Publishes over one MQTT connection from a thread of its own, which starts at once.

    Args:
        settings: the broker, and the device's names and credentials there.
        identity: the publishing device and run; its device is that of the settings.
        on_state: called with the new state and a detail for people, from the publisher's thread; must not raise.
        on_warning: called likewise with a line for people, for instance when a certificate expires soon.
        versions: versions of the software by name, for the online status.
        events: the outbox of events, in memory by default; closed with the publisher.
        make_link: makes connections; over the network by default.
        listens_to: topics to subscribe to; `receiver` takes their messages, in this publisher's thread.

    Raises:
        UsageError: a file of authorities, certificate or key cannot be used.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: Identity,
        *,
        on_state: Callable[[ConnectionState, str], None] = lambda _state, _detail: None,
        on_warning: Callable[[str], None] = lambda _line: None,
        versions: Mapping[str, str] | None = None,
        events: EventOutbox | None = None,
        backoff: Backoff | None = None,
        make_link: Callable[[], MqttConnection] | None = None,
        listens_to: Sequence[str] = (),
        receiver: Receiver | None = None,
    ) -> None:
        self.topics = settings.topics
        self._sequences: dict[str, CameraSequence] = {}  # kept, so that a camera that comes back continues its own
        self._lock = threading.Lock()
        self._events = EventOutbox(OutboxSettings(), None, identity.boot_id) if events is None else events
        self.retained = RetainedPublisher(settings.topics)  # Home Assistant's message and answers go there directly
        self._state = DeviceState(identity, versions or {}, self.retained)
        make = make_link or _network(settings, self._state.offline("lost"))

        def connect() -> MqttConnection:
            connection = make()
            if receiver is not None and listens_to:
                connection.listen(listens_to, receiver)
            return connection

        self._session = PublishSession(
            Queues(self._events, settings.channels),
            self._state,
            connect,
            backoff or Backoff(),
            on_state=on_state,
            on_warning=on_warning,
            stall_s=settings.keepalive_s * _STALL_KEEPALIVES,
        )
        self._events.listen(self.warn)
        self._thread = threading.Thread(target=self._session.run, name="edge-mqtt", daemon=True)
        self._thread.start()

    def stream(self, camera: str, encoder: ResultEncoder) -> MqttStream:
        """Return a new stream of a camera; results of its earlier stream are still sent, and their numbers go on.

        Raises:
            UsageError: the name is not valid in a topic.
        """
        check_name("camera", camera)
        with self._lock:
            sequence = self._sequences.setdefault(camera, CameraSequence())
            return MqttStream(camera, encoder, sequence, self._session, self._state)

    def put_event(self, camera: str, encode: Encode) -> int | None:
        """Queue one event of any camera, with or without a stream; see `EventOutbox.put`."""
        return self._events.put(self.topics.of("event", camera), camera, encode)

    def warn(self, name: str, line: str) -> None:
        """Set a warning about the device itself in the retained state; an empty line clears it."""
        self._state.warn_of_device(name, line)

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish telemetry of the device; without a connection only the newest message is kept."""
        self.retained.put_telemetry(msgspec.json.encode(message))

    def snapshot(self, camera: str, jpeg: bytes, seq: int) -> None:
        """Publish a picture that a command asked for, without the rate limit of a stream's pictures."""
        self._session.queues.put_at_once(Message(self.topics.of("snapshot", camera), jpeg, camera, "snapshot", seq))
        self._session.notify()

    def state(self) -> bytes:
        """Return the retained state of the device and its cameras, JSON."""
        return self._state.state()

    def stats(self) -> PublisherStats:
        """Return the counts so far."""
        session, pictures = self._session, self._session.sent("snapshot")
        return PublisherStats(
            **_result_counts(session, None),
            connects=session.connects,
            state=session.state,
            last_error=session.last_error,
            events=self._events.stats(),
            snapshots_lost=session.queues.counts("snapshot").dropped + pictures.rejected + pictures.too_large,
        )

    def close(self, timeout_s: float = 5.0, disk_s: float = LAST_COMMIT_S) -> None:
        """Send queued messages as far as the time allows, publish `offline`, disconnect; may be called twice.

        With a dead broker it returns sooner. A thread that is stuck in a name lookup is abandoned, and ends by itself.
        The disk then has at least `disk_s` seconds for the last events; a warning reports those that it did not take.
        """
        until = time.monotonic() + timeout_s
        self._session.finish(timeout_s)
        self._thread.join(max(0.0, timeout_s))
        self._events.close(max(disk_s, until - time.monotonic()))


def _network(settings: MqttSettings, will: bytes) -> Callable[[], MqttConnection]:
    """Return a function that makes connections; raise `UsageError` where a file cannot be used."""
    from edge_sdk.publishing.client import MqttConnection, ProtocolFallback  # a sixth of a start: only with a broker
    from edge_sdk.publishing.tls import broker_tls

    broker_tls(settings)  # report errors of the files at once; each connection reads them again
    return partial(MqttConnection, settings, will, ProtocolFallback(settings.protocol))


class NameLock:
    """Lock that keeps other programs on this machine from publishing under a device's name at the same broker.

    Two such programs would end each other's connection for ever: the second gets a `PublishError`. It is a kernel lock
    on a file in the state folder; where no file can be locked, no program is refused.
    """

    @staticmethod
    def key_of(settings: MqttSettings) -> str:
        """Return the broker and the device's name there; equal texts share a lock."""
        return f"{settings.client_id} at {settings.host.lower()}:{settings.port}"

    def __init__(self, settings: MqttSettings) -> None:
        self._file: int | None = None
        is_taken = False
        with contextlib.suppress(OSError, OutputError):  # a folder that cannot be written, a disk without locks
            folder = state_folder() / "names"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = hashlib.sha256(self.key_of(settings).encode()).hexdigest()[:32]  # a name may be longer than a file's
            # The file is never removed, because another program may hold its lock.
            self._file = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_taken = True
            else:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, b"%d\n" % os.getpid(), 0)
        if is_taken and self._file is not None:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip()
            self.close()
            raise PublishError(
                f"another program (process {holder or 'unknown'}) publishes as device {settings.device!r} of site "
                f"{settings.site!r} to {settings.address} already; end it, or give each its own name (--device, or "
                "[device] in a file)"
            )

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
