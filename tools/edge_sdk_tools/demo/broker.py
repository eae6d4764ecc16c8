"""An MQTT broker for the length of the demo, and a subscriber that writes messages down.

The broker is amqtt, which needs no system package, as a process of its own: `python -m edge_sdk_tools.demo.broker
PORT`. It listens on this machine only, keeps nothing on disk and asks for no password, which is right for a demo and
for nothing else. No child process outlives the block that started it. The subscriber uses MQTT and JSON and nothing of
edge-sdk: it receives what any other program would.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_sdk.core.errors import MissingDependencyError, PublishError, raising
from edge_sdk_tools.packages import last_words

HOST = "127.0.0.1"
PROTOCOL = "3.1.1"  # the newest version of MQTT that the broker speaks
_ATTEMPTS = 5  # another program may take the port between the choice and the start
_READY_S = 20.0
_LISTENS = "the broker listens"  # what it says itself: another program on its port would accept a connection too
_SUBSCRIBE_S = 10.0
_QUIET_S = 0.5
_PATIENCE_S = 5.0


@contextmanager
def child(command: Sequence[str], errors: Path, grace_s: float = 10.0) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, and end it with the block: SIGTERM, and SIGKILL when that does not help.

    Standard error goes to the file `errors`. Standard input is a pipe that closes with the block.
    """
    with (
        errors.open("w", encoding="utf-8") as sink,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=sink) as process,
    ):
        try:
            yield process
        finally:
            try:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace_s)
            finally:
                process.kill()  # also when Ctrl-C interrupts the wait; killing what has ended does nothing


def last_line(errors: Path) -> str:
    """Return the last error that a child wrote to its file, for a message."""
    return last_words(errors.read_text(encoding="utf-8", errors="replace"))


@contextmanager
def running_broker() -> Iterator[int]:
    """Run a broker, and yield its port."""
    if importlib.util.find_spec("amqtt") is None:
        raise MissingDependencyError("amqtt is not installed: pip install 'edge-sdk[demo]'")
    with tempfile.TemporaryDirectory(prefix="edge-sdk-broker-") as folder:
        errors = Path(folder) / "errors.txt"
        for _ in range(_ATTEMPTS):
            port = _free_port()
            with child([sys.executable, "-m", "edge_sdk_tools.demo.broker", str(port)], errors) as process:
                if _is_ready(process, errors):
                    yield port
                    return
        raise PublishError(f"the demo's broker does not start: {last_line(errors)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_ready(process: subprocess.Popen[bytes], errors: Path) -> bool:
    deadline = time.monotonic() + _READY_S
    while process.poll() is None and time.monotonic() < deadline:
        if _LISTENS in errors.read_text(encoding="utf-8", errors="replace"):
            return True
        time.sleep(0.05)
    return False


@contextmanager
def subscribed(port: int, messages: Path) -> Iterator[None]:
    """Append every message that the broker delivers to a file, one JSON object a line, until the block ends.

    A line has {"topic", "qos", "retain", "received_at", "payload"}, where the payload is JSON or text. A PublishError
    says that the broker does not accept the subscription.
    """
    accepted = threading.Event()
    # Every broker supports MQTT 3.1.1.
    client = Client(CallbackAPIVersion.VERSION2, client_id="edge-sdk-demo", protocol=MQTTProtocolVersion.MQTTv311)
    client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
    client.on_subscribe = lambda *_: accepted.set()
    with messages.open("a", encoding="utf-8") as file:
        client.on_message = lambda _client, _userdata, message: _append(file, message)
        with raising(PublishError, "the demo's subscriber cannot connect"):
            client.connect(HOST, port)
        client.loop_start()
        try:
            if not accepted.wait(_SUBSCRIBE_S):
                raise PublishError("the demo's subscriber cannot subscribe: the broker does not answer")
            yield
        finally:
            client.disconnect()
            client.loop_stop()


def _append(file: TextIO, message: MQTTMessage) -> None:
    line: dict[str, Any] = {"topic": message.topic, "qos": message.qos, "retain": message.retain}
    line |= {"received_at": round(time.time(), 6), "payload": message.payload.decode("utf-8", errors="replace")}
    with suppress(ValueError):  # it is text
        line["payload"] = json.loads(line["payload"])
    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    file.flush()


def wait_until_quiet(messages: Path) -> None:
    """Wait until nothing has arrived for half a second; at most five seconds."""
    end = time.monotonic() + _PATIENCE_S
    size, since = messages.stat().st_size, time.monotonic()
    while time.monotonic() < min(end, since + _QUIET_S):
        time.sleep(0.05)
        now = messages.stat().st_size
        if now != size:
            size, since = now, time.monotonic()


async def _serve(port: int) -> None:
    """Serve MQTT 3.1.1 on the loopback interface until SIGTERM, SIGINT, or the end of standard input."""
    from amqtt.broker import Broker as Amqtt

    broker = Amqtt(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{HOST}:{port}", "max_connections": 16}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    sys.stderr.write(f"{_LISTENS}\n")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Standard input ends when the parent does, however it died; nothing is ever written to it.
    loop.add_reader(sys.stdin, stop.set)
    await stop.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
