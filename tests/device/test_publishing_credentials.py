"""This device's certificate and key: what is looked at before anybody connects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from edge_sdk.errors import UsageError
from edge_sdk.publishing import ExpiredError, MqttSettings, Secret, check_credentials, valid_until
from edge_sdk.publishing.credentials import expiry_line, own_expiry
from edge_sdk.publishing.tls import check_authorities
from tests.device.certificates import Authority

WORD = "hunter2"
Spoil: TypeAlias = Callable[[Path, Path], object]


def _settings(cert_file: Path, key_file: Path | None = None, password: str | None = None) -> MqttSettings:
    secret = None if password is None else Secret(password)
    return MqttSettings.parse("mqtts://broker", cert_file=cert_file, key_file=key_file, key_password=secret)


def test_a_good_certificate_has_no_doubts(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("pi")
    settings = _settings(*issued)
    assert check_credentials(settings) == []
    until = valid_until(settings)
    assert until is not None
    assert timedelta(days=364) < until - datetime.now(timezone.utc) < timedelta(days=366)
    assert check_credentials(MqttSettings.parse("mqtts://broker")) == []


def test_certificate_and_key_in_one_file(tmp_path: Path) -> None:
    cert_file, key_file = Authority(tmp_path).issue("pi")
    both = tmp_path / "both.pem"
    both.write_bytes(key_file.read_bytes() + cert_file.read_bytes())
    both.chmod(0o600)
    assert check_credentials(_settings(both)) == []


@pytest.mark.parametrize("password", [WORD, None, "swordfish"])
def test_an_encrypted_key(tmp_path: Path, password: str | None) -> None:
    settings = _settings(*Authority(tmp_path).issue("pi", password=WORD), password)
    if password == WORD:
        assert check_credentials(settings) == []
        return
    with pytest.raises(UsageError) as caught:
        check_credentials(settings)
    expected = "its password is wrong" if password else "is encrypted; name a file with its password"
    assert str(caught.value).startswith(f"{tmp_path / 'pi.key'}: ")
    assert expected in str(caught.value)
    assert "swordfish" not in f"{settings!r} {caught.value}"


def test_a_password_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    assert check_credentials(_settings(*Authority(tmp_path).issue("pi"), WORD)) == []


@pytest.mark.parametrize(
    ("spoil", "file", "expected"),
    [
        (lambda cert, _: cert.unlink(), "pi.pem", "this device's certificate cannot be read: No such file"),
        (lambda _, key: key.unlink(), "pi.key", "the private key cannot be read: No such file"),
        (lambda cert, _: (cert.unlink(), cert.mkdir()), "pi.pem", "cannot be read: Is a directory"),
        (lambda cert, _: cert.write_bytes(b""), "pi.pem", "not a PEM file of this device's certificate"),
        (lambda cert, _: cert.write_bytes(b"\xff" * 100), "pi.pem", "not a PEM file of this device's certificate"),
        (lambda cert, key: cert.write_bytes(key.read_bytes()), "pi.pem", "not a PEM file of this device's"),
        (lambda cert, key: key.write_bytes(cert.read_bytes()), "pi.key", "not a PEM file of a private key"),
        (lambda _, key: key.write_bytes(key.read_bytes()[:80]), "pi.key", "not a PEM file of a private key"),
        (lambda _, key: key.write_text("ENCRYPTED"), "pi.key", "the private key is encrypted"),
    ],
)
def test_files_that_cannot_be_used_are_named_in_one_line(
    tmp_path: Path, spoil: Spoil, file: str, expected: str
) -> None:
    issued = Authority(tmp_path).issue("pi")
    spoil(*issued)
    with pytest.raises(UsageError) as caught:
        check_credentials(_settings(*issued))
    assert str(caught.value).startswith(f"{tmp_path / file}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(UsageError, match=f"{other.key_file}: not the private key of the certificate in"):
        check_credentials(_settings(one.cert_file, other.key_file))


def test_a_key_that_everybody_can_read(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("pi")
    issued.key_file.chmod(0o640)
    assert check_credentials(_settings(*issued)) == []  # a group is chosen
    issued.key_file.chmod(0o644)
    [line] = check_credentials(_settings(*issued))
    assert line == (f"{issued.key_file}: every user can read the private key (mode 0644); chmod 600 {issued.key_file}")


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ((-1, 31), None),
        ((-1, 29), "ends on"),
        ((-1, 1), "in 1 day;"),
        ((1, 90), "is valid from"),
    ],
)
def test_how_long_a_certificate_is_good(tmp_path: Path, days: tuple[float, float], expected: str | None) -> None:
    lines = check_credentials(_settings(*Authority(tmp_path).issue("pi", days=days)))
    assert len(lines) == (expected is not None)
    assert all(expected is not None and expected in line for line in lines)


def test_an_expired_certificate_is_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    settings = _settings(*Authority(tmp_path).issue("pi", days=(-10, -1)))
    with pytest.raises(ExpiredError, match=r"this device's certificate expired on .*; renew it"):
        check_credentials(settings)
    assert "expired on" in own_expiry(settings, datetime.now(timezone.utc))
    settings.cert_file.unlink()  # type: ignore[union-attr]
    assert "cannot be read" in own_expiry(settings, datetime.now(timezone.utc))


def test_the_warning_begins_thirty_days_before_the_end() -> None:
    ends = datetime(2027, 3, 31, 12, tzinfo=timezone.utc)
    said: dict[Any, str] = {
        hours: expiry_line("it", ends, ends - timedelta(hours=hours), "renew it") for hours in (721, 720, 25, 1, 0, -1)
    }
    assert said == {
        721: "",
        720: "it ends on 2027-03-31, in 30 days; renew it",
        25: "it ends on 2027-03-31, in 1 day; renew it",
        1: "it ends on 2027-03-31, in 0 days; renew it",
        0: "it expired on 2027-03-31; renew it",
        -1: "it expired on 2027-03-31; renew it",
    }


def _authorities(folder: Path, *ends: tuple[str, float]) -> str:
    """What is said of a file with authorities of these names that end in so many days."""
    file, one = folder / "ca.pem", folder / "one"
    one.mkdir()
    file.write_bytes(b"".join(Authority(one, name, days=(-100, days)).file.read_bytes() for name, days in ends))
    return check_authorities(MqttSettings.parse("mqtts://broker", ca_file=file), datetime.now(timezone.utc))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([("a", 60)], []),
        ([("a", 20)], ["a ends"]),
        ([("a", -5)], ["a expired"]),
        ([("a", 20), ("b", 60)], ["a ends"]),
        ([("a", 20), ("b", 20)], ["a ends", "b ends"]),
        ([("a", 20), ("a", 60)], []),  # its successor is there
        ([("a", 60), ("a", -5)], []),
    ],
)
def test_an_authority_that_ends_soon_is_said_unless_its_successor_is_there(
    tmp_path: Path, ends: list[tuple[str, float]], expected: list[str]
) -> None:
    lines = [line for line in _authorities(tmp_path, *ends).split("; ") if not line.startswith("write")]
    assert [line.split(" on ")[0] for line in lines if line] == [
        f"{tmp_path}/ca.pem: the authority authority {what}" for what in expected
    ]


def test_the_systems_authorities_are_the_systems_matter() -> None:
    assert check_authorities(MqttSettings.parse("mqtts://broker"), datetime.now(timezone.utc)) == ""
