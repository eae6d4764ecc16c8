"""An independent listener, as a process of its own: `python -m edge_sdk_tools.demo.subscriber PORT FILE`.

Knows MQTT and JSON and nothing of edge-sdk: it writes down what a stranger receives, one JSON object a line. Says
"subscribed" once the broker agreed, and ends with standard input.
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

    Args:
        port: of a broker on this machine.
        file: gets {"topic", "qos", "retain", "received_at", "payload"} a line; payload is the JSON that came, or text.
        until: read to its end.
        topic: filter.

    Returns:
        0, or 1 when the broker did not accept the subscription within ten seconds.
    """
    subscribed = threading.Event()
    # 3.1.1 is what every broker speaks.
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
