"""Which broker: URLs, names, secrets, and this device's certificate and key."""

import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge_sdk.core.errors import UsageError
from edge_sdk.messages.schema import Topics, check_name, default_device
from edge_sdk.publishing.publisher import MqttPublisher
from edge_sdk.publishing.settings import MqttSettings, Secret, read_password
from edge_sdk.publishing.tls import ExpiredError, check_authorities, check_credentials, own_expiry, valid_until
from tests.support.certificates import Authority
from tests.support.logs import refusal
from tests.support.results import IDENTITY

WORD = "hunter2"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "username"),
    [
        ("mqtts://broker.example", "broker.example", 8883, True, None),
        ("MQTTS://Broker.Example:1", "broker.example", 1, True, None),
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
        (f"mqtt://camera:{WORD}/x@broker", "goes on after the host"),
        ("mqtts://berlin/pi-01@broker:8883", "the user SITE/DEVICE is SITE%2FDEVICE@"),
        (f"mqtt://camera:[{WORD}\n@broker", "cannot be read"),
        ("broker:1883", "cannot be read"),
        ("mqtt://a..b", "names no host"),
        ("mqtt://broker:0", "port is not a number"),
        ("mqtt://broker?qos=1", "goes on after the host"),
    ],
)
def test_urls_that_are_refused_without_repeating_them(url: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        MqttSettings.parse(url)
    message = str(caught.value)
    assert (expected in message, "\n" in message, WORD in message) == (True, False, False), message
    assert caught.value.__cause__ is None


def test_secrets_do_not_show() -> None:
    settings = MqttSettings.parse("mqtt://camera@broker", password=Secret(WORD))
    assert WORD not in f"{settings!r} {settings} {settings.password!r} {settings.password}"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"site": ""}, "site name has 0 characters"),
        ({"device": "#"}, "device name '#'"),
        ({"device": "\udcff"}, r"device name '\\udcff'"),
        ({"prefix": "edge//v1"}, "topic prefix name has 0 characters"),
        ({"qos": 2}, "qos: 2, expected 0 or 1"),
        ({"password": Secret("x")}, "password but no user"),
        ({"ca_file": Path("ca.pem")}, "mqtts:// and wss:// only"),
    ],
)
def test_other_settings_that_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        MqttSettings.parse("mqtt://broker", **changes)


def test_the_first_line_of_a_password_file_is_the_password(tmp_path: Path) -> None:
    for content in (b"hunter2", b"hunter2\r\nsecond line\n"):
        (tmp_path / "password").write_bytes(content)
        assert read_password(tmp_path / "password").reveal() == WORD


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\nx", "has 0 bytes"), (b"\xff", "not UTF-8"), (b"x" * 70000, "expected 1 to 65535 in the first line")],
)
def test_password_files_that_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(UsageError, match=f"password: the MQTT password .*{expected}"):
        read_password(tmp_path / "password")
    with pytest.raises(UsageError, match="none: the source's password cannot be read: No such file"):
        read_password(tmp_path / "none", "the source's password")


def test_names_that_a_topic_can_have_and_what_a_host_s_name_becomes(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimpleNamespace(nodename="")
    monkeypatch.setattr("os.uname", lambda: host)
    for host.nodename in ("Front door", "a.b_c-d", "Tür", "x" * 100):
        check_name("camera", host.nodename)
        assert default_device() == host.nodename
    for host.nodename in ("", "x" * 101, "a/b", "+", "a#", "$SYS", "a\0", "a\x7f", "\ud800", "\u2028", " a "):
        with pytest.raises(UsageError, match="camera name"):
            Topics("p", "s", "d").of("result", host.nodename)
        check_name("camera", default_device())


def test_a_ca_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    for name, said in (("ca.pem", "not a PEM file"), ("none.pem", "certificates cannot be read: No such file")):
        settings = MqttSettings.parse("mqtts://broker", ca_file=tmp_path / name, device="pi")
        with pytest.raises(UsageError, match=said):
            MqttPublisher(settings, IDENTITY)


def _other_key(folder: Path) -> bytes:
    (folder / "other").mkdir()
    return Authority(folder / "other").issue("other").key_file.read_bytes()


def _settings(cert_file: Path, key_file: Path | None = None, password: str | None = None) -> MqttSettings:
    secret = None if password is None else Secret(password)
    return MqttSettings.parse("mqtts://broker", cert_file=cert_file, key_file=key_file, key_password=secret)


def test_an_encrypted_key_needs_its_password_and_a_good_one_has_no_doubts(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("pi", password=WORD)
    settings = _settings(*issued, WORD)
    assert check_credentials(settings) == check_credentials(MqttSettings.parse("mqtts://broker")) == []
    until = valid_until(settings)
    assert until is not None
    assert 364 <= (until - datetime.now(timezone.utc)).days <= 365
    for word, expected in ((None, "is encrypted; name a file with its"), ("swordfish", "its password is wrong")):
        said = refusal(UsageError, check_credentials, _settings(*issued, word))
        assert said.startswith(f"{tmp_path / 'pi.key'}: ")
        assert expected in said
        assert "swordfish" not in said


@pytest.mark.parametrize(
    ("spoil", "file", "expected"),
    [
        (lambda cert, _: cert.unlink(), "pi.pem", "this device's certificate cannot be read: No such file"),
        (lambda _, key: key.unlink(), "pi.key", "the private key cannot be read: No such file"),
        (lambda cert, key: cert.write_bytes(key.read_bytes()), "pi.pem", "not a PEM file of this device's"),
        (lambda cert, key: key.write_bytes(cert.read_bytes()), "pi.key", "not a PEM file of a private key"),
        (lambda cert, key: key.write_bytes(_other_key(cert.parent)), "pi.key", "not the private key of the cert"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, spoil: Callable[[Path, Path], object], file: str, expected: str
) -> None:
    issued = Authority(tmp_path).issue("pi")
    spoil(*issued)
    said = refusal(UsageError, check_credentials, _settings(*issued))
    assert said.startswith(f"{tmp_path / file}: ")
    assert expected in said


def test_a_key_that_everybody_can_read(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("pi")
    issued.key_file.chmod(0o640)
    assert check_credentials(_settings(*issued)) == []  # a group is chosen
    issued.key_file.chmod(0o644)
    [line] = check_credentials(_settings(*issued))
    assert line.startswith(f"{issued.key_file}: every user can read the private key (mode 0644); chmod 600")


@pytest.mark.parametrize(("days", "expected"), [((-1, 31), ""), ((-1, 29), "ends on"), ((1, 90), "is valid from")])
def test_how_long_a_certificate_is_good(tmp_path: Path, days: tuple[float, float], expected: str) -> None:
    lines = check_credentials(_settings(*Authority(tmp_path).issue("pi", days=days)))
    assert (len(lines), expected in "".join(lines)) == (bool(expected), True)


def test_an_expired_certificate_is_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    settings = _settings(*Authority(tmp_path).issue("pi", days=(-10, -1)))
    with pytest.raises(ExpiredError, match=r"this device's certificate expired on .*; renew it"):
        check_credentials(settings)
    assert "expired on" in own_expiry(settings)
    settings.cert_file.unlink()  # type: ignore[union-attr]
    assert "cannot be read" in own_expiry(settings)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([("a", 60)], []),
        ([("a", 20)], ["a ends"]),
        ([("a", -5)], ["a expired"]),
        ([("a", 20), ("b", 20)], ["a ends", "b ends"]),
        ([("a", 20), ("a", 60)], []),  # its successor is there
    ],
)
def test_an_authority_that_ends_soon(tmp_path: Path, ends: list[tuple[str, float]], expected: list[str]) -> None:
    file, one = tmp_path / "ca.pem", tmp_path / "one"
    one.mkdir()
    file.write_bytes(b"".join(Authority(one, name, days=(-100, days)).file.read_bytes() for name, days in ends))
    said = check_authorities(MqttSettings.parse("mqtts://broker", ca_file=file))
    assert re.findall(rf"{tmp_path}/ca.pem: the authority authority (\w+ \w+) on ", said) == expected
