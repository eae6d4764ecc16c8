"""MqttPublisher: brings the results of all cameras of a device to a broker, through its absence, refusals and restarts.

Owns the thread that delivers. Nothing that happens to the network reaches a stream's `put`.

MqttStream: the Sink of one camera that a MqttPublisher brings to its broker.

Owns nothing that outlives it: what it has put, its counts and its numbers are the publisher's.

Seat: one camera's place at a publisher, which one stream has at a time.

Owns the numbers of its frames: they go on when another stream takes the seat, whose source may count from 0 again, so
that no two results of one run of the program ever bear the same one.

Seats: those of all cameras of one run of the program, whichever publisher has their results.

What the daemon needs of whoever takes results: a Publisher for the process, of it a Stream for each camera.

Owns no behaviour: `MqttPublisher` brings results to a broker, `JsonLinesPublisher` writes them as lines.

What a publisher says of itself, and of one camera.

NameLock: shows that no other program on this machine publishes under a device's name at the same broker.

Two such programs would end each other's connection for ever. The lock is one of the kernel's on a file in the state
folder, which it releases when the process ends, however that happens. Programs of other machines, or with another state
folder, are not seen: the broker alone knows of those.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from edge_sdk.core.errors import OutputError, PublishError, UsageError
from edge_sdk.core.files import state_folder
from edge_sdk.core.frame import Result
from edge_sdk.core.machine import no_collection
from edge_sdk.core.protocols import Event
from edge_sdk.core.threads import Backoff
from edge_sdk.messages.encoder import EventEncoder, ResultEncoder, Seen
from edge_sdk.messages.schema import ControlState, Identity, Message, Running, SourceState, TelemetryMessage
from edge_sdk.messages.topics import Topics, check_name
from edge_sdk.outbox.event import Encode, EventStats
from edge_sdk.outbox.outbox import EventOutbox
from edge_sdk.outbox.settings import OutboxSettings
from edge_sdk.publishing.connection import Connection, Kind, ProtocolFallback, Receiver, Receiving
from edge_sdk.publishing.queues import MemoryOutbox, Queues
from edge_sdk.publishing.retained import DeviceState
from edge_sdk.publishing.session import Callbacks, PublishSession, State
from edge_sdk.publishing.settings import MqttSettings


class CameraSequence:
    """Of one camera, for as long as the program runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: object | None = None
        self._is_fresh = False
        self._offset = 0
        self._last = self._last_event = -1

    def take(self, holder: object) -> None:
        """From now on the seat is this one's, whoever had it."""
        with self._lock:
            self._holder, self._is_fresh = holder, True

    def leave(self, holder: object) -> bool:
        """Give the seat back; False when another has it by now."""
        with self._lock:
            if self._holder is not holder:
                return False
            self._holder = None
            return True

    def event_number(self, holder: object) -> int | None:
        """The number of the next event; None for one who does not have the seat."""
        with self._lock:
            if self._holder is not holder:
                return None
            self._last_event += 1
            return self._last_event

    def is_of(self, holder: object) -> bool:
        """Whether it is this one's."""
        return self._holder is holder

    def number(self, holder: object, seq: int) -> int | None:
        """The number that a frame bears in its message.

        Args:
            holder: whose frame it is.
            seq: its number in its source.

        Returns:
            The same but after a change of holders, where the source's numbers begin again; None for one who does not
            have the seat.
        """
        with self._lock:
            if self._holder is not holder:
                return None
            if self._is_fresh:
                self._is_fresh = False
                self._offset = max(0, self._last + 1 - seq)
            self._last = seq + self._offset
            return self._last


class StreamStats(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to one camera's results so far, those of streams that this one took over from included.

    Attributes:
        put: given to `put`.
        queued: waiting.
        sent: that left: written to the network (QoS 0), answered by the broker (QoS 1), or written as a line.
        acknowledged: that the broker took (QoS 1 only).
        rejected: that the broker answered with a complaint (QoS 1 only).
        dropped: the oldest, when more were waiting than the outbox holds.
        too_large: above the broker's maximum packet size, not sent.
        limited: left out because more came than `max_per_s` allows.
    """

    put: int
    queued: int
    sent: int
    acknowledged: int
    rejected: int
    dropped: int
    too_large: int
    limited: int = 0


class PublisherStats(StreamStats, frozen=True, kw_only=True):
    """What happened to the results of all cameras so far, and to what is published beside them.

    Attributes:
        connects: connections that the broker accepted.
        state: `connecting`, `online`, `refused` (by the broker, or we do not trust it) or `closed`.
        last_error: the latest, for people, also of what was `rejected`; empty when there was none.
        events: what happened to events, which are in no other of these numbers.
        snapshots_lost: pictures that were put, those that commands asked for too, and that the broker will never have:
            there was no room while it was away, or it did not take them.
    """

    connects: int
    state: State
    last_error: str
    events: EventStats = EventStats()
    snapshots_lost: int = 0


class LinesStats(msgspec.Struct, frozen=True):
    """What happened to the lines of all cameras so far.

    Attributes:
        put: given to `put`.
        written: written as a whole.
        dropped: the oldest, when more were waiting than the outbox holds.
    """

    put: int
    written: int
    dropped: int


class MqttStream:
    """Made by `MqttPublisher.stream`; see `Stream`.

    Args:
        camera: whose results.
        topics: of the device.
        encoder: makes their JSON.
        seat: the camera's; taken here.
        queues: where they wait.
        delivery: takes them from there.
        board: what is said of the camera.
    """

    def __init__(
        self,
        camera: str,
        topics: Topics,
        encoder: ResultEncoder,
        seat: CameraSequence,
        queues: Queues,
        delivery: PublishSession,
        board: DeviceState,
    ) -> None:
        self.camera = camera
        self._topic, self._event_topic = topics.result(camera), topics.event(camera)
        self._snapshot_topic, self._seen_topic = topics.snapshot(camera), topics.seen(camera)
        self._encoder, self._seat, self._seen = encoder, seat, Seen(camera, encoder)
        self._has_seen = False
        self._events = EventEncoder.beside(encoder, camera)
        self._queues, self._delivery, self._board = queues, delivery, board
        seat.take(self)
        self._entry = board.join(camera, encoder.model)
        delivery.notify()

    def put(self, value: Result | Event) -> None:
        """Encode one result, or event, and leave it to the thread; see `Stream.put`."""
        if isinstance(value, Event):
            self.put_event(lambda seq: self._events.encode(value, seq))
            return
        seq = self._seat.number(self, value.frame.seq)
        if seq is None:
            return
        self._queues.put(Message(self._topic, self._encoder.encode(value, seq), self.camera, "result", seq))
        self._delivery.notify()

    def put_event(self, encode: Encode) -> int | None:
        """Take one event, and keep it until the broker has it; never blocks.

        Args:
            encode: makes the bytes of its message from its number.

        Returns:
            Its number among the camera's events, over restarts; None where it waits for its turn, as `max_per_s` says,
            or for the file to be read, and where another stream has the camera.
        """
        if not self._seat.is_of(self):
            return None
        return self._queues.events.put(self._event_topic, self.camera, encode)

    def put_snapshot(self, jpeg: bytes, seq: int) -> None:
        """Leave one picture to the thread; see `Stream.put_snapshot`."""
        if self._seat.is_of(self):
            self._queues.put(Message(self._snapshot_topic, jpeg, self.camera, "snapshot", seq))
            self._delivery.notify()

    def warn(self, name: str, line: str) -> None:
        """Have the device's retained state say what is wrong; see `Stream.warn`."""
        self._tell(has_news=self._board.warn(self._entry, name, line))

    def announce(self, running: Running) -> None:
        """Have the device's retained state say what runs; see `Stream.announce`."""
        self._tell(has_news=self._board.running(self._entry, running))

    def source(self, state: SourceState) -> None:
        """Have the device's retained state say where the source stands; see `Stream.source`."""
        self._tell(has_news=self._board.source(self._entry, state))

    def controls(self, state: ControlState) -> None:
        """Have the device's retained state say what commands have set; see `Stream.controls`."""
        self._tell(has_news=self._board.controls(self._entry, state))

    def see(self, result: Result) -> None:
        """Have what is seen stand on a retained topic of its own; see `Stream.see`."""
        payload = self._seen.news(result)
        if payload is not None:
            self._has_seen = True
            self._delivery.post.keep("seen", self._seen_topic, payload)
            self._delivery.notify()

    def stats(self) -> StreamStats:
        """What happened so far; see `Stream.stats`."""
        waiting, counts = self._queues.of_camera(self.camera), self._delivery.of_camera(self.camera)
        limited = self._queues.limited(self.camera)
        return StreamStats(
            put=waiting.put + limited,
            queued=waiting.queued,
            sent=counts.sent,
            acknowledged=counts.acknowledged,
            rejected=counts.rejected,
            dropped=waiting.dropped,
            too_large=counts.too_large,
            limited=limited,
        )

    def close(self) -> None:
        """Leave; see `Stream.close`."""
        if self._seat.leave(self):
            self._board.leave(self._entry)
            if self._has_seen:
                self._delivery.post.keep("seen", self._seen_topic, b"")
            self._delivery.notify()

    def _tell(self, *, has_news: bool) -> None:
        if has_news:
            self._delivery.notify()


class CameraSequences:
    """By camera; one that comes back finds its own."""

    def __init__(self) -> None:
        self._seats: dict[str, CameraSequence] = {}
        self._lock = threading.Lock()

    def of(self, camera: str) -> CameraSequence:
        """One camera's."""
        with self._lock:
            return self._seats.setdefault(camera, CameraSequence())


_CLIENT = "edge_sdk.publishing.client"
LAST_COMMIT_S = 3.0
"""For the last commit, which takes milliseconds; a card that tidies itself up pauses for a second or two."""
_STALL_KEEPALIVES = 2.0  # as long as MQTT itself gives a silent peer, and half of it again


class MqttPublisher:
    """Publishes over one MQTT connection from a thread of its own, which starts at once; see `Publisher`.

    Args:
        settings: which broker, and who we are there.
        identity: who speaks; its device must be the settings'.
        on_state: called with the new state and a detail for people, from the publisher's thread, never from `put`.
        on_doubt: called, from there too, with a line for people where something is not wrong yet: a certificate ends.
        versions: of the software, by name, for the online status.
        outbox: where results wait.
        events: where events wait, in memory by default; closed with this.
        backoff: how long to wait between connections.
        make_link: makes connections; over the network by default.
        seats: of the cameras, where another publisher had them before.
        listens_to: topics of what is wanted from the broker.
        receiver: takes what comes there, in this publisher's thread.

    Attributes:
        topics: of the device.

    Raises:
        UsageError: the identity is another device's, or a file of authorities, a certificate or a key cannot be used.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: Identity,
        *,
        on_state: Callable[[State, str], None] | None = None,
        on_doubt: Callable[[str], None] | None = None,
        versions: Mapping[str, str] | None = None,
        outbox: MemoryOutbox | None = None,
        events: EventOutbox | None = None,
        backoff: Backoff | None = None,
        make_link: Callable[[], Connection] | None = None,
        seats: CameraSequences | None = None,
        listens_to: Sequence[str] = (),
        receiver: Receiver | None = None,
    ) -> None:
        if identity.device != settings.device:
            raise UsageError(f"results are of device {identity.device!r}, the MQTT topics of {settings.device!r}")
        self._identity, self.topics = identity, settings.topics
        self._seats = CameraSequences() if seats is None else seats
        self._lock = threading.Lock()
        self._outbox = MemoryOutbox() if outbox is None else outbox
        self._events = EventOutbox(OutboxSettings(), None, identity.boot_id) if events is None else events
        self._board = DeviceState(identity, versions or {})
        self._callbacks = callbacks = Callbacks(self._board, on_state, on_doubt, receiver)
        self._queues = Queues(self._outbox, self._events, settings.channels)
        make = make_link or _network(settings, self._board.offline("lost"))
        is_listening = receiver is not None and len(listens_to) > 0
        self._delivery = PublishSession(
            self._queues,
            self._events,
            self._board,
            settings.topics,
            make if not is_listening else lambda: Receiving(make(), listens_to, callbacks),
            backoff or Backoff(),
            callbacks=callbacks,
            stall_s=settings.keepalive_s * _STALL_KEEPALIVES,
        )
        self._events.listen(self.warn)
        self._thread = threading.Thread(target=self._delivery.run, name="edge-mqtt", daemon=True)
        self._thread.start()

    def stream(self, camera: str, encoder: ResultEncoder) -> MqttStream:
        """Add a camera, or take one over; see `Publisher.stream`.

        Raises:
            UsageError: the name cannot be part of a topic, or the encoder is another device's.
        """
        check_name("camera", camera)
        encoder.check(self._identity)
        with self._lock:
            seat = self._seats.of(camera)
            return MqttStream(camera, self.topics, encoder, seat, self._queues, self._delivery, self._board)

    def put_event(self, camera: str, encode: Encode) -> int | None:
        """Take one event of any camera, whether or not it has a stream; see `MqttStream.put_event`.

        Raises:
            UsageError: the name cannot be part of a topic.
        """
        return self._queues.events.put(self.topics.event(camera), camera, encode)

    def warn(self, name: str, line: str) -> None:
        """Have the device's retained state say what is wrong; see `Publisher.warn`."""
        if self._board.warn_of_device(name, line):
            self._delivery.notify()

    def telemetry(self, message: TelemetryMessage) -> None:
        """Publish how the device does; see `Publisher.telemetry`."""
        self._delivery.telemetry(msgspec.json.encode(message))

    def keep(self, kind: Kind, topic: str, payload: bytes) -> None:
        """Have this stand on a retained topic, one change a second at most; nothing with no byte. Never blocks."""
        self._delivery.post.keep(kind, topic, payload)
        self._delivery.notify()

    def repeat(self, topic: str) -> None:
        """Publish once more what stands there."""
        self._delivery.post.repeat(topic)
        self._delivery.notify()

    def answer(self, message: Message) -> None:
        """Publish this once, before results; of more than 32 that wait for a connection the oldest goes."""
        self._delivery.post.send("response", message)
        self._delivery.notify()

    def snapshot(self, camera: str, jpeg: bytes, seq: int) -> None:
        """Publish a picture that somebody asked for, as those that a camera's stream puts, but at no rate."""
        self._queues.put_at_once(Message(self.topics.snapshot(camera), jpeg, camera, "snapshot", seq))
        self._delivery.notify()

    def state(self) -> bytes:
        """How the device and its cameras do, JSON: what its retained state says."""
        return self._board.state()

    def stats(self) -> PublisherStats:
        """What happened so far."""
        outbox, delivery, total = self._outbox, self._delivery, self._delivery.of_all()
        pictures = delivery.of_all("snapshot")
        return PublisherStats(
            put=outbox.put_count + self._queues.limited(),
            queued=len(outbox),
            sent=total.sent,
            acknowledged=total.acknowledged,
            rejected=total.rejected,
            dropped=outbox.dropped_count,
            too_large=total.too_large,
            connects=delivery.connects,
            state=delivery.state,
            last_error=delivery.last_error,
            limited=self._queues.limited(),
            events=self._events.stats(),
            snapshots_lost=self._queues.dropped_snapshots + pictures.rejected + pictures.too_large,
        )

    def close(self, timeout_s: float = 5.0, disk_s: float = LAST_COMMIT_S) -> None:
        """Send what waits as far as the time allows, say offline, disconnect; may be called twice.

        Args:
            timeout_s: seconds; with a dead broker it returns sooner. A thread that is stuck in a name server's silence
                is left behind, and ends by itself.
            disk_s: seconds that the disk has for the last events at least, counted from the goodbye; it has the rest of
                `timeout_s`, too. What it has not taken by then is said.
        """
        until = time.monotonic() + timeout_s
        self._delivery.finish(timeout_s)
        self._thread.join(max(0.0, timeout_s))
        self._events.close(max(disk_s, until - time.monotonic()))

    def unsent(self) -> list[Message]:
        """The results that did not go out until `close`, for another publisher; none while its thread still ends."""
        return [] if self._thread.is_alive() else list(iter(self._outbox.take, None))


def load_client() -> None:
    """Load what speaks MQTT: it costs no time while a model loads in another thread. Never raises, and does it once."""
    if _CLIENT in sys.modules:
        return
    with contextlib.suppress(Exception), no_collection():  # who needs it is told
        importlib.import_module(_CLIENT)


def _network(settings: MqttSettings, will: bytes) -> Callable[[], Connection]:
    from edge_sdk.publishing.client import MqttConnection  # a sixth of a start: only where there is a broker
    from edge_sdk.publishing.tls import broker_tls

    with contextlib.suppress(OSError):  # a shortage, which may be over when it connects
        broker_tls(settings)  # each connection reads the files again; what is wrong with them now is said at once
    return partial(MqttConnection, settings, will, ProtocolFallback(settings.protocol))


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


class NameLock:
    """Held from its making until `close`. Where no file can be locked, nothing is shown and nothing is refused.

    Args:
        settings: the broker, and the name there.

    Raises:
        PublishError: another program holds it.
    """

    @staticmethod
    def key_of(settings: MqttSettings) -> str:
        """The broker and the name there, as one text: equal ones are one lock."""
        return f"{settings.client_id} at {settings.host.lower()}:{settings.port}"

    def __init__(self, settings: MqttSettings) -> None:
        self._file: int | None = None
        is_taken = False
        with contextlib.suppress(OSError, OutputError):  # a folder that cannot be written, a disk without locks
            self._file = _open(self.key_of(settings))
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
        """Let go of it; may be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(key: str) -> int:
    """The file of a key, which stays: whoever removed it would take it from under another program's lock."""
    folder = state_folder() / "names"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.lock"  # a name may be longer than a file's
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
