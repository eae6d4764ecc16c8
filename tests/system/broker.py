"""A real Mosquitto for tests, and a subscriber that shares no code with the publisher.

Each broker has its own port on loopback, its own configuration and its own folder; it can be stopped, killed, frozen
and started again on the same port.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.absent import not_installed
from tests.system.paho_user import PahoUser

WAIT_S = 60.0
"""Longest wait for something that normally takes milliseconds: machines of a CI are slow at times."""


def find_program(name: str) -> str | None:
    """A program on PATH or in /usr/sbin, where Debian puts daemons and ordinary users do not look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin")


def require_program(name: str) -> str:
    """The path of a program; skips the test without it, and fails it where CI=true."""
    found = find_program(name)
    if found is None:
        reason = f"{name} is not installed; `apt-get install mosquitto mosquitto-clients`"
        not_installed(reason)
    return found


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition holds, or fail naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.01)


class Broker:
    """One Mosquitto.

    Args:
        folder: for its files; must exist.
        users: passwords by name; without any everybody may connect.
        acl: lines of an ACL file; without it everybody may do everything.
        persistence: keep retained messages and sessions over a restart.
        config: more lines of mosquitto.conf.
        port: which one to use; a free one by default.
        start: at once, or by `start()` later.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        acl: Sequence[str] | None = None,
        persistence: bool = False,
        config: Sequence[str] = (),
        port: int | None = None,
        start: bool = True,
    ) -> None:
        self._program = require_program("mosquitto")
        self._folder = folder
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self._config_file = folder / "mosquitto.conf"
        self._config_file.write_text("\n".join(self._config_lines(users, acl, persistence, config)) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """For `--mqtt`."""
        return f"mqtt://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        """What it said so far, all starts together."""
        return (self._folder / "mosquitto.log").read_text()

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running().pid

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self._folder / "mosquitto.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-c", str(self._config_file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(self._answers, f"mosquitto on port {self.port}")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop it as an administrator would; may be called twice."""
        self.thaw()
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it, and start it on the same port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop its clock: the kernel still takes connections and data until its buffers are full."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(WAIT_S)
            self._process = None

    def _answers(self) -> bool:
        if self._running().poll() is not None:
            pytest.fail(f"mosquitto ended with {self._running().returncode}: {self.log}")
        try:
            socket.create_connection((self.host, self.port), 1.0).close()
        except OSError:
            return False
        return True

    def _config_lines(
        self, users: Mapping[str, str] | None, acl: Sequence[str] | None, persistence: bool, config: Sequence[str]
    ) -> list[str]:
        lines = [f"listener {self.port} {self.host}", f"allow_anonymous {'false' if users else 'true'}"]
        if os.geteuid() == 0:
            lines.append("user root")  # else it becomes another user, to whom the test's folder is closed
        if users:
            lines.append(f"password_file {self._write_passwords(users)}")
        if acl is not None:
            acl_file = self._write_private("acl", "\n".join(acl) + "\n")
            lines.append(f"acl_file {acl_file}")
        if persistence:
            lines += ["persistence true", f"persistence_location {self._folder}/", "autosave_interval 1"]
        return [*lines, *config]

    def _write_passwords(self, users: Mapping[str, str]) -> Path:
        path = self._write_private("passwords", "".join(f"{user}:{word}\n" for user, word in users.items()))
        subprocess.run([require_program("mosquitto_passwd"), "-U", str(path)], check=True)
        return path

    def _write_private(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path


class Received(NamedTuple):
    """One message as the subscriber got it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    content_type: str | None
    user_properties: tuple[tuple[str, str], ...]
    expiry_s: int | None


class Subscriber(PahoUser):
    """An independent client that collects what it receives; reconnects by itself.

    Args:
        broker: where.
        topic: what.
        username: who.
        password: of whom.
    """

    def __init__(
        self, broker: Broker, topic: str = "#", *, username: str | None = None, password: str | None = None
    ) -> None:
        self._topic = topic
        self._messages: list[Received] = []
        self._lock = threading.Lock()
        self._subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.username_pw_set(username, password)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect(broker.host, broker.port)
        self._client.loop_start()
        self.wait_subscribed()

    def wait_subscribed(self) -> None:
        """Wait for the broker's answer to the latest subscription."""
        if not self._subscribed.wait(WAIT_S):
            pytest.fail("the broker did not answer the subscription")

    def messages(self, ending: str = "") -> list[Received]:
        """What came so far, on topics with this ending."""
        with self._lock:
            return [m for m in self._messages if m.topic.endswith(ending)]

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish, and wait until the broker has answered."""
        self._client.publish(topic, payload, 1).wait_for_publish(WAIT_S)

    def wait_for(self, condition: Callable[[list[Received]], bool], what: str) -> list[Received]:
        """Wait until what came so far fulfils a condition."""
        wait_until(lambda: condition(self.messages()), what)
        return self.messages()

    def _on_connect(self, client: mqtt.Client, *_: object) -> None:
        client.subscribe(self._topic, qos=1)

    def _on_subscribe(self, *_: object) -> None:
        self._subscribed.set()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        properties = message.properties
        received = Received(
            message.topic,
            bytes(message.payload),
            message.qos,
            message.retain,
            getattr(properties, "ContentType", None),
            tuple(getattr(properties, "UserProperty", ())),
            getattr(properties, "MessageExpiryInterval", None),
        )
        with self._lock:
            self._messages.append(received)
