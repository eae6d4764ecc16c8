"""Carry out commands that come over MQTT, and answer them.

    MQTT thread -> CommandInbox -> CommandAdmission -> HANDLERS -> answer on `res`
                                         |
                                         +-> Rejection -> answer, RejectionLog

Everything but the inbox runs in the process's main thread, which calls `CommandHandler.look` a few times a second.
Admission owns every refusal that needs no knowledge of cameras: anybody who may publish to the broker may have written
a message, so what is not known to be harmless is refused. A command is one entry of `HANDLERS`; its schema, permission
and example are in `edge_sdk.messages.commands`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.core.errors import failure_line, printable
from edge_sdk.core.toml import problems, shown
from edge_sdk.events.snapshots import jpeg_of
from edge_sdk.messages.commands import (
    CLASSES,
    COMMANDS,
    Command,
    CommandClass,
    Complaint,
    Pause,
    Picture,
    RefusedError,
    Reload,
    ReportState,
    ResponseMessage,
    Resume,
    SetRate,
    SetThreshold,
    Snapshot,
    name_of,
)
from edge_sdk.messages.schema import Message
from edge_sdk.messages.topics import Topics
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.home_assistant import HomeAssistantReporter
from edge_sdk.service.output import Output
from edge_sdk.service.reload import Told
from edge_sdk.service.runner import CameraControls, Controls, Shot
from edge_sdk.service.settings import RunSettings

_log = logging.getLogger(__name__)
_LARGEST_BYTES = 2048  # of a command; the longest that is valid has 300
_LONGEST_TOPIC = 200  # characters of a response topic
_LARGEST_CORRELATION = 128  # bytes; common clients send 16
_BURST, _PER_S = 20, 5.0  # a slider that is moved sends that many
_COMPLAIN_EVERY_S = 1.0
_SHOWN = 40  # characters of somebody else's text in a line
_LONGEST = 200  # of what is said of a field
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MOST_MESSAGES = 64  # that wait to be looked at
_SAID_AT_ONCE, _SAY_EVERY_S = 5, 10.0
_FRAME_WAIT_S = 5.0  # of a snapshot: a requester waits for an answer
_MOST_SNAPSHOTS = 8  # requests that wait; they share a camera's picture
_JPEG_QUALITY = 85
_PAUSED = "this camera is paused: nothing of it is looked at; resume it and ask again"
_MOST_ANSWERS = 32
_LONGEST_REASON = 500  # characters, of what an answer says of a configuration
_FOLDERS = re.compile(r"(?<![\w/:])/(?:[^\s/:]+/)+")  # in front of a file's name; no part of a URL


class _Named(msgspec.Struct, frozen=True):
    """What a message says of itself, whatever else is wrong with it."""

    command: object = UNSET
    id: object = UNSET


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to carry out, and where to answer."""

    command: Command
    topic: str
    correlation: bytes


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not carried out, and where to say so; the command's name and id where they could be read."""

    complaint: Complaint
    topic: str
    correlation: bytes
    name: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class CommandAdmission:
    """Decides which messages on the `cmd` topic of a device are commands to carry out.

    Args:
        topics: of the device.
        allowed: classes of commands that are carried out.
        clock_s: monotonic seconds.
        before: the admission of the settings before: a reload is no way to send more.
    """

    def __init__(
        self,
        topics: Topics,
        allowed: Collection[CommandClass],
        clock_s: Callable[[], float] = time.monotonic,
        before: CommandAdmission | None = None,
    ) -> None:
        self._topics, self._allowed, self._clock_s = topics, frozenset(allowed), clock_s
        self._tokens, self._filled_at = float(_BURST), clock_s()
        self._complain_at, self._unanswered = -_COMPLAIN_EVERY_S, 0
        if before is not None:
            self._tokens, self._filled_at = before._tokens, before._filled_at
            self._complain_at, self._unanswered = before._complain_at, before._unanswered

    def admit(self, incoming: Incoming) -> CommandRequest | Rejection | None:
        """Look at one message.

        Returns:
            What to do; None for nothing: of those that come too fast `passed_over` tells.
        """
        topic, correlation = self._topics.response, incoming.correlation
        name: str | UnsetType = UNSET
        sent_id: str | UnsetType = UNSET
        try:
            if incoming.retain and not incoming.payload:
                return None  # somebody takes a retained message away, as they were told to
            if not self._has_token():
                self._unanswered += 1
                return None
            if len(correlation) > _LARGEST_CORRELATION:
                correlation = b""
                raise RefusedError("malformed", f"correlation data is above {_LARGEST_CORRELATION} bytes")
            topic = self._response_topic(incoming.response_topic)
            if len(incoming.payload) > _LARGEST_BYTES:
                raise RefusedError("too_large", f"{len(incoming.payload)} bytes, expected {_LARGEST_BYTES} at most")
            name, sent_id = _named(incoming.payload)
            if incoming.retain:
                raise RefusedError("retained", self._how_to_take_away())
            return CommandRequest(command=self._command(incoming.payload, name), topic=topic, correlation=correlation)
        except RefusedError as refusal:
            known = name if name in COMMANDS else UNSET
            return Rejection(complaint=refusal.complaint, topic=topic, correlation=correlation, name=known, id=sent_id)

    def overflow(self, count: int) -> None:
        """Count messages for which there was no room among those that are passed over."""
        self._unanswered += count

    def passed_over(self) -> Rejection | None:
        """Say how many came too fast since this was said last; once a second at most, None where there are none."""
        now = self._clock_s()
        if not self._unanswered or now - self._complain_at < _COMPLAIN_EVERY_S:
            return None
        count, self._unanswered, self._complain_at = self._unanswered, 0, now
        were = "1 command was" if count == 1 else f"{count} commands were"
        text = f"{were} passed over, send again what matters; {_BURST} at once and {_PER_S:g} a second are looked at"
        # To the device's own topic and nobody else's: it answers several.
        complaint = Complaint(code="too_fast", message=text)
        return Rejection(complaint=complaint, topic=self._topics.response, correlation=b"")

    def _has_token(self) -> bool:
        now = self._clock_s()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) * _PER_S)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _how_to_take_away(self) -> str:
        taking = f"mosquitto_pub -r -n -t {self._topics.command}"
        return (
            "a retained message is no command, it would come again at every connection; "
            f"take it away ({taking}), and send it without retain"
        )

    def _response_topic(self, wanted: str) -> str:
        """Allow the device's own `res` and what is below: commands must not make it write elsewhere."""
        own = self._topics.response
        if not wanted or wanted == own:
            return own
        rest = wanted.removeprefix(f"{own}/")
        is_below = rest != wanted and rest.isprintable() and not {"+", "#"} & set(rest) and all(rest.split("/"))
        if not is_below or len(wanted) > _LONGEST_TOPIC:
            raise RefusedError("response_topic", f"got {_shown(wanted)}, expected {own} or below it")
        return wanted

    def _command(self, payload: bytes, name: str | UnsetType) -> Command:
        if isinstance(name, UnsetType):
            raise RefusedError("malformed", _no_command(payload))
        if name not in COMMANDS:
            raise RefusedError("unknown_command", f"no command {_shown(name)}, expected {', '.join(CLASSES)} or resume")
        wanted = COMMANDS[name].permission
        if wanted not in self._allowed:  # before its fields are looked at: what is off says nothing
            raise RefusedError("not_allowed", self._how_to_allow(name, wanted))
        try:
            command: Command = msgspec.json.decode(payload, type=Command)
        except _UNREADABLE as cause:
            raise RefusedError("malformed", _wrong_field(str(cause), name, payload)) from None
        if COMMANDS[name_of(command)].permission != wanted:  # a key that stands there twice
            raise RefusedError("malformed", "command stands there twice, expected it once")
        return command

    def _how_to_allow(self, name: str, wanted: str) -> str:
        named = ", ".join(f'"{each}"' for each in CLASSES if each in self._allowed or each == wanted)
        covered = "" if name == wanted else f", which {wanted} stands for"
        return f"{name} is off here{covered}; [commands] allow = [{named}] in its configuration turns it on too"


def _no_command(payload: bytes) -> str:
    expected = 'expected a JSON object such as {"command": "report_state"}'
    if not payload:
        return f"an empty message, {expected}"
    try:
        found = msgspec.json.decode(payload)
    except _UNREADABLE as cause:
        got = _shown(payload.decode("utf-8", "replace"))
        return _bounded(f"{got} cannot be read ({cause}), {expected}")
    got = "one without a text as its command" if isinstance(found, dict) else _shown(payload.decode())
    return f"got {got}, {expected}"


def _wrong_field(cause: str, name: str, payload: bytes) -> str:
    example = COMMANDS[name].example
    try:
        found = next(problems(msgspec.json.decode(payload), type(example)), None)
    except _UNREADABLE:
        found = None
    words = found.text if found else cause
    return f"{_bounded(words)}; such as {msgspec.json.encode(example).decode()}"


def _named(payload: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    try:
        named = msgspec.json.decode(payload, type=_Named)
    except _UNREADABLE:
        return UNSET, UNSET
    return (
        named.command if isinstance(named.command, str) else UNSET,
        named.id if isinstance(named.id, str) and len(named.id) <= 64 else UNSET,
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _bounded(text: str) -> str:
    # A key of theirs may be in it, and the line goes to a terminal too.
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


class CommandInbox:
    """Keeps messages that came until the main thread takes them; a `Receiver` of the publisher's thread.

    Args:
        most: messages that wait; what comes beyond is counted, and forgotten.
    """

    def __init__(self, most: int = _MOST_MESSAGES) -> None:
        self._most = most
        self._messages: deque[Incoming] = deque()
        self._refusals: deque[str] = deque(maxlen=8)
        self._lost = 0
        self._lock = threading.Lock()

    def receive(self, incoming: Incoming) -> None:
        """Keep one message, where there is room."""
        with self._lock:
            if len(self._messages) < self._most:
                self._messages.append(incoming)
            else:
                self._lost += 1

    def refused(self, line: str) -> None:
        """Keep what the broker does not let us read."""
        self._refusals.append(line)

    def take(self) -> tuple[list[Incoming], int]:
        """Take what waits, in order, and how many there was no room for."""
        with self._lock:
            taken, lost = list(self._messages), self._lost
            self._messages.clear()
            self._lost = 0
            return taken, lost

    def take_refusals(self) -> list[str]:
        """Take what the broker does not let us read, in lines for people; an empty one: that is over."""
        lines = []
        while self._refusals:
            lines.append(self._refusals.popleft())
        return lines


class RejectionLog:
    """Tells people of commands that were refused: five in ten seconds each, of more how many.

    A program that is wrong sends many; a person who mistypes a few finds each of them in the journal.

    Args:
        clock_s: monotonic seconds.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._began_at, self._said = clock_s(), 0  # of the present ten seconds
        self._unsaid = Counter[str]()

    def take(self, code: str, line: str) -> None:
        """Tell of one command that was refused, or count it."""
        self.look()
        if self._said >= _SAID_AT_ONCE:
            self._unsaid[code] += 1
            return
        self._said += 1
        _log.info(line)

    def look(self) -> None:
        """Tell of those that were counted, once their ten seconds are over."""
        if self._clock_s() - self._began_at < _SAY_EVERY_S:
            return
        self._began_at, self._said = self._clock_s(), 0
        unsaid, self._unsaid = self._unsaid, Counter()
        if unsaid:
            kinds = ", ".join(f"{count} {code}" for code, count in unsaid.most_common())
            _log.info(f"{unsaid.total()} more commands were refused in 10 s, as their answers say: {kinds}")


LATER: Final = object()
"""In place of an answer: it comes later."""

Answer: TypeAlias = object
"""What a command came to: the state (`msgspec.Raw`), a `Picture`, why it failed, `LATER`; None: it is done."""


class CommandHandler:
    """Carries out commands and answers them; `look` is called a few times a second.

    Args:
        settings: of the run.
        controls: of its cameras.
        inbox: where messages from the broker wait.
        output: where answers and pictures go.
        reload: has the configuration read again, and whoever asks told of it; None where there is none.
        clock_s: monotonic seconds.
    """

    def __init__(
        self,
        settings: RunSettings,
        controls: Controls,
        inbox: CommandInbox,
        output: Output,
        reload: Callable[[Told], None] | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controls, self._inbox, self._output = controls, inbox, output
        self._reload, self._clock_s = reload, clock_s
        self._answers: deque[Message] = deque(maxlen=_MOST_ANSWERS)  # for as long as there is no broker to send them
        self._rejections = RejectionLog(clock_s)
        self._snapshots: list[tuple[CommandRequest, Snapshot, float]] = []  # that wait for a frame, and until when
        self._admission: CommandAdmission | None = None
        self._home: HomeAssistantReporter | None = None
        self._cameras = set[str]()
        self.change_to(settings)

    def change_to(self, settings: RunSettings) -> None:
        """Go by other settings from now on; what commands have set of cameras that stay is kept."""
        self._cameras = {pipeline.camera for pipeline in settings.pipelines}
        controls, mqtt, home = self._controls, settings.mqtt, settings.home_assistant
        controls.keep_only(self._cameras, settings.commands)
        controls.are_told = mqtt is not None and bool(settings.commands)
        controls.sees = mqtt is not None and home is not None and home.is_enabled
        before, self._admission = self._admission, None
        if mqtt is not None and settings.commands:
            self._admission = CommandAdmission(mqtt.topics, settings.commands, self._clock_s, before)
        told, self._home = self._home, None
        if mqtt is not None and home is not None:
            pictured = [pipeline.camera for pipeline in settings.pipelines if pipeline.snapshots is not None]
            self._home = HomeAssistantReporter(home, mqtt.topics, settings.commands, controls, pictured, self._clock_s)
            if told is not None:
                self._home.go_on_from(told)

    def look(self) -> None:
        """Carry out and answer what came, and tell Home Assistant what is new."""
        messages, lost = self._inbox.take()
        for line in self._inbox.take_refusals():
            if line:
                _log.warning(line)
            self._output.warn("subscription", line)
        for incoming in messages:
            if self._home is not None and incoming.topic in self._home.topics:
                self._home.hear(incoming)
            elif self._admission is not None:
                self._receive(self._admission, incoming)
        if self._admission is not None:
            self._admission.overflow(lost)
            self._reject(self._admission.passed_over())
        self._rejections.look()
        self._look_at_snapshots()
        if self._home is not None:
            self._home.look(self._output, self._cameras)
        self._deliver()

    def _receive(self, admission: CommandAdmission, incoming: Incoming) -> None:
        request = admission.admit(incoming)
        if not isinstance(request, CommandRequest):
            self._reject(request)
            return
        try:
            answer = HANDLERS[type(request.command)](self, request.command, request)
        except Exception as cause:  # noqa: BLE001 - whoever may send a command must not be able to end the process
            answer = cause
        if answer is not LATER:
            self._answer(request, answer)

    def _pause(self, command: Pause | Resume, _request: CommandRequest) -> Answer:
        self._control(command.camera).change(paused=isinstance(command, Pause))
        return None

    def _set_threshold(self, command: SetThreshold, _request: CommandRequest) -> Answer:
        control = self._control(command.camera)
        if control.known is None:
            raise RefusedError("not_possible", "this camera's model is not loaded yet")
        if control.known.confidence is None:
            raise RefusedError("not_possible", f"a bundle for {control.known.task} has no confidence threshold")
        control.change(confidence=command.confidence)
        return None

    def _set_rate(self, command: SetRate, _request: CommandRequest) -> Answer:
        control = self._control(command.camera)
        if control.known is not None and not control.known.is_paced:
            raise RefusedError("not_possible", "this source's frames come in turn, and none is left out")
        control.change(max_fps=command.max_fps)
        return None

    def _report_state(self, _command: ReportState, _request: CommandRequest) -> Answer:
        broker = self._output.broker
        return msgspec.Raw(broker.state()) if broker is not None else None

    def _begin_reload(self, _command: Reload, request: CommandRequest) -> Answer:
        if self._reload is None:
            raise RefusedError("not_possible", "there is no configuration file to read again")

        def told(why_not: str) -> None:
            words = f"the configuration is not taken, what runs goes on: {_short(why_not)}"
            self._answer(request, RefusedError("failed", words) if why_not else None)

        self._reload(told)
        return LATER

    def _begin_snapshot(self, command: Snapshot, request: CommandRequest) -> Answer:
        control = self._control(command.camera)
        if control.paused:
            raise RefusedError("not_possible", _PAUSED)
        if len(self._snapshots) >= _MOST_SNAPSHOTS:
            raise RefusedError("too_fast", f"{_MOST_SNAPSHOTS} pictures are waited for already")
        if all(other.camera != command.camera for _, other, _ in self._snapshots):
            control.shot = None  # what came after its time was over
        control.wants_shot = control.shot is None  # otherwise one has just come, for both
        self._snapshots.append((request, command, self._clock_s() + _FRAME_WAIT_S))
        return LATER

    def _look_at_snapshots(self) -> None:
        """Publish pictures that came, and answer requests that wait no longer."""
        waiting, self._snapshots = self._snapshots, []
        for request, command, until in waiting:
            control = self._controls.of(command.camera)
            if control.shot is not None:
                self._answer(request, self._publish(command, control.shot))
                continue
            if not control.paused and self._clock_s() < until:
                self._snapshots.append((request, command, until))
                continue
            control.wants_shot = False
            late = RefusedError("failed", f"no frame came within {_FRAME_WAIT_S:g} s")
            self._answer(request, RefusedError("not_possible", _PAUSED) if control.paused else late)
        awaited = {command.camera for _, command, _ in self._snapshots}
        for _, command, _ in waiting:
            if command.camera not in awaited:
                self._controls.of(command.camera).shot = None  # a picture may be large

    def _publish(self, command: Snapshot, shot: Shot) -> Answer:
        broker = self._output.broker
        if broker is None:
            return RefusedError("failed", "there is no broker any more")
        try:
            jpeg, width, height = jpeg_of(shot.image, command.width, _JPEG_QUALITY)
        except Exception as cause:  # noqa: BLE001 - want of memory, or of OpenCV's, is the request's failure alone
            return cause
        broker.snapshot(command.camera, jpeg, shot.seq)
        topic = broker.topics.of("snapshot", command.camera)
        return Picture(topic=topic, width=width, height=height, bytes=len(jpeg), seq=shot.seq)

    def _control(self, camera: str) -> CameraControls:
        if camera not in self._cameras:
            known = ", ".join(sorted(self._cameras))
            raise RefusedError("unknown_camera", f"no camera {shown(camera)} here, expected {known}")
        return self._controls.of(camera)

    def _reject(self, rejection: Rejection | None) -> None:
        if rejection is None:
            return
        code, message = rejection.complaint.code, rejection.complaint.message
        self._rejections.take(code, f"a command was refused ({code}): {message}")
        response = ResponseMessage(
            **msgspec.structs.asdict(self._output.identity),
            command=rejection.name,
            id=rejection.id,
            ok=False,
            error=rejection.complaint,
        )
        self._send(rejection.topic, rejection.correlation, response)

    def _answer(self, request: CommandRequest, answer: Answer) -> None:
        if isinstance(answer, Exception) and not isinstance(answer, RefusedError):
            answer = RefusedError("failed", _short(failure_line(answer)))
        command = request.command
        error = answer.complaint if isinstance(answer, RefusedError) else UNSET
        if not isinstance(error, UnsetType):
            line = f"command {_words(command)} was refused ({error.code}): {error.message}"
            self._rejections.take(error.code, line)
        elif not isinstance(answer, Picture):
            _log.info(f"command {_words(command)}")
        response = ResponseMessage(
            **msgspec.structs.asdict(self._output.identity),
            command=name_of(command),
            id=command.id,
            ok=isinstance(error, UnsetType),
            error=error,
            state=answer if isinstance(answer, msgspec.Raw) else UNSET,
            picture=answer if isinstance(answer, Picture) else UNSET,
        )
        self._send(request.topic, request.correlation, response)

    def _send(self, topic: str, correlation: bytes, response: ResponseMessage) -> None:
        self._answers.append(Message(topic, msgspec.json.encode(response), kind="response", correlation=correlation))
        self._deliver()

    def _deliver(self) -> None:
        broker = self._output.broker
        while self._answers and broker is not None:
            broker.answer(self._answers.popleft())


HANDLERS: dict[type[Command], Callable[[CommandHandler, Any, CommandRequest], Answer]] = {
    Pause: CommandHandler._pause,
    Resume: CommandHandler._pause,
    SetThreshold: CommandHandler._set_threshold,
    SetRate: CommandHandler._set_rate,
    Snapshot: CommandHandler._begin_snapshot,
    ReportState: CommandHandler._report_state,
    Reload: CommandHandler._begin_reload,
}
"""What carries out each command: returns the answer, or `LATER`; raises RefusedError where it cannot be done."""


def _short(lines: str) -> str:
    """Make one line for a sender, without the folders of this device, which are no business of theirs."""
    text = _FOLDERS.sub("…/", "; ".join(printable(line) for line in lines.splitlines()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}… (its journal has all of it)"


def _words(command: Command) -> str:
    """Write a command for people, without its id; texts in quotes and escaped, for they are the sender's."""
    fields = {key: value for key, value in msgspec.structs.asdict(command).items() if key != "id"}
    text = ", ".join(f"{key} {value!r}" for key, value in fields.items())
    return name_of(command) + (f" ({text})" if text else "")
