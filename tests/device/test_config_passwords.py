"""Passwords of a configuration: read from where it says, when settings are made, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.config import read_config
from edge_sdk.daemon.configured import run_settings_of
from edge_sdk.errors import ConfigError
from edge_sdk.publishing import Secret
from tests.device.certificates import Authority
from tests.device.configs import STREAM, write_config


def _config(folder: Path, line: str) -> Path:
    return write_config(folder, f'[mqtt]\nurl = "mqtts://edge@h"\n{line}\n{STREAM}')


def _password(path: Path, warnings: list[str] | None = None) -> str | None:
    settings = run_settings_of(read_config(path), [].append if warnings is None else warnings.append)
    assert settings.mqtt is not None
    secret: Secret | None = settings.mqtt.password
    return secret.reveal() if secret else None


def test_no_password_is_none(tmp_path: Path) -> None:
    assert _password(_config(tmp_path, "")) is None


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path, file, warnings = _config(tmp_path, 'password_file = "pw"'), tmp_path / "pw", list[str]()
    file.write_text("hunter2\nsecond line\n")
    file.chmod(0o600)
    assert _password(path, warnings) == "hunter2"
    assert warnings == []
    for mode in (0o640, 0o604):
        file.chmod(mode)
        assert _password(path, warnings) == "hunter2"
        expected = f"warning: {file}: other users can read the MQTT password (mode {mode:04o}); chmod 600 {file}"
        assert warnings.pop() == expected


def test_a_variable_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _config(tmp_path, 'password_env = "GATE_PASSWORD"')
    monkeypatch.setenv("GATE_PASSWORD", "hunter2")
    assert _password(path) == "hunter2"
    for bad, expected in (("", "has no such variable"), ("hun\udcffter2", "the MQTT password is not UTF-8")):
        monkeypatch.setenv("GATE_PASSWORD", bad)
        with pytest.raises(ConfigError, match=f"mqtt.password_env: .*{expected}") as caught:
            _password(path)
        assert caught.value.__cause__ is None  # it would hold the password


def test_a_credential_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = _config(tmp_path, 'password_credential = "mqtt"'), tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    with pytest.raises(ConfigError, match=r"mqtt.password_credential: \$CREDENTIALS_DIRECTORY has no such file"):
        _password(path)
    (folder / "mqtt").write_text("hunter2")
    assert _password(path) == "hunter2"


@pytest.mark.parametrize("place", ["file", "env", "credential"])
def test_the_password_of_a_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    Authority(tmp_path).issue("pi", password="hunter2")
    (tmp_path / "word").write_text("hunter2\n")
    (tmp_path / "word").chmod(0o600)
    monkeypatch.setenv("KEY_WORD", "hunter2")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    named = {"file": "word", "env": "KEY_WORD", "credential": "word"}[place]
    lines = f'cert_file = "pi.pem"\nkey_file = "pi.key"\nkey_password_{place} = "{named}"'
    settings = run_settings_of(read_config(_config(tmp_path, lines)))
    assert settings.mqtt is not None
    assert (settings.mqtt.cert_file, settings.mqtt.key_file) == (tmp_path / "pi.pem", tmp_path / "pi.key")
    assert settings.mqtt.key_password == Secret("hunter2")
    assert settings.mqtt.password is None
    with pytest.raises(ConfigError, match="the private key is encrypted; name a file with its password"):
        run_settings_of(read_config(_config(tmp_path, 'cert_file = "pi.pem"\nkey_file = "pi.key"')))


@pytest.mark.parametrize(
    ("content", "expected"), [(b"", "has 0 bytes, expected 1 to 65535"), (b"hun\xffter2", "is not UTF-8")]
)
def test_a_file_that_holds_none(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "pw").write_bytes(content)
    with pytest.raises(ConfigError, match=f"pw: the MQTT password {expected}") as caught:
        _password(_config(tmp_path, 'password_file = "pw"'))
    assert "ter2" not in str(caught.value)


def test_each_reading_of_the_settings_reads_the_password_again(tmp_path: Path) -> None:
    config = read_config(_config(tmp_path, 'password_file = "pw"'))  # which need not be there yet
    for word in ("first", "second"):
        (tmp_path / "pw").write_text(word)
        mqtt = run_settings_of(config).mqtt
        assert mqtt is not None
        assert mqtt.password is not None
        assert mqtt.password.reveal() == word
        assert word not in repr(config) + repr(mqtt)


def test_one_password_for_all_cameras_but_those_that_have_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pw").write_text("of all")
    monkeypatch.setenv("OWN", "its own")
    path = write_config(
        tmp_path,
        """
        [defaults]
        bundle = "a.edge"
        password_file = "pw"
        [[pipelines]]
        name = "a"
        source = "rtsp://viewer@h/a"
        [[pipelines]]
        name = "b"
        source = "rtsp://viewer@h/b"
        password_env = "OWN"
        [[pipelines]]
        name = "c"
        source = "rtsp://h/c?at=a@b"  # without a user
        [[pipelines]]
        name = "d"
        source = "0"
        """,
    )
    secrets = [stream.source_password for stream in run_settings_of(read_config(path)).pipelines]
    assert [secret.reveal() if secret else None for secret in secrets] == ["of all", "its own", None, None]


def test_what_is_wrong_with_one_password_can_be_passed_over(tmp_path: Path) -> None:
    path, problems = _config(tmp_path, 'password_file = "none"'), list[ConfigError]()
    settings = run_settings_of(read_config(path), excuse=problems.append)
    assert settings.mqtt is not None
    assert settings.mqtt.password is None
    assert [str(p) for p in problems] == [
        f"mqtt.password_file: {tmp_path / 'none'}: the MQTT password cannot be read: No such file or directory"
    ]
