"""The demo's broker and its subscriber, on this machine only."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_sdk.core.errors import PublishError
from edge_sdk_tools.demo.broker import (
    Broker,
    Kind,
    child,
    find_mosquitto,
    running_broker,
    subscribed,
    wait_until_quiet,
)
from tests.support.absent import not_installed
from tests.support.broker import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(params=["mosquitto", "amqtt"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param == "mosquitto" and find_mosquitto() is None:
        not_installed("mosquitto is not installed; apt install mosquitto")
    found: Kind = request.param
    return found


def publish(broker: Broker, messages: list[tuple[str, bytes]]) -> None:
    version = MQTTProtocolVersion.MQTTv5 if broker.protocol == "5" else MQTTProtocolVersion.MQTTv311
    client = Client(CallbackAPIVersion.VERSION2, client_id="test", protocol=version)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    for topic, payload in messages:
        client.publish(topic, payload, qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


def test_messages_are_written_down_as_a_stranger_receives_them(tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "messages.jsonl"
    sent = [("a/b", b'{"x": [1, "\xc3\xa4"]}'), ("a/c", b"no json"), ("a/d", b"\xff")]
    with running_broker(kind) as broker:
        assert (broker.kind, broker.url) == (kind, f"mqtt://127.0.0.1:{broker.port}")
        with subscribed(broker.port, file):
            publish(broker, sent)
            wait_until_quiet(file)
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    ours = [line for line in lines if line["topic"].startswith("a/")]
    assert [(line["topic"], line["payload"]) for line in ours] == [
        ("a/b", {"x": [1, "ä"]}),
        ("a/c", "no json"),
        ("a/d", "\N{REPLACEMENT CHARACTER}"),
    ]
    assert {(line["qos"], line["retain"]) for line in ours} == {(1, False)}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=60)


def test_the_broker_is_not_seen_from_outside(kind: Kind) -> None:
    with running_broker(kind) as broker, socket.socket() as outside:
        # 127.0.0.2 is this machine too, but not the address that the broker listens on.
        assert outside.connect_ex(("127.0.0.2", broker.port)) != 0


def test_a_subscriber_without_a_broker_says_so(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with (
            pytest.raises(PublishError, match="cannot connect: Connection refused"),
            subscribed(port, tmp_path / "messages.jsonl"),
        ):
            pass


@pytest.mark.parametrize(("action", "code"), [("SIG_DFL", -15), ("SIG_IGN", -9)])
def test_a_child_ends_with_its_block_whether_it_listens_or_not(tmp_path: Path, action: str, code: int) -> None:
    program = f"import signal as s, sys; s.signal(s.SIGTERM, s.{action}); print('up', file=sys.stderr); s.pause()"
    errors, grace_s = tmp_path / "errors.txt", 60.0 if code == -15 else 0.2
    with child([sys.executable, "-c", program], errors, grace_s) as process:
        wait_until(lambda: errors.read_text() == "up\n", "the child")
    assert process.returncode == code
