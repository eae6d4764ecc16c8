"""Which broker: URLs, names and secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import pytest

from edge_sdk.errors import UsageError
from edge_sdk.publishing import (
    Identity,
    MqttPublisher,
    MqttSettings,
    Secret,
    Topics,
    as_name,
    check_name,
    default_device,
    read_password,
)
from tests.device.delivery import publisher_over
from tests.device.links import FakeLink
from tests.device.results import IDENTITY, make_encoder

WORD = "hunter2"

Changes: TypeAlias = dict[str, Any]
"""Settings by name: Any, because these tests also give values that no type allows."""


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "username"),
    [
        ("mqtt://broker", "broker", 1883, False, None),
        ("mqtt://broker/", "broker", 1883, False, None),
        ("mqtt://broker:2883", "broker", 2883, False, None),
        ("mqtts://broker.example", "broker.example", 8883, True, None),
        ("MQTTS://Broker.Example:1", "broker.example", 1, True, None),
        ("mqtt://camera@10.0.0.1", "10.0.0.1", 1883, False, "camera"),
        ("mqtt://camera%40site@broker", "broker", 1883, False, "camera@site"),
        ("mqtt://[::1]:1884", "::1", 1884, False, None),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, username: str | None) -> None:
    settings = MqttSettings.parse(url)
    assert (settings.host, settings.port, settings.tls, settings.username) == (host, port, tls, username)
    assert settings.topics == Topics("edge/v1", "default", default_device())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"mqtt://camera:{WORD}@broker", "--mqtt-password-file"),
        (f"mqtts://camera:{WORD}@broker:8883", "--mqtt-password-file"),
        (f"mqtt://:{WORD}@broker", "--mqtt-password-file"),
        ("mqtt://camera:@broker", "--mqtt-password-file"),
        (f"mqtt://camera:{WORD}/x@broker", "goes on after the host"),
        ("mqtts://berlin/pi-01@broker:8883", "the user SITE/DEVICE is SITE%2FDEVICE@"),
        ("wss://berlin/pi-01@broker/mqtt", "the user SITE/DEVICE is SITE%2FDEVICE@"),
        (f"mqtt://camera:{WORD}#x@broker", "goes on after the host"),
        (f"mqtt://camera:{WORD}?x@broker", "goes on after the host"),
        (f"camera:{WORD}@broker", "cannot be read"),
        (f"mqtt://camera:[{WORD}@broker", "cannot be read"),
        (f"mqtt://camera:{WORD}\n@broker", "cannot be read"),
        ("", "cannot be read"),
        ("broker", "cannot be read"),
        ("broker:1883", "cannot be read"),
        ("http://broker", "cannot be read"),
        ("mqtt://", "names no host"),
        ("mqtt://camera@", "names no host"),
        ("mqtt://a..b", "names no host"),
        ("mqtt://" + "a" * 64, "names no host"),
        ("mqtt://broker:0", "port is not a number"),
        ("mqtt://broker:65536", "port is not a number"),
        ("mqtt://broker:port", "port is not a number"),
        ("mqtt://broker/topic", "goes on after the host"),
        ("mqtt://broker?qos=1", "goes on after the host"),
        ("mqtt://bro ker", "cannot be read"),
    ],
)
def test_urls_that_are_refused_without_repeating_them(url: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        MqttSettings.parse(url)
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert WORD not in message
    assert caught.value.__cause__ is None


def test_secrets_do_not_show() -> None:
    settings = MqttSettings.parse("mqtt://camera@broker", password=Secret(WORD))
    assert settings.password is not None
    assert settings.password.reveal() == WORD
    assert WORD not in f"{settings!r} {settings} {settings.password!r} {settings.password}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"site": "a/b"}, "site name 'a/b'"),
        ({"site": ""}, "site name has 0 characters"),
        ({"device": "a+"}, "device name 'a\\+'"),
        ({"device": "#"}, "device name '#'"),
        ({"device": ""}, "device name has 0 characters"),
        ({"device": "\udcff"}, r"device name '\\udcff'"),
        ({"prefix": "edge//v1"}, "topic prefix name has 0 characters"),
        ({"prefix": "$SYS/x"}, "topic prefix name"),
        ({"qos": 2}, "--mqtt-qos is 2, expected 0 to 1"),
        ({"password": Secret("x")}, "password but no user"),
        ({"ca_file": Path("ca.pem")}, "mqtts:// and wss:// only"),
    ],
)
def test_other_settings_that_are_refused(changes: Changes, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        MqttSettings.parse("mqtt://broker", **changes)


@pytest.mark.parametrize("changes", [{"expiry_s": 0}, {"keepalive_s": 0}, {"keepalive_s": 65536}])
def test_numbers_outside_their_range(changes: Changes) -> None:
    with pytest.raises(UsageError, match="expected 1 to"):
        MqttSettings(host="broker", port=1883, **changes)


@pytest.mark.parametrize("content", [b"hunter2", b"hunter2\n", b"hunter2\r\nsecond line\n"])
def test_password_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "password").write_bytes(content)
    assert read_password(tmp_path / "password").reveal() == WORD


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "has 0 bytes"),
        (b"\nx", "has 0 bytes"),
        (b"\xff", "not UTF-8"),
        (b"x" * 70000, "expected 1 to 65535 in the first line"),
    ],
)
def test_password_files_that_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(UsageError, match=expected) as caught:
        read_password(tmp_path / "password")
    assert "the MQTT password" in str(caught.value)
    with pytest.raises(UsageError, match="password: the source's password ") as caught:
        read_password(tmp_path / "password", "the source's password")
    assert "MQTT" not in str(caught.value)


def test_no_password_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_password(tmp_path / "none")


def test_topics() -> None:
    topics = Topics("edge/v1", "yard", "pi")
    assert (topics.status, topics.state) == ("edge/v1/yard/pi/status", "edge/v1/yard/pi/state")
    assert topics.telemetry == "edge/v1/yard/pi/telemetry"
    assert topics.result("door") == "edge/v1/yard/pi/result/door"


@pytest.mark.parametrize("name", ["a", "Front door", "a.b_c-d", "Tür", "x" * 100])
def test_names_that_are_good(name: str) -> None:
    check_name("camera", name)
    assert as_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 101, "/dev/video0", "a/b", "+", "#", "a#", "$SYS", "a\0", "a\n", "a\x7f", "\ud800", "\u2028", " a "],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="camera name"):
        Topics("p", "s", "d").result(name)
    check_name("camera", as_name(name))


def test_different_names_never_share_a_client_id() -> None:
    names = [("a-b", "c"), ("a", "b-c"), ("a", "b"), ("b", "a")]
    ids = {MqttSettings.parse("mqtt://h", site=site, device=device).client_id for site, device in names}
    assert len(ids) == len(names)


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    for name, said in (("ca.pem", "not a PEM file"), ("none.pem", "certificates cannot be read: No such file")):
        settings = MqttSettings.parse("mqtts://broker", ca_file=tmp_path / name, device="pi")
        with pytest.raises(UsageError, match=said):
            MqttPublisher(settings, IDENTITY)


def test_an_identity_of_another_device() -> None:
    with pytest.raises(UsageError, match="'pi', the MQTT topics of 'other'"):
        MqttPublisher(MqttSettings.parse("mqtt://broker", device="other"), IDENTITY)


def test_a_stream_that_cannot_be() -> None:
    publisher = publisher_over(FakeLink())
    with pytest.raises(UsageError, match="camera name 'a/b'"):
        publisher.stream("a/b", make_encoder())
    with pytest.raises(UsageError, match="give both the same"):
        publisher.stream("door", make_encoder(Identity("pi")))
    publisher.close()
