"""Real Mosquitto brokers (plain, TLS, the example's), brokers that misbehave, and a TCP proxy before them."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.absent import not_installed
from tests.support.certificates import HERE, Authority, Issued

# Who talks to a broker by paho's own client, and its thread, as the tests' subscribers do.

_Self = TypeVar("_Self", bound="PahoUser | Broker | Proxy")


class PahoUser:
    """A client that reconnects by itself; as a context manager it is gone at the end.

    Args:
        broker: where.
        topic: what it is subscribed to, at QoS 1, when it is made.
        session: the client's id, where the broker is to keep its session.
    """

    def __init__(
        self, broker: Broker, topic: str, *, username: str | None = None, password: str | None = None,
        session: str = "", keepalive_s: int = 60, protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv5,
    ) -> None:  # fmt: skip
        self._topic = topic
        self.subscriptions = 0
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=session, protocol=protocol)
        self._client.reconnect_delay_set(1, 1)
        self._client.username_pw_set(username, password)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        options: dict[str, Any] = {}
        if session:
            options = {"clean_start": False, "properties": Properties(PacketTypes.CONNECT)}
            options["properties"].SessionExpiryInterval = 3600
        self._client.connect(broker.host, broker.port, keepalive=keepalive_s, **options)
        self._client.loop_start()
        wait_until(lambda: self.subscriptions > 0, "the subscription")

    def _on_connect(self, client: mqtt.Client, _data: object, _flags: mqtt.ConnectFlags, *_: object) -> None:
        client.subscribe(self._topic, qos=1)

    def _on_subscribe(self, *_: object) -> None:
        self.subscriptions += 1

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


# A real Mosquitto for tests, and a subscriber that shares no code with the publisher.

_PORTS = random.SystemRandom()
WAIT_S = 120.0
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
    while True:
        port = _PORTS.randrange(15_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:.0f} s for {what() if callable(what) else what}")
        time.sleep(0.01)


class Broker:
    _more_ports: tuple[int, ...] = ()

    def __init__(
        self, folder: Path, *, users: Mapping[str, str] | None = None, acl: Sequence[str] | None = None,
        persistence: bool = False, config: Sequence[str] = (), start: bool = True,
    ) -> None:  # fmt: skip
        self._program = require_program("mosquitto")
        self._folder = folder
        self.host = "127.0.0.1"
        self.port = free_port()
        lines = [f"listener {self.port} {self.host}", f"allow_anonymous {'false' if users else 'true'}"]
        if os.geteuid() == 0:
            lines.append("user root")  # else it becomes another user, to whom the test's folder is closed
        if users:
            passwords = self._write_private("passwords", "".join(f"{user}:{word}\n" for user, word in users.items()))
            subprocess.run([require_program("mosquitto_passwd"), "-U", str(passwords)], check=True)
            lines.append(f"password_file {passwords}")
        if acl is not None:
            acl_file = self._write_private("acl", "\n".join(acl) + "\n")
            lines.append(f"acl_file {acl_file}")
        if persistence:
            lines += ["persistence true", f"persistence_location {folder}/", "autosave_interval 1"]
        self._config_file = folder / "mosquitto.conf"
        self._config_file.write_text("\n".join([*lines, *config]) + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        return (self._folder / "mosquitto.log").read_text()

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
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
        self._end(signal.SIGKILL)

    def restart(self, line: str = "", becomes: str = "") -> None:
        """Start it anew, with a line of its configuration in place of another."""
        self.stop()
        self._config_file.write_text(self._config_file.read_text().replace(line, becomes))
        self.start()

    def freeze(self) -> None:
        """Stop its clock: the kernel still takes connections and data until its buffers are full."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return

        def has_ended() -> bool:
            process.send_signal(how)  # again and again: mosquitto forgets a SIGTERM right after its port has opened
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            return process.returncode is not None

        wait_until(has_ended, f"the end of mosquitto after {how.name}")
        self._process = None

    def _answers(self) -> bool:
        if self._running().poll() is not None:
            pytest.fail(f"mosquitto ended with {self._running().returncode}: {self.log}")
        try:
            for port in (self.port, *self._more_ports):  # mosquitto opens one after the other
                socket.create_connection((self.host, port), 1.0).close()
        except OSError:
            return False
        return True

    def _write_private(self, name: str, text: str) -> Path:
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path


class Received(NamedTuple):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    content_type: str | None
    user_properties: tuple[tuple[str, str], ...]
    expiry_s: int | None


class Subscriber(PahoUser):
    """An independent client that collects what it receives; reconnects by itself."""

    def __init__(
        self, broker: Broker, topic: str = "#", *, username: str | None = None, password: str | None = None
    ) -> None:
        self._messages: list[Received] = []
        self._lock = threading.Lock()
        super().__init__(broker, topic, username=username, password=password)

    def messages(self, ending: str = "") -> list[Received]:
        with self._lock:
            return [m for m in self._messages if m.topic.endswith(ending)]

    def publish(self, topic: str, payload: bytes) -> None:
        self._client.publish(topic, payload, 1).wait_for_publish(WAIT_S)

    def wait_for(self, condition: Callable[[list[Received]], bool], what: str) -> list[Received]:
        wait_until(lambda: condition(self.messages()), what)
        return self.messages()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        properties = message.properties
        received = Received(
            message.topic, bytes(message.payload), message.qos, message.retain,
            getattr(properties, "ContentType", None), tuple(getattr(properties, "UserProperty", ())),
            getattr(properties, "MessageExpiryInterval", None),
        )  # fmt: skip
        with self._lock:
            self._messages.append(received)


# A real Mosquitto that speaks TLS, websockets or both.


class TlsBroker(Broker):
    """One with a second, encrypted listener; the plain one is for whoever looks on."""

    def __init__(
        self, folder: Path, *, broker_certificate: Issued | None = None, clients_of: Authority | None = None,
        more: Sequence[str] = (), users: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.authority = Authority(folder, "broker-ca")
        self.tls_port = free_port()
        self._more_ports = (self.tls_port,)
        shown = broker_certificate or self.authority.issue("broker", HERE)
        lines = [f"listener {self.tls_port} 127.0.0.1", f"certfile {shown.cert_file}", f"keyfile {shown.key_file}"]
        if clients_of is not None:
            lines += [f"cafile {clients_of.file}", "require_certificate true"]
        super().__init__(folder, users=users, config=[*lines, *more])

    @property
    def reach(self) -> dict[str, object]:
        """Settings with which a device reaches it, encrypted."""
        return {"host": "localhost", "port": self.tls_port, "tls": True, "ca_file": self.authority.file}


# A broker of a few lines for MQTT 5, which answers connections and subscriptions as it is told to.

_WINDOW = 20
_TOPIC = b"edge/v1/a/pi/result/gate"


class DeafBroker:
    def __init__(self, connects: Sequence[int] = (), subscribes: Sequence[int] | None = None, sends: int = 0) -> None:
        self._sends, self.sent, self._acknowledged = sends, 0, 0
        self.pings = self.connections = 0
        self._connects, self._subscribes = list(connects), None if subscribes is None else list(subscribes)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def __enter__(self) -> DeafBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(1):
                    body = stream.read(_length(stream.read))
                    self._answer(connection, head[0], body)

    def _answer(self, connection: socket.socket, head: int, body: bytes) -> None:
        kind = head >> 4
        if kind == 1:  # CONNECT
            reason = self._connects.pop(0) if self._connects else 0
            connection.sendall(bytes((0x20, 3, 0, reason, 0)))
        elif kind == 3 and head & 0x06:  # PUBLISH at QoS 1: the id stands behind the topic
            at = 2 + int.from_bytes(body[:2], "big")
            connection.sendall(bytes((0x40, 2)) + body[at : at + 2])
        elif kind == 8:  # SUBSCRIBE
            reason = 0x87 if self._subscribes is None else (self._subscribes or [1]).pop(0)
            connection.sendall(bytes((0x90, 4)) + body[:2] + bytes((0, reason)))
            self._send(connection)
        elif kind == 4:  # PUBACK
            self._acknowledged += 1
            self._send(connection)
        elif kind == 12:  # PINGREQ
            self.pings += 1
            connection.sendall(bytes((0xD0, 0)))

    def _send(self, connection: socket.socket) -> None:
        while self.sent < min(self._sends, self._acknowledged + _WINDOW):
            self.sent += 1
            packet = len(_TOPIC).to_bytes(2, "big") + _TOPIC + self.sent.to_bytes(2, "big") + b"\0%d" % self.sent
            connection.sendall(bytes((0x32, len(packet))) + packet)


def _length(read: object) -> int:
    total = shift = 0
    while True:
        byte = read(1)[0]  # type: ignore[operator]
        total |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return total


# A TCP proxy that does to a connection what routers do: passes, swallows, resets, or is slow.

Mode: TypeAlias = Literal["pass", "swallow", "reset"]

_SLOW_BYTES = 512  # of a slow link, at once


class Proxy:
    def __init__(self, port: int, bytes_per_s: float = math.inf) -> None:
        self.mode: Mode = "pass"
        self.bytes_per_s = bytes_per_s
        self.connections = 0
        self.pieces: list[int] = []
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        if bytes_per_s < math.inf:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.port: int = self._listener.getsockname()[1]
        self._is_open = True
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = False
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while self._is_open:
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, _ = self._listener.accept()
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.mode == "reset":
                _reset(client)
                return
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._server_port)) as server:
                while self._is_open and self._pump(client, server):
                    pass

    def _pump(self, client: socket.socket, server: socket.socket) -> bool:
        ready = select.select([client, server], [], [], 0.05)[0]
        mode = self.mode  # as it is now, and not as it was when nothing came
        if mode == "reset":
            _reset(client)
            return False
        for source in ready:
            is_slow = source is client and self.bytes_per_s < math.inf
            data = source.recv(_SLOW_BYTES if is_slow else 65536)
            if not data:
                return False
            time.sleep(len(data) / self.bytes_per_s if is_slow else 0.0)
            if mode != "swallow":
                (server if source is client else client).sendall(data)
            if source is client:
                self.pieces.append(len(data))
        return True


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class OldBroker(Proxy):
    """A door before a real broker that refuses MQTT 5, as brokers of 2016 do, and counts how often."""

    def __init__(self, broker: Broker) -> None:
        self.refused = 0
        super().__init__(broker.port)

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if b"MQTT\x05" not in client.recv(4096, socket.MSG_PEEK):
                super()._serve(client)
                return
            client.recv(4096)
            self.refused += 1
            client.sendall(b"\x20\x02\x00\x01")
