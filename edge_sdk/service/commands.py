"""Carry out commands that come over MQTT, and answer them.

    MQTT thread -> CommandInbox -> CommandAdmission -> HANDLERS -> answer on `res`

Everything but the inbox runs in the process's main thread, which calls `CommandHandler.look` a few times a second.
Admission makes every refusal that needs no knowledge of cameras. Any client of the broker may have written a message,
so admission refuses everything that is not known to be harmless. A command that sets something of a camera is an entry
of `edge_sdk.messages.commands.COMMANDS` alone; each other one has its handler in `HANDLERS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edge_sdk.core.errors import OutputError, failure_line, printable
from edge_sdk.core.files import read_record, state_folder, write_record
from edge_sdk.core.threads import BackgroundTask
from edge_sdk.core.toml import problems, shown
from edge_sdk.events.snapshots import jpeg_of
from edge_sdk.messages.commands import (
    COMMANDS,
    PERMISSIONS,
    THRESHOLDS,
    Command,
    CommandKind,
    Complaint,
    Control,
    Permission,
    Picture,
    RefusedError,
    Reload,
    ReportState,
    ResponseMessage,
    Snapshot,
    name_of,
)
from edge_sdk.messages.schema import Incoming, Message, Topics
from edge_sdk.service.monitors import RareLines, TokenBucket
from edge_sdk.service.output import HomeAssistantReporter, Output
from edge_sdk.service.runner import CameraControls, Controls, Shot
from edge_sdk.service.settings import PipelineSettings, RunSettings

_LARGEST_BYTES = 2048  # size limit of a command; the longest valid one has 300 bytes
_LONGEST_TOPIC = 200  # characters that a response topic may have
_LARGEST_CORRELATION = 128  # bytes; common clients send 16
_BURST, _PER_S = 20, 5.0  # commands at once, and per second; a moving slider sends that many
_COMPLAIN_EVERY_S = 1.0
_SHOWN = 40  # characters of a sender's text that a line shows
_LONGEST = 200  # characters of the complaint about a field
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MOST_MESSAGES = 64  # messages that may wait in the inbox
_FRAME_WAIT_S = 5.0  # longest wait of a snapshot request for a frame, because its sender waits for an answer
_JPEG_QUALITY = 85
_PAUSED = "this camera is paused, so no frame of it is used; resume it and ask again"
_MOST_ANSWERS = 32
_LONGEST_REASON = 500  # characters of the reason in an answer about a configuration
_FOLDERS = re.compile(r"(?<![\w/:])/(?:[^\s/:]+/)+")  # the folders in front of a file's name, but no part of a URL

_log = logging.getLogger(__name__)


class Reply(msgspec.Struct, kw_only=True):
    """Where to send an answer, with the command's name and id if they could be read, and its text for people."""

    topic: str
    correlation: bytes = b""
    command: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    words: str = "a command"


class CommandAdmission:
    """Decides which messages on the `cmd` topic of a device are commands to carry out."""

    def __init__(
        self, topics: Topics, allowed: Collection[Permission], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.topics, self.allowed, self._clock_s = topics, allowed, clock_s
        self._bucket = TokenBucket(_BURST, _PER_S, clock_s)
        self._complain_at_s, self._passed_over = 0.0, 0

    def admit(self, incoming: Incoming) -> tuple[Reply, Command | RefusedError] | None:
        """Judge one message; return None where there is nothing to do. `passed_over` counts messages above the rate."""
        if incoming.retain and not incoming.payload:
            return None  # an empty payload clears a retained message, as our refusal asks
        if not self._bucket.take():
            self._passed_over += 1
            return None
        reply = Reply(topic=self.topics.of("response"))
        try:
            return reply, self._command(incoming, reply)
        except RefusedError as refusal:
            return reply, refusal

    def passed_over(self, more: int = 0) -> RefusedError | None:
        """Return an error with the number of messages above the rate, and `more` lost ones; at most one a second."""
        self._passed_over += more
        now_s = self._clock_s()
        if not self._passed_over or now_s < self._complain_at_s:
            return None
        count, self._passed_over, self._complain_at_s = self._passed_over, 0, now_s + _COMPLAIN_EVERY_S
        were = "1 command was" if count == 1 else f"{count} commands were"
        text = f"{were} passed over, send again what matters; {_BURST} at once and {_PER_S:g} a second are handled"
        return RefusedError("too_fast", text)

    def _command(self, incoming: Incoming, reply: Reply) -> Command:
        """Decode a command, and record its details and where to answer in `reply`; raises RefusedError."""
        payload = incoming.payload
        if len(incoming.correlation) > _LARGEST_CORRELATION:
            raise RefusedError("malformed", f"correlation data is above {_LARGEST_CORRELATION} bytes")
        reply.correlation = incoming.correlation
        reply.topic = self._response_topic(incoming.response_topic)
        if len(payload) > _LARGEST_BYTES:
            raise RefusedError("too_large", f"{len(payload)} bytes, expected {_LARGEST_BYTES} at most")
        name, reply.id = _named(payload)
        if not isinstance(name, UnsetType) and name in COMMANDS:
            reply.command = name
        if incoming.retain:
            raise RefusedError(
                "retained",
                "a retained message is no command, because it would come again at every connection; clear it "
                f"(mosquitto_pub -r -n -t {self.topics.of('command')}), and send it without retain",
            )
        if isinstance(name, UnsetType):
            got = _shown(payload.decode("utf-8", "replace"))
            raise RefusedError("malformed", f'got {got}, expected a JSON object such as {{"command": "report_state"}}')
        if name not in COMMANDS:
            raise RefusedError(
                "unknown_command", f"no command {_shown(name)}, expected {', '.join(PERMISSIONS)} or resume"
            )
        wanted = COMMANDS[name].permission
        if wanted not in self.allowed:  # before the fields are checked, because a disabled command reveals nothing
            allow = ", ".join(f'"{each}"' for each in PERMISSIONS if each in self.allowed or each == wanted)
            covered = "" if name == wanted else f", which {wanted} stands for"
            how = f"{name} is off here{covered}; [commands] allow = [{allow}] in its configuration turns it on too"
            raise RefusedError("not_allowed", how)
        try:
            command: Command = msgspec.json.decode(payload, type=Command)
        except _UNREADABLE as cause:
            raise RefusedError("malformed", _wrong_field(str(cause), name, payload)) from None
        if COMMANDS[name_of(command)].permission != wanted:  # the message has this key twice
            raise RefusedError("malformed", "the key command is there twice, expected once")
        reply.command, reply.words = name_of(command), f"command {_words(command)}"
        return command

    def _response_topic(self, wanted: str) -> str:
        """Return the topic to answer on: the device's `res` or one below it; commands must not choose others."""
        own = self.topics.of("response")
        if not wanted or wanted == own:
            return own
        rest = wanted.removeprefix(f"{own}/")
        is_below = rest != wanted and rest.isprintable() and not {"+", "#"} & set(rest) and all(rest.split("/"))
        if not is_below or len(wanted) > _LONGEST_TOPIC:
            raise RefusedError("response_topic", f"got {_shown(wanted)}, expected {own} or below it")
        return wanted


def _wrong_field(cause: str, name: str, payload: bytes) -> str:
    example = COMMANDS[name].example
    try:
        found = next(problems(msgspec.json.decode(payload), type(example)), None)
    except _UNREADABLE:
        found = None
    return f"{_bounded(found or cause)}; such as {msgspec.json.encode(example).decode()}"


def _named(payload: bytes) -> tuple[str | UnsetType, str | UnsetType]:
    """Return the name and the id of a command, also where the rest of the message is not valid."""
    try:
        fields = msgspec.json.decode(payload, type=dict[str, object])
    except _UNREADABLE:
        return UNSET, UNSET
    name, number = fields.get("command"), fields.get("id")
    is_id = isinstance(number, str) and len(number) <= 64
    return (name if isinstance(name, str) else UNSET), (str(number) if is_id else UNSET)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _bounded(text: str) -> str:
    line = printable(" ".join(text.split()))  # it may contain a key from the sender
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


class CommandInbox:
    """Keeps what the publisher's thread receives until the main thread takes it; a `Receiver`."""

    def __init__(self) -> None:
        self.lost = 0
        self._messages: deque[Incoming] = deque()
        self._refusals: deque[str] = deque(maxlen=8)

    def receive(self, incoming: Incoming) -> None:
        """Keep one message if there is room."""
        if len(self._messages) < _MOST_MESSAGES:
            self._messages.append(incoming)
        else:
            self.lost += 1

    def refused(self, line: str) -> None:
        """Keep the broker's refusal of a subscription."""
        self._refusals.append(line)

    def take(self) -> list[Incoming]:
        """Take the messages that wait, in order."""
        return _emptied(self._messages)

    def take_refusals(self) -> list[str]:
        """Take the broker's refusals of subscriptions, in lines for people; an empty line means that it accepts all."""
        return _emptied(self._refusals)


def _emptied(waiting: deque[Any]) -> list[Any]:
    return [waiting.popleft() for _ in range(len(waiting))]


Told: TypeAlias = Callable[[str], None]
"""Callback with the reason why a configuration was refused, in lines; empty where it was accepted."""

_Thresholds: TypeAlias = dict[str, tuple[Annotated[float, Meta(ge=0, le=1)], float | None]]


class ThresholdMemory:
    """Keeps the thresholds of a device's cameras that commands set in the state folder, so that a restart keeps them.

    If the configuration of a threshold changed since then, the configuration's value holds. A thread writes the record,
    because a disk may hang; without a state folder nothing is kept.
    """

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self._name = f"{hashlib.sha256(topics.of('command').encode()).hexdigest()[:32]}.json"
        self._cameras = self._read()  # each threshold that a command set, with the configuration's value at that time
        self._writing: BackgroundTask[None] | None = None
        self._is_written = True

    def recall(self, pipelines: Iterable[PipelineSettings], controls: Controls) -> None:
        """Set the remembered thresholds of these cameras; forget others, and those that the configuration changed."""
        before, self._cameras = self._cameras, {}
        for pipeline in pipelines:
            camera = pipeline.camera
            for name, (value, configured) in before.get(camera, {}).items():
                if name not in THRESHOLDS:
                    continue  # a later version of this program wrote it
                if getattr(pipeline, name) == configured:
                    self._cameras.setdefault(camera, {})[name] = value, configured
                    controls.of(camera).change(**{name: value})
                    _log.info(f"{camera}: {name} {value:g}, as a command set it")
                else:
                    controls.of(camera).change(**{name: UNSET})
                    _log.info(f"{camera}: the configuration changed since a command set {name} {value:g}, and holds")
        self._is_written = self._cameras == before

    def remember(self, pipeline: PipelineSettings, name: str, value: float) -> None:
        """Remember what a command set."""
        self._cameras.setdefault(pipeline.camera, {})[name] = value, getattr(pipeline, name)
        self._is_written = False

    def look(self) -> None:
        """Begin to write what changed, unless the last write still goes on; called a few times a second."""
        if self._is_written or (self._writing is not None and not self._writing.is_done):
            return
        data = msgspec.json.encode(self._cameras)
        with contextlib.suppress(RuntimeError):  # no thread can be started at present
            self._writing = BackgroundTask(lambda: self._write(data), "edge-thresholds")
            self._is_written = True

    def _read(self) -> dict[str, _Thresholds]:
        try:
            return read_record(self._path(), dict[str, _Thresholds]) or {}
        except OutputError as cause:
            _log.warning(f"the thresholds that commands set before are not known: {cause}")
            return {}

    def _write(self, data: bytes) -> None:
        try:
            write_record(self._path(), data)
        except OutputError as cause:
            _log.warning(f"thresholds that commands set hold until the next start: {cause}")

    def _path(self) -> Path:
        return state_folder() / "thresholds" / self._name


class CommandHandler:
    """Carries out commands and answers them; `look` is called a few times a second."""

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
        self._answers: deque[Message] = deque(maxlen=_MOST_ANSWERS)  # answers that wait for a publisher
        self._rejections = RareLines(5, 0.5, clock_s)  # a few mistyped commands are all logged
        self._lost = 0
        self._snapshots: dict[str, tuple[Reply, Snapshot, float]] = {}  # the request that waits for a frame, by camera
        self._admission: CommandAdmission | None = None
        self._home: HomeAssistantReporter | None = None
        self._cameras: dict[str, PipelineSettings] = {}
        self._memory: ThresholdMemory | None = None
        self.change_to(settings)

    def change_to(self, settings: RunSettings) -> None:
        """Use other settings from now on; cameras that stay keep the values that commands have set."""
        self._cameras = {pipeline.camera: pipeline for pipeline in settings.pipelines}
        controls, mqtt, home = self._controls, settings.mqtt, settings.home_assistant
        controls.keep_only(self._cameras, settings.commands)
        controls.are_told = mqtt is not None and bool(settings.commands)
        controls.sees = mqtt is not None and home is not None and home.is_enabled
        told, self._home = self._home, None
        if mqtt is None:
            return
        if self._admission is None:
            self._admission = CommandAdmission(mqtt.topics, settings.commands, self._clock_s)
        self._admission.topics, self._admission.allowed = mqtt.topics, settings.commands  # keeps its rate limit
        if "set_threshold" in settings.commands:
            if self._memory is None or self._memory.topics != mqtt.topics:
                self._memory = ThresholdMemory(mqtt.topics)
            self._memory.recall(settings.pipelines, controls)
        if home is not None:
            self._home = HomeAssistantReporter(home, mqtt.topics, settings.commands, controls, self._clock_s, told)

    def look(self) -> None:
        """Carry out and answer the commands that came, and publish changes to Home Assistant."""
        for line in self._inbox.take_refusals():
            if line:
                _log.warning(line)
            self._output.warn("subscription", line)
        for incoming in self._inbox.take():
            if self._home is not None and incoming.topic in self._home.topics:
                self._home.hear(incoming)
            elif self._admission is not None and self._admission.allowed:
                self._receive(self._admission, incoming)
        if self._admission is not None:
            before, self._lost = self._lost, self._inbox.lost
            too_fast = self._admission.passed_over(self._lost - before)
            if too_fast is not None:  # only to the device's own topic, because it answers several senders
                self._answer(Reply(topic=self._admission.topics.of("response")), too_fast)
        self._look_at_snapshots()
        if self._memory is not None:
            self._memory.look()
        if self._home is not None:
            self._home.look(self._output, self._cameras)
        self._deliver()

    def _receive(self, admission: CommandAdmission, incoming: Incoming) -> None:
        admitted = admission.admit(incoming)
        if admitted is None:
            return
        reply, command = admitted
        try:
            if isinstance(command, RefusedError):
                raise command
            kind = COMMANDS[name_of(command)]
            if kind.control is not None:
                self._set(kind, kind.control, command)
                self._answer(reply)
            else:
                HANDLERS[type(command)](self, command, reply)
        except Exception as cause:  # noqa: BLE001 - whoever may send a command must not be able to end the process
            self._answer(reply, cause)

    def _set(self, kind: CommandKind, setting: Control, command: Any) -> None:
        control = self._control(command.camera)
        if control.known is None and setting.is_threshold:
            raise RefusedError("not_possible", "this camera's model is not loaded yet")
        if control.known is not None and (why := control.known.refusals.get(setting.name)):
            raise RefusedError("not_possible", why)
        value = getattr(command, setting.name) if kind.value is None else kind.value
        control.change(**{setting.name: value})
        if setting.is_threshold and self._memory is not None:
            self._memory.remember(self._cameras[command.camera], setting.name, value)

    def _report_state(self, _command: ReportState, reply: Reply) -> None:
        broker = self._output.broker
        self._answer(reply, None if broker is None else msgspec.Raw(broker.state()))

    def _begin_reload(self, _command: Reload, reply: Reply) -> None:
        if self._reload is None:
            raise RefusedError("not_possible", "there is no configuration file to read again")

        def told(why_not: str) -> None:
            words = f"the configuration is not taken, what runs goes on: {_short(why_not)}"
            self._answer(reply, RefusedError("failed", words) if why_not else None)

        self._reload(told)

    def _begin_snapshot(self, command: Snapshot, reply: Reply) -> None:
        control = self._control(command.camera)
        if control.state.paused:
            raise RefusedError("not_possible", _PAUSED)
        if command.camera in self._snapshots:
            raise RefusedError("too_fast", "an earlier request for a picture of this camera still waits")
        control.shot = None  # a picture that came after its request timed out
        control.wants_shot = True
        self._snapshots[command.camera] = reply, command, self._clock_s() + _FRAME_WAIT_S

    def _look_at_snapshots(self) -> None:
        """Publish pictures that came, and answer requests whose wait is over."""
        for camera, (reply, command, until) in [*self._snapshots.items()]:
            control = self._controls.of(camera)
            if (shot := control.shot) is not None:
                control.shot = None
                answer: Picture | Exception = self._publish(command, shot)
            elif control.state.paused:
                answer = RefusedError("not_possible", _PAUSED)
            elif self._clock_s() >= until:
                answer = RefusedError("failed", f"no frame came within {_FRAME_WAIT_S:g} s")
            else:
                continue
            control.wants_shot = False
            del self._snapshots[camera]
            self._answer(reply, answer)

    def _publish(self, command: Snapshot, shot: Shot) -> Picture | Exception:
        broker = self._output.broker
        if broker is None:
            return RefusedError("failed", "there is no broker any more")
        try:
            jpeg, width, height = jpeg_of(shot.image, command.width, _JPEG_QUALITY)
        except Exception as cause:  # noqa: BLE001 - an error of OpenCV, or too little memory, fails this request alone
            return cause
        broker.snapshot(command.camera, jpeg, shot.seq)
        topic = broker.topics.of("snapshot", command.camera)
        return Picture(topic=topic, width=width, height=height, bytes=len(jpeg), seq=shot.seq)

    def _control(self, camera: str) -> CameraControls:
        if camera not in self._cameras:
            known = ", ".join(sorted(self._cameras))
            raise RefusedError("unknown_camera", f"no camera {shown(camera)} here, expected {known}")
        return self._controls.of(camera)

    def _answer(self, reply: Reply, answer: msgspec.Raw | Picture | Exception | None = None) -> None:
        """Answer a command that is done, by default without more; a failure is logged too."""
        if isinstance(answer, Exception) and not isinstance(answer, RefusedError):
            answer = RefusedError("failed", _short(failure_line(answer)))
        error = answer.complaint if isinstance(answer, RefusedError) else UNSET
        if isinstance(error, Complaint):
            self._rejections.tell(f"{reply.words} was refused ({error.code}): {error.message}")
        elif not isinstance(answer, Picture):
            _log.info(reply.words)
        response = ResponseMessage(
            **msgspec.structs.asdict(self._output.identity),
            command=reply.command,
            id=reply.id,
            ok=isinstance(error, UnsetType),
            error=error,
            state=answer if isinstance(answer, msgspec.Raw) else UNSET,
            picture=answer if isinstance(answer, Picture) else UNSET,
        )
        payload = msgspec.json.encode(response)
        self._answers.append(Message(reply.topic, payload, kind="response", correlation=reply.correlation))
        self._deliver()

    def _deliver(self) -> None:
        broker = self._output.broker
        while self._answers and broker is not None:
            broker.retained.send(self._answers.popleft())


HANDLERS: dict[type[Command], Callable[[CommandHandler, Any, Reply], None]] = {
    Snapshot: CommandHandler._begin_snapshot,
    ReportState: CommandHandler._report_state,
    Reload: CommandHandler._begin_reload,
}
"""The handlers of commands that set nothing of a camera; they answer at once or later, or raise RefusedError."""


def _short(lines: str) -> str:
    """Shorten text to one line for a sender, without this device's folder names, which it must not reveal."""
    text = _FOLDERS.sub("…/", "; ".join(printable(line) for line in lines.splitlines()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}… (its journal has all of it)"


def _words(command: Command) -> str:
    """Format a command for people, without its id; texts are quoted and escaped because they come from the sender."""
    fields = {key: value for key, value in msgspec.structs.asdict(command).items() if key != "id"}
    text = ", ".join(f"{key} {value!r}" for key, value in fields.items())
    return name_of(command) + (f" ({text})" if text else "")
