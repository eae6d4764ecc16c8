"""An independent subscriber in a process of its own: `python -m edge_sdk_tools.demo.subscriber PORT FILE`.

It uses MQTT and JSON and nothing of edge-sdk, and writes the messages that any other program would receive, one JSON
object for each line. It prints "subscribed" once the broker accepts the subscription, and ends with standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

_SUBSCRIBE_S = 10.0


def listen(port: int, file: TextIO, until: TextIO, topic: str = "#") -> int:
    """Append every message to `file` until `until` ends.

    A line has {"topic", "qos", "retain", "received_at", "payload"}, where the payload is JSON or text.
    """
    subscribed = threading.Event()
    # Every broker supports MQTT 3.1.1.
    client = Client(
        CallbackAPIVersion.VERSION2, client_id="edge-sdk-demo-listener", protocol=MQTTProtocolVersion.MQTTv311
    )
    client.on_connect = lambda client, *_: client.subscribe(topic, qos=1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _userdata, message: _append(file, message)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        if not subscribed.wait(_SUBSCRIBE_S):
            return 1
        sys.stdout.write("subscribed\n")
        sys.stdout.flush()
        until.read()
    finally:
        client.disconnect()
        client.loop_stop()
    return 0


def _append(file: TextIO, message: MQTTMessage) -> None:
    line = {
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        "received_at": round(time.time(), 6),
        "payload": _decode(message.payload),
    }
    file.write(json.dumps(line, ensure_ascii=False) + "\n")
    file.flush()


def _decode(payload: bytes | bytearray) -> Any:
    text = payload.decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a", encoding="utf-8") as sink:
        sys.exit(listen(int(sys.argv[1]), sink, sys.stdin))
