"""Whatever is wrong with a configuration file: exit code 2, lines that name file and key, no traceback, no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.cli.root import run
from edge_sdk.config import reading
from tests.device.configs import STREAM, write_config
from tests.device.rights import as_nobody

_MQTT = '[mqtt]\nurl = "mqtt://edge@h"\n'
_GATE = 'pipelines[0] ("gate")'


def _with(line: str) -> str:
    return f"{STREAM}{line}\n"


def _mqtt(line: str) -> str:
    return f"{_MQTT}{line}\n{STREAM}"


def _url(url: str) -> str:
    return f'[mqtt]\nurl = "{url}"\n{STREAM}'


def _source(source: str) -> str:
    return STREAM.replace('"0"', f'"{source}"')


_BAD = [
    # keys
    ("prot = 1\n" + STREAM, "unknown key prot"),
    ("[mqqt]\n" + STREAM, "unknown key mqqt; did you mean mqtt?"),
    ("[device]\nnam = 'x'\n" + STREAM, "unknown key device.nam; did you mean name?"),
    (STREAM.replace("source", "sorce") + 'source = "0"\n', f"{_GATE}: unknown key sorce; did you mean source?"),
    (_with('url = "x"'), f"{_GATE}: unknown key url; belongs under [mqtt]; known here: name, source,"),
    (_mqtt("fps = 3"), "unknown key mqtt.fps; belongs under [defaults] or under [[pipelines]]"),
    ('[defaults]\nname = "x"\n' + STREAM, "unknown key defaults.name; belongs under [device] or under [[pipelines]]"),
    (_with('"a\\nb" = 1'), f"{_GATE}: unknown key 'a\\nb'"),
    (_with('"a`b" = 1'), f"{_GATE}: unknown key 'a'b'"),
    # what is missing
    ("", "pipelines is missing, expected a table [[pipelines]]"),
    ("pipelines = []\n", "pipelines has 0 entries, expected 1 or more"),
    ('[pipelines]\nname = "gate"\n', "pipelines: got a table, expected a list of tables; write [[pipelines]]"),
    ("pipelines = [3]\n", "pipelines[0]: got a whole number, expected a table"),
    ('[[pipelines]]\nname = "gate"\nbundle = "a.edge"\n', f"{_GATE}: source is missing, expected a V4L2 index"),
    ('[[pipelines]]\nsource = "0"\nbundle = "a.edge"\n', "pipelines[0].name is missing, expected the camera's name"),
    ('[[pipelines]]\nname = "gate"\nsource = "0"\n', f"{_GATE}: bundle is missing, expected a NAME.edge folder"),
    ("[mqtt]\n" + STREAM, "mqtt.url is missing, expected mqtt[s]://[user@]host"),
    # values
    (_with('latency_ms = "200 ms"'), "got a string, expected a number of milliseconds; leave out the unit"),
    (_with('latency_ms = "200"'), "got a string, expected a number of milliseconds; leave out the quotes"),
    (_with("latency_ms = -1"), f"{_GATE}: latency_ms is -1, expected 1 millisecond or more"),
    (_with("latency_ms = 0"), f"{_GATE}: latency_ms is 0, expected 1 millisecond or more"),
    (_with("latency_ms = nan"), f"{_GATE}: latency_ms is nan, expected 1 millisecond or more"),
    (_with("latency_ms = inf"), f"{_GATE}: latency_ms is inf, expected 1000000000 milliseconds or less"),
    (_with("latency_ms = true"), "got true or false, expected a number of milliseconds"),
    (_with("latency_ms = 1" + "0" * 400), f"{_GATE}: latency_ms"),
    (_with("latency_ms = 1" + "0" * 5000), "not valid TOML: Exceeds the limit"),
    (_with("latency_ms = 2026-01-01"), "got a date or a time, expected a number of milliseconds"),
    (_with("fps = [15]"), f"{_GATE}: fps: got a list, expected a number of frames a second"),
    (
        _with("fps = 0.2\nread_timeout_s = 1"),
        f"{_GATE}: fps is 0.2, one frame in 5 s, and a V4L2 camera is lost after 2 s without one; expected 0.5 or more",
    ),
    (
        _source("picamera2") + "fps = 0.5\nread_timeout_s = 1\n",
        f"{_GATE}: fps is 0.5, one frame in 2 s, and by read_timeout_s the camera is lost after 1 s without one; "
        "expected 1 or more, or a read_timeout_s above 2",
    ),
    ("[defaults]\nfps = 0.2\n" + _source("pattern:64x48"), f"{_GATE}: fps is 0.2, expected 1 or more: a pattern"),
    (_with("trial_s = -0.1"), f"{_GATE}: trial_s is -0.1, expected 0 seconds or more"),
    (_with("cpu_share = 0"), f"{_GATE}: cpu_share is 0, expected more than 0 cores"),
    (_with("cpu_share = 0.5\ntune = false"), f"{_GATE}: cpu_share is a limit that tuning keeps"),
    (_with('tune = "yes"'), f"{_GATE}: tune: got a string, expected true or false"),
    (_with("size_wh = [1280]"), f"{_GATE}: size_wh has 1 entry, expected 2, such as [1280, 720]"),
    (_with("size_wh = [1280, 720.5]"), f"{_GATE}: size_wh[1]: got a number, expected a whole number"),
    (_with("size_wh = [1280, 0]"), f"{_GATE}: size_wh[1] is 0, expected 16 or more"),
    (_with('size_wh = "1280x720"'), "got a string, expected a list of 2 whole numbers such as [1280, 720]"),
    (_with('pixel_format = "MJPEG"'), "pixel_format: 'MJPEG', expected MJPG or YUYV; did you mean MJPG?"),
    (_with('transport = "TCP"'), "transport: 'TCP', expected tcp or udp; did you mean tcp?"),
    (_with('variant = ""'), f"{_GATE}: variant has 0 characters, expected 1 or more"),
    (_mqtt("protocol = 5"), "mqtt.protocol: got a whole number, expected 5 or 3.1.1; put it in quotes"),
    (_mqtt("qos = 2"), "mqtt.qos: 2, expected 0 or 1"),
    (_mqtt("qos = true"), "mqtt.qos: got true or false, expected 0 or 1"),
    ('[trust]\nkeys = "a.pub"\n' + STREAM, "trust.keys: got a string, expected a list of strings"),
    ('[trust]\nkeys = [""]\n' + STREAM, "trust.keys[0]: '', expected a path"),
    (STREAM.replace("a.edge", "a\\u0000b"), f"{_GATE}: bundle: 'a\\x00b', expected a NAME.edge folder"),
    # names
    (STREAM.replace("gate", "a/b"), "name: camera name 'a/b' cannot be part of a topic, expected no / + # $"),
    (STREAM.replace("gate", ""), "pipelines[0]: name: camera name has 0 characters, expected 1 to 100"),
    (STREAM.replace("gate", "x" * 101), "pipelines[0]: name: camera name has 101 characters, expected 1 to 100"),
    (STREAM.replace("gate", "a\\nb"), "pipelines[0]: name: camera name 'a\\nb' cannot be part of a topic"),
    ('[device]\nname = "a#"\n' + STREAM, "device.name: device name 'a#' cannot be part of a topic"),
    ('[device]\nsite = ""\n' + STREAM, "device.site: site name has 0 characters"),
    (_mqtt('prefix = "edge//v1"'), "mqtt.prefix: topic prefix name has 0 characters"),
    (STREAM + STREAM, "pipelines[0] and pipelines[1] are both named 'gate', expected a name of its own for each"),
    # URLs
    (_url("http://h"), "mqtt.url: the URL cannot be read; expected mqtt[s]://[user@]host[:port]"),
    (_url("mqtt://h/topic"), "mqtt.url: the URL goes on after the host"),
    (_url("mqtt://"), "mqtt.url: the URL names no host"),
    (_url("mqtt://h:99999"), "mqtt.url: the URL's port is not a number from 1 to 65535"),
    (_url("mqtt://edge:hunter2@h"), "mqtt.url: there is a password in the URL; leave it out"),
    (_url("mqtt://edge:hun/ter2@h"), "mqtt.url: there is a password in the URL; leave it out"),
    (_source("rtsp://admin:hunter2@h/x"), f"{_GATE}.source: there is a password in the URL"),
    (_source("rtsp://admin:hunter2@h/x").replace("gate", "rtsp://a:hunter2@h"), "there is a password in the URL"),
    (_source("http://h:99999/x"), f"{_GATE}: source: http://h:99999/x: no host, or no possible port (1 to 65535)"),
    (_source("ftp://h/x"), f"{_GATE}: source: ftp://h/x: this kind of URL is not supported, expected a V4L2 index"),
    (
        _source("rtsp:/h/x"),
        f"{_GATE}: source: rtsp:/h/x: `//` is missing behind rtsp:, expected rtsp://HOST/PATH",
    ),
    (_source("rtsp:/admin:hunter2@h/x"), f"{_GATE}: source: …@h/x: `//` is missing behind rtsp:"),
    (STREAM.replace('"0"', "0"), f"{_GATE}: source: got a whole number, expected a string: a V4L2 index"),
    (STREAM.replace('"0"', "2"), '; write "2" for camera 2'),
    (_mqtt('ca_file = "ca.pem"'), "mqtt.ca_file: it is for mqtts:// and wss:// only; write mqtts:// in mqtt.url"),
    (_mqtt('cert_file = "pi.pem"'), "mqtt.cert_file: it is for mqtts:// and wss:// only"),
    (_mqtt('key_file = "pi.key"'), "mqtt.key_file: it is for mqtts:// and wss:// only"),
    (
        _url("mqtts://h").replace("[[", 'key_file = "pi.key"\n[[', 1),
        "mqtt.key_file: there is no certificate that it belongs to, expected cert_file beside it",
    ),
    (_mqtt('key_password_env = "A"'), "mqtt.key_password_env: there is no certificate that it belongs to"),
    (
        _url("mqtts://h").replace("[[", 'cert_file = "c"\nkey_password_env = "hunter2 x"\n[[', 1),
        "mqtt.key_password_env: expected the name of a variable: letters, digits and _; not the password",
    ),
    (
        _url("mqtts://h").replace("[[", 'cert_file = "c"\nkey_password_env = "A"\nkey_password_file = "p"\n[[', 1),
        "mqtt.key_password_file and mqtt.key_password_env are both there, expected one of them",
    ),
    (_url("ws://h/a b"), "mqtt.url: the URL cannot be read"),
    (_url("wss://h/a%20b"), "mqtt.url: the URL's path has characters that it may not have"),
    ('[commands]\nallow = ["pause"]\n' + STREAM, "commands: there is no broker, expected [mqtt] with the url of one"),
    ("[home_assistant]\n" + STREAM, "home_assistant: there is no broker, expected [mqtt] with the url of one"),
    ('[commands]\nallow = ["exec"]\n' + _mqtt(""), "commands.allow[0]"),
    ('[commands]\nallow = ["resume"]\n' + _mqtt(""), "write pause, which stands for resume too"),
    ('[home_assistant]\nprefix = "a/b"\n' + _mqtt(""), "home_assistant.prefix: topic prefix name 'a/b' cannot be part"),
    # passwords
    (_mqtt('password = "hunter2"'), "mqtt.password: a password does not stand in this file"),
    (_with('password = "hunter2"'), f"{_GATE}.password: a password does not stand in this file"),
    ('password = "hunter2"\n' + STREAM, "password: a password does not stand in this file"),
    (_mqtt('passwort = "hunter2"'), "unknown key mqtt.passwort; did you mean password_"),
    (_mqtt('password_file = "a"\npassword_env = "B"'), "mqtt.password_file and mqtt.password_env are both there"),
    (_mqtt('password_env = "hunter2!"'), "mqtt.password_env: expected the name of a variable"),
    (_mqtt('password_env = "hunter2"'), "mqtt.password_env: the environment has no such variable"),
    (_mqtt('password_credential = "../hunter2"'), "mqtt.password_credential: expected the name of a systemd credent"),
    (_mqtt('password_credential = "hunter2"'), "mqtt.password_credential: $CREDENTIALS_DIRECTORY is not set"),
    (_mqtt('password_file = "nowhere"'), "nowhere: the MQTT password cannot be read: No such file"),
    (_url("mqtt://h").replace("[[", 'password_env = "A"\n[[', 1), "mqtt.url: there is an MQTT password but no user"),
    (_with('password_env = "A"'), f"{_GATE}: password_env: source names no user, expected a URL such as rtsp://USER"),
    ('[defaults]\npassword_env = "a b"\n' + STREAM, "defaults.password_env: expected the name of a variable"),
    # no TOML
    ("[device\n" + STREAM, "not valid TOML: Expected ']' at the end of a table declaration (at line 2, column 8)"),
    (_with("transport = tcp"), "not valid TOML: Invalid value (at line 6, column 13); strings need quotes"),
    (_with("a = " + "[" * 100_000), "not valid TOML"),
    (_with("fps = 1\nfps = 2"), "not valid TOML: Cannot overwrite a value (at line 7"),
]


@pytest.mark.parametrize(("text", "expected"), _BAD, ids=range(len(_BAD)))
def test_each_mistake_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    expected: str,
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.delenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", raising=False)
    path = write_config(tmp_path, text)
    assert run(["run", "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert expected in lines[0]
    assert all(line.startswith(f"edge-sdk: {path}: ") or "nowhere" in line or "mqtt." in line for line in lines)
    assert len(lines) == (3 if "rtsp://a:hunter2@h" in text else 1)  # as a name it is none, either
    assert out == ""
    assert "Traceback" not in err
    for secret in ("hunter2", "ter2", "hun/"):
        assert secret not in err


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("", "version is missing, expected version = 1 at the top, above the first [table]"),
        ("[device]\nversion = 1\n", "version is missing, expected version = 1 at the top"),
        ("version = 2\n", "version is 2, expected 1; update edge-sdk on this device"),
        ("version = 0\n", "version is no number of a format that there is, expected version = 1"),
        ("version = true\n", "version is no number of a format"),
        ('version = "1"\n', "version is no number of a format"),
        ("version = 1.0\n", "version is no number of a format"),
        # What a newer format has is not complained about.
        ("version = 2\nnew = 3\n", "version is 2, expected 1; update edge-sdk on this device"),
    ],
)
def test_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, expected: str) -> None:
    path = write_config(tmp_path, version=version)
    assert run(["run", "--config", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"edge-sdk: {path}: {expected}")


def test_the_usual_place_is_not_told_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = tmp_path / "usual.toml"
    monkeypatch.setattr(reading, "DEFAULT_PATH", usual)
    assert run(["run", "--check", "--config", str(usual)]) == 2
    assert capsys.readouterr().err == f"edge-sdk: {usual}: no such file; write one, see docs/config.md\n"


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utf16, latin, huge = tmp_path / "utf16", tmp_path / "latin", tmp_path / "huge"
    utf16.write_text("version = 1\n", encoding="utf-16")
    latin.write_bytes(b"version = 1\n[device]\nname = '\xe9'\n")
    huge.write_bytes(b"#" * (5 << 20))
    for path, expected in (
        (
            tmp_path / "none.toml",
            "no such file; write one, see docs/config.md (its usual place is /etc/edge-sdk/config",
        ),
        (tmp_path, "cannot be read: it is a folder, expected a TOML file"),
        (utf16, "cannot be read: line 1 is not UTF-8; save it as UTF-8"),
        (latin, "cannot be read: line 3 is not UTF-8; save it as UTF-8"),
        (huge, "cannot be read: more than 4 MiB, expected a TOML file"),
        (Path("/dev/zero"), "cannot be read: more than 4 MiB, expected a TOML file"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
    ):
        assert run(["run", "--config", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"edge-sdk: {path}: {expected}")
        assert err.count("\n") == 1


@pytest.mark.parametrize("closed", ["config.toml", "."])
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], closed: str) -> None:
    path = write_config(tmp_path)
    (tmp_path / closed).chmod(0)
    with as_nobody():
        assert run(["run", "--config", str(path)]) == 2
    (tmp_path / closed).chmod(0o700)
    assert capsys.readouterr().err == f"edge-sdk: {path}: cannot be read: Permission denied\n"


def test_all_mistakes_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'prot = 1\n[mqtt]\nqos = 7\n[defaults]\nfps = "15"\n' + STREAM.replace("source", "sorce") + "fps = 0\n"
    path = write_config(tmp_path, text)
    assert run(["run", "--config", str(path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"edge-sdk: {path}: {line}"
        for line in (
            "unknown key prot; known keys: version, pipelines, device, mqtt, outbox, trust, commands, home_assistant, "
            "defaults, events, publish",
            "mqtt.qos: 7, expected 0 or 1",
            "mqtt.url is missing, expected mqtt[s]://[user@]host[:port] or ws[s]://[user@]host[:port][/path]",
            "defaults.fps: got a string, expected a number of frames a second; leave out the quotes",
            f"{_GATE}: unknown key sorce; did you mean source?",
            f"{_GATE}: fps is 0, expected 0.1 frames a second or more",
            f"{_GATE}: source is missing, expected a V4L2 index or /dev path, an rtsp(s):// or http(s):// URL, "
            "picamera2, video, images, pattern",
        )
    ]
