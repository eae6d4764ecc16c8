"""Desk: carries out what comes over MQTT, in the daemon's main thread, and answers.

Owns what a command does; which messages are commands is `Admission`'s, and what Home Assistant is told is `Home`'s.

Shooting: pictures that commands ask for, from the next frame to JPEG on the camera's topic.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from edge_sdk.core.errors import failure_line, printable
from edge_sdk.core.logs import Say
from edge_sdk.core.toml import shown
from edge_sdk.events.snapshots import jpeg_of
from edge_sdk.messages.commands import (
    Command,
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
)
from edge_sdk.messages.schema import Message
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.commands import Admission, CommandInbox, RejectionLog, Request, Turned
from edge_sdk.service.home_assistant import HomeAssistantReporter
from edge_sdk.service.output import Output
from edge_sdk.service.reload import Told
from edge_sdk.service.runner import CameraControls, Controls, Shot
from edge_sdk.service.settings import RunSettings

_PATIENCE_S = 5.0  # for a frame: a requester waits for an answer
_MOST = 8  # requests that wait; they share a camera's picture
_QUALITY = 85
_PAUSED = "this camera is paused: nothing of it is looked at; resume it and ask again"

Done: TypeAlias = "Picture | Exception"


class SnapshotRequests:
    """Of all cameras; used from the daemon's main thread.

    Args:
        controls: of the cameras.
        clock_s: monotonic seconds.
    """

    def __init__(self, controls: Controls, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._controls, self._clock_s = controls, clock_s
        self._waiting: list[tuple[Request, Snapshot, float]] = []

    def begin(self, request: Request, control: CameraControls) -> None:
        """Ask for a picture.

        Raises:
            RefusedError: there cannot be one.
        """
        command = request.command
        if not isinstance(command, Snapshot):
            raise TypeError("expected a snapshot")
        if control.paused:
            raise RefusedError("not_possible", _PAUSED)
        if len(self._waiting) >= _MOST:
            raise RefusedError("too_fast", f"{_MOST} pictures are waited for already")
        if all(other.camera != command.camera for _, other, _ in self._waiting):
            control.shot = None  # what came after its time was over
        control.wants_shot = control.shot is None  # otherwise one has just come, for both
        self._waiting.append((request, command, self._clock_s() + _PATIENCE_S))

    def look(self, outlet: Output) -> Iterator[tuple[Request, Done]]:
        """Publish pictures that came; gives of each request that is done its picture, or why there is none."""
        waiting, self._waiting = self._waiting, []
        for request, command, until in waiting:
            control = self._controls.of(command.camera)
            shot = control.shot
            if shot is not None:
                yield request, self._publish(outlet, command, shot)
            elif control.paused:
                control.wants_shot = False
                yield request, RefusedError("not_possible", _PAUSED)
            elif self._clock_s() >= until:
                control.wants_shot = False
                yield request, RefusedError("failed", f"no frame came within {_PATIENCE_S:g} s")
            else:
                self._waiting.append((request, command, until))
        awaited = {command.camera for _, command, _ in self._waiting}
        for _, command, _ in waiting:
            if command.camera not in awaited:
                self._controls.of(command.camera).shot = None  # a picture may be large

    def _publish(self, outlet: Output, command: Snapshot, shot: Shot) -> Done:
        broker = outlet.broker
        if broker is None:
            return RefusedError("failed", "there is no broker any more")
        try:
            jpeg, width, height = jpeg_of(shot.image, command.width, _QUALITY)
        except Exception as cause:  # noqa: BLE001 - want of memory, or of OpenCV's, is the request's failure alone
            return cause
        topic = broker.topics.of("snapshot", command.camera)
        broker.snapshot(command.camera, jpeg, shot.seq)
        return Picture(topic=topic, width=width, height=height, bytes=len(jpeg), seq=shot.seq)


_MOST_ANSWERS = 32
_LONGEST_REASON = 500  # characters, of what an answer says of a configuration
_FOLDERS = re.compile(r"(?<![\w/:])/(?:[^\s/:]+/)+")  # in front of a file's name; no part of a URL


class CommandHandler:
    """Of one process; `look` is called a few times a second.

    Args:
        settings: of the run.
        controls: of its cameras.
        say: takes one line for people.
        outlet: gives that of the present; a reload may change it.
        reload: has the configuration read again, and whoever asks told of it; None where there is none.
        clock_s: monotonic seconds.

    Attributes:
        inbox: what comes is left there.
    """

    def __init__(
        self,
        settings: RunSettings,
        controls: Controls,
        say: Say,
        outlet: Callable[[], Output],
        reload: Callable[[Told], None] | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inbox = CommandInbox()
        self._controls, self._say, self._outlet = controls, say, outlet
        self._reload, self._clock_s = reload, clock_s
        self._answers: deque[Message] = deque(maxlen=_MOST_ANSWERS)  # for as long as there is no broker to send them
        self._complaints = RejectionLog(say, clock_s)
        self._shooting = SnapshotRequests(controls, clock_s)
        self._admission: Admission | None = None
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
            self._admission = Admission(mqtt.topics, settings.commands, self._clock_s)
            if before is not None:
                self._admission.go_on_from(before)
        told, self._home = self._home, None
        if mqtt is not None and home is not None:
            pictured = [pipeline.camera for pipeline in settings.pipelines if pipeline.snapshots is not None]
            self._home = HomeAssistantReporter(
                home, mqtt.topics, settings.commands, controls, pictured, self._clock_s, say=self._say
            )
            if told is not None:
                self._home.go_on_from(told)

    def look(self) -> None:
        """Carry out and answer what came, and tell Home Assistant what is new."""
        messages, lost = self.inbox.take()
        for line in self.inbox.take_refusals():
            if line:
                self._say(f"warning: {line}")
            self._outlet().warn("subscription", line)
        for incoming in messages:
            if self._home is not None and incoming.topic in self._home.topics:
                self._home.hear(incoming)
            elif self._admission is not None:
                self._receive(self._admission, incoming)
        if self._admission is not None:
            self._admission.overflow(lost)
            self._turn_away(self._admission.passed_over())
        self._complaints.look()
        outlet = self._outlet()
        for request, done in self._shooting.look(outlet):
            self._answer(request, done)
        if self._home is not None:
            self._home.look(outlet, self._cameras)
        self._deliver()

    def _receive(self, admission: Admission, incoming: Incoming) -> None:
        admitted = admission.admit(incoming)
        if not isinstance(admitted, Request):
            self._turn_away(admitted)
            return
        command = admitted.command
        try:
            if isinstance(command, Snapshot):
                self._shooting.begin(admitted, self._control(command.camera))
                return
            if isinstance(command, Reload):
                self._begin_reload(admitted)
                return
            state = self._carry_out(command)
        except Exception as cause:  # noqa: BLE001 - whoever may send a command must not be able to end the process
            self._answer(admitted, cause)
            return
        self._done(admitted, state)

    def _done(self, request: Request, state: msgspec.Raw | None) -> None:
        self._say(f"command {_words(request.command)}")
        self._answer(request, state)

    def _begin_reload(self, request: Request) -> None:
        if self._reload is None:
            raise RefusedError("not_possible", "there is no configuration file to read again")

        def told(why_not: str) -> None:
            if why_not:
                words = f"the configuration is not taken, what runs goes on: {_short(why_not)}"
                self._answer(request, RefusedError("failed", words))
            else:
                self._done(request, None)

        self._reload(told)

    def _carry_out(self, command: Command) -> msgspec.Raw | None:
        """What is to be in the answer, if anything.

        Raises:
            RefusedError: it cannot be done.
        """
        if isinstance(command, ReportState):
            broker = self._outlet().broker
            return msgspec.Raw(broker.state()) if broker is not None else None
        if not isinstance(command, (Snapshot, Reload)):
            self._set(self._control(command.camera), command)
        return None

    def _set(self, control: CameraControls, command: Pause | Resume | SetThreshold | SetRate) -> None:
        known = control.known
        if isinstance(command, SetThreshold):
            if known is None:
                raise RefusedError("not_possible", "this camera's model is not loaded yet")
            if known.confidence is None:
                raise RefusedError("not_possible", f"a bundle for {known.task} has no confidence threshold")
            control.change(confidence=command.confidence)
        elif isinstance(command, SetRate):
            if known is not None and not known.is_paced:
                raise RefusedError("not_possible", "this source's frames come in turn, and none is left out")
            control.change(max_fps=command.max_fps)
        else:
            control.change(paused=isinstance(command, Pause))

    def _control(self, camera: str) -> CameraControls:
        if camera not in self._cameras:
            known = ", ".join(sorted(self._cameras))
            raise RefusedError("unknown_camera", f"no camera {shown(camera)} here, expected {known}")
        return self._controls.of(camera)

    def _turn_away(self, turned: Turned | None) -> None:
        if turned is None:
            return
        code, message = turned.complaint.code, turned.complaint.message
        self._complaints.take(code, f"a command was refused ({code}): {message}")
        response = ResponseMessage(
            **msgspec.structs.asdict(self._outlet().identity),
            command=turned.name,
            id=turned.id,
            ok=False,
            error=turned.complaint,
        )
        self._send(turned.topic, turned.correlation, response)

    def _answer(self, request: Request, done: msgspec.Raw | Picture | Exception | None) -> None:
        if isinstance(done, Exception) and not isinstance(done, RefusedError):
            done = RefusedError("failed", _short(failure_line(done)))
        command, error = request.command, done.complaint if isinstance(done, RefusedError) else UNSET
        if not isinstance(error, UnsetType):
            self._complaints.take(error.code, f"command {_words(command)} was refused ({error.code}): {error.message}")
        response = ResponseMessage(
            **msgspec.structs.asdict(self._outlet().identity),
            command=str(command.__struct_config__.tag),
            id=command.id,
            ok=isinstance(error, UnsetType),
            error=error,
            state=done if isinstance(done, msgspec.Raw) else UNSET,
            picture=done if isinstance(done, Picture) else UNSET,
        )
        self._send(request.topic, request.correlation, response)

    def _send(self, topic: str, correlation: bytes, response: ResponseMessage) -> None:
        self._answers.append(Message(topic, msgspec.json.encode(response), correlation=correlation))
        self._deliver()

    def _deliver(self) -> None:
        broker = self._outlet().broker
        while self._answers and broker is not None:
            broker.answer(self._answers.popleft())


def _short(lines: str) -> str:
    """What a sender is told: in one line, and without the folders of this device, which are no business of theirs."""
    text = _FOLDERS.sub("…/", "; ".join(printable(line) for line in lines.splitlines()))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}… (its journal has all of it)"


def _words(command: Command) -> str:
    """For people: the fields but the id; texts in quotes and escaped, for they are the sender's."""
    fields = {key: value for key, value in msgspec.structs.asdict(command).items() if key != "id"}
    shown = ", ".join(f"{key} {value!r}" for key, value in fields.items())
    return str(command.__struct_config__.tag) + (f" ({shown})" if shown else "")
