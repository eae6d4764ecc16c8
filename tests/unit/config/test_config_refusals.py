"""Whatever is wrong with a configuration file: exit code 2, lines that name file and key, no traceback, no secret."""

import random
import re
import time
from pathlib import Path

import pytest

from edge_sdk.config import load
from edge_sdk.config.load import read_config
from edge_sdk.core.errors import ConfigError
from edge_sdk.service.settings import run_settings_of
from tests.support.certificates import Authority
from tests.support.configs import STREAM, write_config
from tests.support.program import Cli

_MQTT = '[mqtt]\nurl = "mqtt://edge@h"\n'
_GATE = 'pipelines[0] ("gate")'
_CAT = '[[events]]\nlabels = ["cat"]\n'


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
    ("[mqqt]\n" + STREAM, "unknown key mqqt; did you mean mqtt?"),
    (_with('url = "x"'), f"{_GATE}: unknown key url; known keys: name, source,"),
    # what is missing
    ("", "pipelines is missing, expected tables [[pipelines]]"),
    ('[[pipelines]]\nsource = "0"\nbundle = "a.edge"\n', "pipelines[0].name is missing, expected the camera's name"),
    ('[[pipelines]]\nname = "gate"\nsource = "0"\n', f"{_GATE}: bundle is missing, expected a NAME.edge folder"),
    # values
    (_with("fps = 0.2\nread_timeout_s = 1"), "the camera is lost after 2 s without one; expected 0.5"),
    (_source("picamera2") + "fps = 0.5\nread_timeout_s = 1\n", "expected 1 or more, or a read_timeout_s above 2"),
    (_with("cpu_share = 0.5\ntune = false"), f"{_GATE}: cpu_share is a limit that tuning keeps"),
    (_source("rtsps://h/x") + f'tls_fingerprint = "{"ab" * 32}"\ntls_verify = false\n', "tls_verify = false: expected"),
    (_source("rtsp://h/x") + 'tls_ca_file = "a.pem"\n', f"{_GATE}: tls_ca_file: it is for rtsps:// and https:// only"),
    # names
    (STREAM.replace("gate", "a/b"), "name: camera name 'a/b' cannot be part of a topic, expected no / + # $"),
    ('[device]\nname = "a#"\n' + STREAM, "device.name: device name 'a#' cannot be part of a topic"),
    (_mqtt('prefix = "edge//v1"'), "mqtt.prefix: topic prefix name has 0 characters"),
    (STREAM + STREAM, "pipelines[0] and pipelines[1] are both named 'gate', expected a name of its own for each"),
    # URLs
    (_url("http://h"), "mqtt.url: the URL cannot be read; expected mqtt[s]://[user@]host[:port]"),
    (_url("mqtt://edge:hunter2@h"), "mqtt.url: there is a password in the URL; leave it out"),
    (_source("rtsp://admin:hunter2@h/x"), f"{_GATE}.source: there is a password in the URL"),
    (_source("rtsp://admin:hunter2@h/x").replace("gate", "rtsp://a:hunter2@h"), "there is a password in the URL"),
    (_source("rtsp:/admin:hunter2@h/x"), f"{_GATE}: source: …@h/x: `//` is missing behind rtsp:"),
    (STREAM.replace('"0"', "2"), f"{_GATE}: source: got a whole number, expected a string: a V4L2 index"),
    (_mqtt('cert_file = "pi.pem"'), "mqtt.cert_file: it is for mqtts:// and wss:// only"),
    (_url("mqtts://h").replace("[[", 'key_file = "pi.key"\n[[', 1), "mqtt.key_file: there is no certificate that it"),
    (_mqtt('key_password_env = "A"'), "mqtt.key_password_env: there is no certificate that it belongs to"),
    (
        _url("mqtts://h").replace("[[", 'cert_file = "c"\nkey_password_env = "hunter2 x"\n[[', 1),
        "expected the name of a variable: ",
    ),
    (
        _url("mqtts://h").replace("[[", 'cert_file = "c"\nkey_password_env = "A"\nkey_password_file = "p"\n[[', 1),
        "mqtt.key_password_file and key_password_env are both there, expected one of them",
    ),
    ('[commands]\nallow = ["pause"]\n' + STREAM, "commands: there is no broker, expected [mqtt] with the url of one"),
    ('[home_assistant]\nprefix = "a/b"\n' + _mqtt(""), "home_assistant.prefix: topic prefix name 'a/b' cannot be part"),
    # passwords
    (_mqtt('password = "hunter2"'), "mqtt.password: a password does not stand in this file"),
    (_with('password = "hunter2"'), f"{_GATE}.password: a password does not stand in this file"),
    (_mqtt('password_env = "hunter2!"'), "mqtt.password_env: expected the name of a variable"),
    (_mqtt('password_credential = "../hunter2"'), "mqtt.password_credential: expected the name of a systemd credent"),
    (_mqtt('password_credential = "hunter2"'), "mqtt.password_credential: $CREDENTIALS_DIRECTORY is not set"),
    (_mqtt('password_file = "nowhere"'), "nowhere: the MQTT password cannot be read: No such file"),
    (_url("mqtt://h").replace("[[", 'password_env = "A"\n[[', 1), "mqtt.url: there is an MQTT password but no user"),
    (_with('password_env = "A"'), f"{_GATE}: password_env: source names no user, expected a URL such as rtsp://USER"),
    ("[defaults]\ncpu_share = 0.5\n" + _with("tune = false"), "cpu_share is a limit that tuning keeps"),
    # units
    (_with("latency_ms = 0.2"), "latency_ms is 0.2, expected 1 millisecond or more"),
    (_with("cpu_share = 50"), "cpu_share is 50, expected 4 cores or less, which this machine has; 0.5 is half a core"),
    # events, and how messages travel
    (STREAM + f'[[events]]\nlabels = ["{"x" * 101}"]\n', "can be no event's, expected 1 to 100 printable characters"),
    (STREAM + _CAT + 'cameras = ["gat"]\n', "'gat' is no pipeline's name; did you mean 'gate'?"),
    (STREAM + _CAT + _CAT + 'cameras = ["gate"]\n', "events[0] and events[1] are both about 'cat' on 'gate'"),
    ("[publish.results]\nqos = 1\n" + STREAM, "publish is of what goes to a broker, and none is named"),
    (_mqtt("[publish.events]\nqos = 0"), "publish.events.qos: 0, expected 1"),
    (_mqtt('[publish.snapshots]\non = "event"'), "there are no [[events]]; expected some"),
    (_mqtt('[publish.snapshots]\non = "interval"'), "publish.snapshots: interval_s is missing"),
]


@pytest.mark.parametrize(("text", "expected"), _BAD, ids=range(len(_BAD)))
def test_each_mistake_is_one_line(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.delenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", raising=False)
    monkeypatch.setattr(load, "_CORES", 4)
    path = write_config(tmp_path, text)
    out, err = cli(2, "run", "--config", path)
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
        # What a newer format has is not complained about.
        ("version = 2\nnew = 3\n", "version is 2, expected version = 1 at the top, above the first [table]; a newer"),
    ],
)
def test_versions(tmp_path: Path, cli: Cli, version: str, expected: str) -> None:
    path = write_config(tmp_path, version=version)
    assert cli(2, "run", "--config", path).err.startswith(f"edge-sdk: {path}: {expected}")


def test_all_wrong_values_are_said_at_once_and_then_all_that_contradict_each_other(tmp_path: Path) -> None:
    path = write_config(
        tmp_path,
        """
        mqtt = { url = "mqtt://h", qos = 3 }
        commands.allow = ["pauze", "pause", "all"]
        pipelines = [{ name = "gate", source = "0", bundle = "a.edge" }]
        events = [{ labels = ["cat"], confidence = 60 }]
        publish.snapshots = { on = "interval", interval_s = "x" }
        """,
    )
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    said = [line.removeprefix(f"{path}: ").split(";")[0] for line in str(caught.value).splitlines()]
    allowed = "expected 'pause', 'reload', 'report_state', 'set_rate', 'set_threshold' or 'snapshot'"
    assert said == [
        "mqtt.qos: 3, expected 0 or 1",
        f"commands.allow[0]: 'pauze', {allowed}",
        f"commands.allow[2]: 'all', {allowed}",
        "events[0].confidence is 60, expected 1 or less",
        "publish.snapshots.interval_s: got a string, expected a number of seconds",  # and it is not missing
    ]
    text = '[mqtt]\nurl = "mqtt://h/x"\n[publish.snapshots]\non = "event"\n' + STREAM
    with pytest.raises(ConfigError) as caught:
        read_config(write_config(tmp_path, text))
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == ["mqtt.url", "publish.snapshots.on"]


def test_of_thousands_of_problems_the_first_twenty_are_said_at_once(tmp_path: Path) -> None:
    wrong = ", ".join(f'"command_{number}"' for number in range(20_000))
    text = f'[mqtt]\nurl = "mqtt://h"\n[commands]\nallow = [{wrong}]\n[[pipelines]]\nname = "a"\nsource = "0"\n'
    path = write_config(tmp_path, text)
    began_s = time.process_time()
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert time.process_time() - began_s < 3  # it took 40 s
    *said, last = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in said] == [f" commands.allow[{number}]" for number in range(20)]
    assert last == f"{path}: there are more problems than these 20; correct these first"


_GOOD = re.findall(
    r"^```toml\n(.*?)^```",
    (Path(__file__).parents[3] / "docs" / "config.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)[1]
_VALUES = (
    *("3", "-1", "nan", "true", '"x"', '""', '"a\\nb"', '"200 ms"', "[]", "[1]", "[[1]]", "{a=1}", "[{a=1}]"),
    *("2026-01-01", '"mqtt://e:hunter2@h"', '"rtsp://e:hun/ter2@h"'),
)
_PIECES = (
    *('"', "'''", "[", "]", "[[", "=", "\n", "#", ".", "{}", "inf", "\\u0000", "\u2028", "é", "a.b.c=1\n"),
    *('password = "hunter2"\n', 'password_env = "hunter2"\n', '"rtsp://a:hunter2@h/x"', '"a\\nb" = 1\n'),
)

_COUNT = 120  # files


def _damaged(text: str, chance: random.Random) -> str:
    """Give one line another value, and put a piece in somewhere."""
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    lines[at] = re.sub("=.*", lambda _: f"= {chance.choice(_VALUES)}", lines[at])
    text = "\n".join(lines)
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(["", *_PIECES]) + text[at:]


def _refusal(path: Path) -> str | None:
    """What is said of it; None where it is taken."""
    try:
        settings = run_settings_of(read_config(path))
    except ConfigError as cause:
        return str(cause)
    assert "hunter2" not in repr(settings)
    return None


def test_nothing_that_is_written_there_brings_more_than_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for name in ("mqtt.password", "gate.password", "pi.key.password"):
        (tmp_path / name).write_text("hunter2")
    Authority(tmp_path).issue("pi", password="hunter2")
    refused = 0
    for seed in range(_COUNT):
        chance, text = random.Random(seed), _GOOD
        for _ in range(chance.randint(1, 2)):
            text = _damaged(text, chance)
        path.write_text(text, encoding="utf-8")
        said = _refusal(path)
        if said is None:
            continue
        refused += 1
        assert "ter2" not in said, seed
        assert all(line.isprintable() for line in said.split("\n")), seed
        assert all(line.startswith((str(tmp_path), "mqtt.", "pipelines[")) for line in said.split("\n")), seed
    assert _COUNT / 2 < refused < _COUNT
