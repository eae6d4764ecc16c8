"""The configuration file: how it becomes what a daemon runs, and when `edge-sdk run` reads it."""

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest

from edge_sdk.cli.run import command, config_file
from edge_sdk.config import load, schema
from edge_sdk.config.load import read_config
from edge_sdk.core.errors import ConfigError, UsageError
from edge_sdk.core.toml import read_document
from edge_sdk.events.rules import EventRule, SnapshotSettings
from edge_sdk.messages.schema import EVENTS, SNAPSHOTS, Channel, default_device
from edge_sdk.outbox.event import OutboxConfig
from edge_sdk.publishing.discovery import HomeAssistantSettings
from edge_sdk.publishing.settings import Secret
from edge_sdk.service.settings import PipelineSettings, RunSettings, run_settings_of
from edge_sdk.sources.location import SourceOptions
from tests.support.certificates import Authority
from tests.support.configs import PIPELINE, write_config
from tests.support.logs import SAID, refusal
from tests.support.program import Cli


def _settings(folder: Path, text: str = PIPELINE) -> Any:
    return run_settings_of(read_config(write_config(folder, text)))


def test_keys_that_are_left_out_have_the_default_values(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    pipeline = PipelineSettings(camera="gate", source="0", bundle=tmp_path / "a.edge")
    assert settings == RunSettings(device=default_device(), pipelines=(pipeline,), waits=True)


def test_what_is_said_becomes_a_setting(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hunter2\n")
    settings = _settings(
        tmp_path,
        """
        device = { name = "pi", site = "home" }
        mqtt = { url = "mqtts://edge@broker:1234", password_file = "pw", ca_file = "ca.pem", prefix = "x/y", qos = 1 }
        trust = { keys = ["a.pub", "/b.pub"], allow_older = true }
        [[pipelines]]
        name = "gate"
        source = "rtsp://viewer@h/x"
        password_file = "pw"
        size_wh = [640, 480]
        bundle = "/b.edge"
        latency_ms = 200
        variant = "int8"
        """,
    )
    mqtt = settings.mqtt
    assert (settings.device, mqtt.host, mqtt.port, mqtt.tls, mqtt.username) == ("pi", "broker", 1234, True, "edge")
    assert (mqtt.ca_file, mqtt.qos, mqtt.password) == (tmp_path / "ca.pem", 1, Secret("hunter2"))
    assert mqtt.topics.of("result", "gate") == "x/y/home/pi/result/gate"
    pipeline = PipelineSettings(
        camera="gate", source="rtsp://viewer@h/x", source_password=Secret("hunter2"), password_file=tmp_path / "pw",
        size_wh=(640, 480), bundle=Path("/b.edge"), trusted_keys=(tmp_path / "a.pub", Path("/b.pub")),
        allow_older=True, latency_ms=200, variant="int8",
    )  # fmt: skip
    assert settings.pipelines == (pipeline,)
    assert "hunter2" not in repr(settings)


def test_defaults_are_for_pipelines_that_say_nothing_else(tmp_path: Path) -> None:
    settings = _settings(
        tmp_path,
        """
        defaults = { bundle = "d.edge", size_wh = [640, 480], tune = false, fps = 5 }
        pipelines = [
          { name = "a", source = "0" },
          { name = "A", source = "1", bundle = "a.edge", size_wh = [320, 240], tune = true },  # another topic
        ]
        """,
    )
    assert [(each.bundle, each.tune, each.source_options) for each in settings.pipelines] == [
        (tmp_path / "d.edge", False, SourceOptions(size_wh=(640, 480), fps=5)),
        (tmp_path / "a.edge", True, SourceOptions(size_wh=(320, 240), fps=5)),
    ]


def test_slow_rates_that_a_source_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "6")
    for source, more in (("/dev/video0", ""), ("picamera2", "read_timeout_s = 6\n"), ("rtsp://h/x", "")):
        read_config(write_config(tmp_path, PIPELINE.replace('"0"', f'"{source}"') + f"fps = 0.2\n{more}"))


def test_a_pipeline_says_alone_how_its_certificate_is_verified(tmp_path: Path) -> None:
    defaults = '[defaults]\nbundle = "a.edge"\ntls_ca_file = "ca.pem"\n'
    own = {"a": "", "b": f'tls_fingerprint = "{"ab" * 32}"', "c": "tls_verify = false"}
    tables = [f'[[pipelines]]\nname = "{name}"\nsource = "rtsps://h/{name}"\n{line}\n' for name, line in own.items()]
    config = read_config(write_config(tmp_path, defaults + "".join(tables)))
    assert [pipeline.source_options for pipeline in run_settings_of(config).pipelines] == [
        SourceOptions(tls_ca_file=tmp_path / "ca.pem"),
        SourceOptions(tls_fingerprint="ab" * 32),
        SourceOptions(tls_verify=False),
    ]
    assert [line.partition(": who")[0] for line in SAID] == ['warning: pipelines[2] ("c"): tls_verify is false']


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    for source, expected in (("0", "0"), ("rtsp://h/x", "rtsp://h/x"), ("clips/a.mp4", f"{tmp_path}/clips/a.mp4")):
        assert _settings(tmp_path, PIPELINE.replace('"0"', f'"{source}"')).pipelines[0].source == expected


_MQTT = '[mqtt]\nurl = "mqtt://broker"\nqos = 1\n'
_CAT = '[[events]]\nlabels = ["cat"]\n'


def test_rules_are_of_the_cameras_that_they_name(tmp_path: Path) -> None:
    dog = '[[events]]\nlabels = ["dog"]\n'
    one, other = 'cameras = ["yard"]\nconfidence = 0.7\ncooldown_s = 5\n', 'cameras = ["gate"]\n'
    rules = _CAT + dog + one + dog + other
    gate, yard = _settings(tmp_path, PIPELINE + PIPELINE.replace("gate", "yard") + rules).pipelines
    cat = EventRule(labels=("cat",))
    assert gate.events == (cat, EventRule(labels=("dog",)))
    assert yard.events == (cat, EventRule(labels=("dog",), confidence=0.7, cooldown_s=5.0))


def test_each_kind_travels_as_its_table_says_or_as_documented(tmp_path: Path) -> None:
    said = """
        [publish]
        results = { qos = 0, expiry_s = 5, max_per_s = 2 }
        events = { qos = 1, expiry_s = 7, max_per_s = 3 }
        snapshots = { on = "interval", interval_s = 60, width = 320, quality = 50, qos = 1, expiry_s = 9 }
        """
    result, event = Channel(qos=0, expiry_s=5, max_per_s=2.0), Channel(qos=1, expiry_s=7, max_per_s=3.0)
    for text, channels, pictures in (
        ("", {"result": Channel(qos=1), "event": EVENTS, "snapshot": SNAPSHOTS}, None),
        (
            said,
            {"result": result, "event": event, "snapshot": Channel(qos=1, expiry_s=9)},
            SnapshotSettings(on="interval", interval_s=60.0, width=320, quality=50),
        ),
    ):
        settings = _settings(tmp_path, _MQTT + text + PIPELINE)
        assert (settings.mqtt.channels, settings.pipelines[0].snapshots) == (channels, pictures)


def _config(folder: Path, line: str) -> Path:
    return write_config(folder, f'[mqtt]\nurl = "mqtts://edge@h"\n{line}\n{PIPELINE}')


def _password(config: schema.Config) -> str:
    """Return the password that the settings now have; the configuration itself was read before."""
    mqtt: Any = run_settings_of(config).mqtt
    password: str = mqtt.password.reveal()
    assert password not in repr(config) + repr(mqtt)
    return password


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    config, file = read_config(_config(tmp_path, 'password_file = "pw"')), tmp_path / "pw"  # the file is written later
    file.write_text("hunter2\nsecond line\n")
    file.chmod(0o600)
    assert (_password(config), SAID) == ("hunter2", [])
    for mode in (0o640, 0o604):
        file.write_text(f"hunter{mode}")
        file.chmod(mode)
        assert _password(config) == f"hunter{mode}"
        assert f"other users can read the MQTT password (mode {mode:04o}); chmod 600 {file}" in SAID.pop()


def test_a_variable_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(_config(tmp_path, 'password_env = "GATE_PASSWORD"'))
    monkeypatch.setenv("GATE_PASSWORD", "hunter2")
    assert _password(config) == "hunter2"
    for bad, expected in (("", "has no such variable"), ("hun\udcffter2", "the MQTT password is not UTF-8")):
        monkeypatch.setenv("GATE_PASSWORD", bad)
        with pytest.raises(ConfigError, match=f"mqtt.password_env: .*{expected}") as caught:
            _password(config)
        assert caught.value.__cause__ is None  # it would hold the password


def test_a_credential_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = read_config(_config(tmp_path, 'password_credential = "mqtt"')), tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    said = refusal(ConfigError, _password, config)
    assert "mqtt.password_credential: $CREDENTIALS_DIRECTORY has no such file" in said
    (folder / "mqtt").write_text("hunter2")
    assert _password(config) == "hunter2"


def test_the_password_of_a_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority(tmp_path).issue("pi", password="hunter2")
    (tmp_path / "word").write_text("hunter2\n")
    (tmp_path / "word").chmod(0o600)
    monkeypatch.setenv("KEY_WORD", "hunter2")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for place, named in (("file", "word"), ("env", "KEY_WORD"), ("credential", "word")):
        lines = f'cert_file = "pi.pem"\nkey_file = "pi.key"\nkey_password_{place} = "{named}"'
        mqtt: Any = run_settings_of(read_config(_config(tmp_path, lines))).mqtt
        assert (mqtt.cert_file, mqtt.key_file) == (tmp_path / "pi.pem", tmp_path / "pi.key")
        assert (mqtt.key_password, mqtt.password) == (Secret("hunter2"), None)
    config = read_config(_config(tmp_path, 'cert_file = "pi.pem"\nkey_file = "pi.key"'))
    said = refusal(ConfigError, run_settings_of, config)
    assert "the private key is encrypted; name a file with its password" in said


def test_one_password_for_all_cameras_without_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pw").write_text("of all")
    monkeypatch.setenv("OWN", "its own")
    settings = _settings(
        tmp_path,
        """
        defaults = { bundle = "a.edge", password_file = "pw" }
        pipelines = [
          { name = "a", source = "rtsp://viewer@h/a" },
          { name = "b", source = "rtsp://viewer@h/b", password_env = "OWN" },
          { name = "c", source = "rtsp://h/c?at=a@b" },  # without a user
          { name = "d", source = "0" },
        ]
        """,
    )
    secrets = [pipeline.source_password for pipeline in settings.pipelines]
    assert [secret.reveal() if secret else None for secret in secrets] == ["of all", "its own", None, None]


def _context(*arguments: str) -> click.Context:
    return command.make_context("run", list(arguments))


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device's usual place for a configuration, where there is none yet."""
    monkeypatch.setattr(load, "DEFAULT_PATH", tmp_path / "config.toml")
    return load.DEFAULT_PATH


def test_a_run_goes_by_its_flags_or_by_a_file_and_without_either_by_the_usual_one(usual: Path) -> None:
    bare = ("--duration", "3", "--json", "-q")
    said = refusal(UsageError, config_file, _context(*bare))
    assert re.match(f"nothing to run; expected .*there is no {usual}", said)
    usual.write_text("version = 1\n[[pipelines]]\n")
    for arguments, chosen in (
        (bare, usual),
        (("a.edge", "--source", "0"), None),
        (("--config", "other.toml", "--check", *bare), Path("other.toml")),
    ):
        assert config_file(_context(*arguments)) == chosen
    for arguments, expected in (
        (("--source", "0"), "BUNDLE is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("a.edge",), "--source is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("--camera", "camera"), "BUNDLE is missing"),  # given, although it is the default
        (("a.edge", "--config", "c"), "BUNDLE and --config: expected one of them; what c says, it says alone"),
        ((str(usual), "--source", "0"), f"{usual}: a configuration, no bundle; expected `edge-sdk run --config"),
        (("--no-tune", "--config", "c"), "--no-tune and --config: expected one of them"),
    ):
        assert refusal(UsageError, config_file, _context(*arguments)).startswith(expected)


# docs/config.md and the JSON Schema describe what the program reads.


DOCS = Path(__file__).parents[3] / "docs"
_TEXT = (DOCS / "config.md").read_text(encoding="utf-8")
_EXAMPLES = re.findall(r"^```toml\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)
_TABLES: dict[str, type[msgspec.Struct]] = {
    "At the top": schema.Config,
    "`[device]`": schema.DeviceConfig,
    "`[mqtt]`": schema.MqttConfig,
    "`[outbox]`": OutboxConfig,
    "`[trust]`": schema.TrustConfig,
    "`[commands]`": schema.CommandsConfig,
    "`[home_assistant]`": HomeAssistantSettings,
    "`[[pipelines]]`": schema.PipelineConfig,
    "`[defaults]`": schema.PipelineConfig,
    "`[pipelines.then]`": schema.ThenConfig,
    "`[[events]]`": schema.EventConfig,
    "`[publish.results]`": schema.ResultsConfig,
    "`[publish.events]`": schema.EventsConfig,
    "`[publish.snapshots]`": schema.SnapshotsConfig,
}


def _rows(title: str) -> list[list[str]]:
    section = _TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("text", _EXAMPLES, ids=["least", "all"])
def test_examples_are_read(tmp_path: Path, text: str) -> None:
    path = write_config(tmp_path, text, version="")
    read_config(path)
    jsonschema.validate(read_document(path, ConfigError), msgspec.json.decode(schema.config_schema()))


def _keys(table: object) -> Iterator[tuple[str, bool]]:
    """Yield each key of a table and of the tables in it, and whether the file sets it."""
    for item in table if isinstance(table, tuple) else (table,):
        if isinstance(item, msgspec.Struct):
            for field in item.__struct_fields__:
                value = getattr(item, field)
                yield f"{type(item).__name__}.{field}", value is not None
                yield from _keys(value)


def test_the_whole_example_has_every_key_but_those_that_stand_for_others(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, _EXAMPLES[1], version=""))
    keys = list(_keys(msgspec.structs.replace(config, defaults=None)))
    unsaid = {key for key, _ in keys} - {key for key, is_said in keys if is_said}
    assert unsaid == {
        "Config.defaults",
        *(f"MqttConfig.{word}_{place}" for word in ("password", "key_password") for place in ("env", "credential")),
        *(f"PipelineConfig.{key}" for key in ("password_env", "password_credential", "tls_ca_file")),
        "SnapshotsConfig.interval_s",
    }


def test_every_key_is_documented() -> None:
    documented = {title: {key for row in _rows(title) for key in re.findall(r"`(\w+)`", row[0])} for title in _TABLES}
    documented["`[defaults]`"] |= {"name", "source"}
    documented["`[[pipelines]]`"] |= documented["`[defaults]`"]
    for title, table in _TABLES.items():
        assert documented[title] == {field.encode_name for field in msgspec.structs.fields(table)}, title


def test_documented_defaults_are_those_of_the_program() -> None:
    count = 0
    for title, table in _TABLES.items():
        defaults = {f.encode_name: f.default for f in msgspec.structs.fields(table)}
        cells = {row[0].strip(" `"): row[2].strip() for row in _rows(title)}
        documented = {key: msgspec.json.decode(cell.strip("`")) for key, cell in cells.items() if cell[:1] == "`"}
        assert documented.pop("keys", []) == documented.pop("labels", []) == []  # tuples
        count += len(documented)
        assert documented == {key: defaults[key] for key in documented}, title
    assert count >= 26


_TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "string"}


def test_documented_types_and_ranges_are_those_of_the_program() -> None:
    definitions = msgspec.json.decode(schema.config_schema())["$defs"]
    for title, table in _TABLES.items():
        properties = definitions.get(table.__name__, {}).get("properties", {})
        for row in _rows(title):
            for field in (properties.get(key, {}) for key in re.findall(r"`(\w+)`", row[0])):
                if "enum" in field:
                    written = [msgspec.json.decode(choice) for choice in re.findall("`([^`]+)`", row[1])]
                    assert sorted(written) == sorted(field["enum"]), row
                elif field.get("type") in _TYPES:
                    assert row[1].startswith(_TYPES[field["type"]]), row
                    bounds = {field.get(name, 1e9) for name in ("minimum", "exclusiveMinimum", "maximum")} - {1e9}
                    assert {float(number) for number in re.findall(r"[\d.]+", row[1])} == bounds, row


def test_every_key_is_described_to_an_editor() -> None:
    document = msgspec.json.decode(schema.config_schema())
    jsonschema.Draft202012Validator.check_schema(document)
    keys = [item for table in document["$defs"].values() for item in table["properties"].items()]
    undescribed = [key for key, field in keys if "description" not in field and "$ref" not in field]
    assert undescribed == ["pipelines", "events"]


# Whatever is wrong with a configuration file: exit code 2, lines that name file and key, no traceback, no secret.


_GATE = 'pipelines[0] ("gate")'


def _with(line: str) -> str:
    return f"{PIPELINE}{line}\n"


def _mqtt(lines: str, url: str = "mqtt://edge@h") -> str:
    return f'[mqtt]\nurl = "{url}"\n{lines}\n{PIPELINE}'


def _source(source: str, lines: str = "") -> str:
    return PIPELINE.replace('"0"', f'"{source}"') + lines


_BAD = [
    ("[mqqt]\n" + PIPELINE, "unknown key mqqt; did you mean mqtt?"),
    ("confidence = 0.4\n" + PIPELINE, "unknown key confidence; it belongs below [[pipelines]]"),
    (_mqtt("[publish]\ndraw = true"), "publish: unknown key draw; it belongs below [publish.snapshots]"),
    (_with("device = 1"), f"{_GATE}: unknown key device; it is a table of its own, [device]"),
    (_mqtt("version = 1"), "mqtt: unknown key version; it belongs above the first [table]"),
    (_with("loop = true"), f"{_GATE}: unknown key loop; did you mean repeat?"),
    ("", "pipelines is missing, expected tables [[pipelines]]"),
    ('[[pipelines]]\nname = "gate"\nsource = "0"\n', f"{_GATE}: bundle is missing, expected a NAME.edge folder"),
    (_with("fps = 0.2\nread_timeout_s = 1"), "the camera is lost after 2 s without one; expected 0.5"),
    (_source("picamera2", "fps = 0.5\nread_timeout_s = 1\n"), "expected 1 or more, or a read_timeout_s above 2"),
    (_source("rtsp://h/x", 'tls_ca_file = "a.pem"\n'), f"{_GATE}: tls_ca_file: it is for rtsps:// and https:// only"),
    (PIPELINE.replace("gate", "a/b"), "name: camera name 'a/b' cannot be part of a topic, expected no / + # $"),
    (_mqtt("", "http://h"), "mqtt.url: the URL cannot be read; expected mqtt[s]://[user@]host[:port]"),
    (_mqtt("", "mqtt://edge:hunter2@h"), "mqtt.url: there is a password in the URL; leave it out"),
    (_source("rtsp://admin:hunter2@h/x"), f"{_GATE}.source: there is a password in the URL"),
    (_source("rtsp://admin:hunter2@h/x").replace("gate", "rtsp://a:hunter2@h"), "there is a password in the URL"),
    (_source("rtsp:/admin:hunter2@h/x"), f"{_GATE}: source: …@h/x: `//` is missing behind rtsp:"),
    (_mqtt('cert_file = "pi.pem"'), "mqtt.cert_file: it is for mqtts:// and wss:// only"),
    (_mqtt('cert_file = "c"\nkey_password_env = "hunter2 x"', "mqtts://h"), "expected the name of a variable: "),
    (
        _mqtt('cert_file = "c"\nkey_password_env = "A"\nkey_password_file = "p"', "mqtts://h"),
        "mqtt.key_password_file and key_password_env are both there, expected one of them",
    ),
    ('[commands]\nallow = ["pause"]\n' + PIPELINE, "commands: there is no broker, expected [mqtt] with the url of one"),
    (_mqtt('password = "hunter2"'), "mqtt.password: a password does not stand in this file"),
    (_with('password = "hunter2"'), f"{_GATE}.password: a password does not stand in this file"),
    (_mqtt('password_credential = "../hunter2"'), "mqtt.password_credential: expected the name of a systemd credent"),
    (_mqtt('password_credential = "hunter2"'), "mqtt.password_credential: $CREDENTIALS_DIRECTORY is not set"),
    (_mqtt('password_file = "nowhere"'), "nowhere: the MQTT password cannot be read: No such file"),
    (_mqtt('password_env = "A"', "mqtt://h"), "mqtt.url: there is an MQTT password but no user"),
    (_with("latency_ms = 0.2"), "latency_ms is 0.2, expected 1 millisecond or more"),
    (_with("cpu_share = 50"), "cpu_share is 50, expected 4 cores or less, which this machine has; 0.5 is half a core"),
    (PIPELINE + f'[[events]]\nlabels = ["{"x" * 101}"]\n', "can be no event's, expected 1 to 100 printable characters"),
    (PIPELINE + _CAT + 'cameras = ["gat"]\n', "'gat' is no pipeline's name; did you mean 'gate'?"),
    ("[publish.results]\nqos = 1\n" + PIPELINE, "publish is of what goes to a broker, and none is named"),
    (_mqtt("[publish.events]\nqos = 0"), "publish.events.qos: 0, expected 1"),
    (_mqtt('[publish.snapshots]\non = "interval"\ninterval_s = "x"'), "interval_s: got a string"),  # not: it is missing
    (_mqtt('[publish.snapshots]\non = "event"'), "there are no [[events]]; expected some"),
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
    assert (out, len(lines)) == ("", 3 if "rtsp://a:hunter2@h" in text else 1)  # such a name is wrong in two more ways
    assert re.search("Traceback|ter2|hun/", err) is None


def test_versions(tmp_path: Path, cli: Cli) -> None:
    for version, expected in (
        ("", "version is missing, expected version = 1 at the top, above the first [table]"),
        # Keys of a newer format cause no further complaint.
        ("version = 2\nnew = 3\n", "version is 2, expected version = 1 at the top, above the first [table]; a newer"),
    ):
        path = write_config(tmp_path, version=version)
        assert cli(2, "run", "--config", path).err.startswith(f"edge-sdk: {path}: {expected}")


def _complaints(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    return [line.removeprefix(f"{path}: ").split(";")[0] for line in str(caught.value).splitlines()]


def test_nothing_that_is_wrong_hides_another_problem(tmp_path: Path) -> None:
    """Wrong values, missing keys, tables that break a rule of their own, and values in place of tables."""
    key = "ab" * 32
    path = write_config(
        tmp_path,
        f"""
        device.name = "a/b"
        mqtt = {{ qos = 3, prefix = "edge//v1", ca_file = "ca.pem", key_file = "pi.key" }}
        commands.allow = ["pauze", "pause"]
        home_assistant = 3
        defaults = {{ bundle = "a.edge", fps = "x", password_env = "A B" }}
        pipelines = [
          {{ source = "rtsp://e@h/x", cpu_share = 0.5, tune = false }},
          {{ name = "gate", source = "rtsps://h", tls_fingerprint = "{key}", tls_verify = false, password_env = "a" }},
          {{ name = "gate" }},
          4,
        ]
        events = [{{ labels = ["cat", "cat"] }}, {{ labels = ["cat"] }}, {{ cameras = ["yard"] }}]
        publish.snapshots.on = "interval"
        """,
    )
    expected = [
        "mqtt.qos: 3, expected 0 or 1",
        "mqtt.url is missing",
        "commands.allow[0]: 'pauze', expected 'pause', 'reload'",
        "home_assistant: got a whole number",
        "defaults.fps: got a string",
        "pipelines[0].name is missing",
        'pipelines[1] ("gate"): tls_fingerprint and tls_verify = false: expected one of them',
        'pipelines[2] ("gate"): source is missing',
        "pipelines[3]: got a whole number",
        "events[0]: labels: one is there twice",
        "events[2].labels is missing",
        "publish.snapshots: interval_s is missing",
        "device.name: device name 'a/b'",
        "pipelines[1] and pipelines[2] are both named 'gate'",
        "defaults.password_env: expected the name of a variable",
        "mqtt.prefix: topic prefix name has 0 characters",
        "mqtt.key_file: there is no certificate",
        "pipelines[0].cpu_share is a limit",
        'pipelines[1] ("gate"): password_env: source names no user',
        "events[0] and events[1] are both about 'cat'",
    ]
    assert [line[: len(start)] for line, start in zip(_complaints(path), expected, strict=True)] == expected


def test_of_thousands_of_problems_the_first_twenty_are_said_at_once(tmp_path: Path) -> None:
    wrong = ", ".join(f'"command_{number}"' for number in range(20_000))
    path = write_config(tmp_path, f'[mqtt]\nurl = "mqtt://h"\n[commands]\nallow = [{wrong}]\n{PIPELINE}')
    began_s = time.process_time()
    *said, last = _complaints(path)
    assert time.process_time() - began_s < 3  # it took 40 s
    assert [line.split(":")[0] for line in said] == [f"commands.allow[{number}]" for number in range(20)]
    assert last == "there are more problems than these 20"


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


def test_nothing_that_is_written_there_brings_more_than_a_refusal(tmp_path: Path) -> None:
    for name in ("mqtt.password", "gate.password", "pi.key.password"):
        (tmp_path / name).write_text("hunter2")
    Authority(tmp_path).issue("pi", password="hunter2")
    refused = 0
    for seed in range(_COUNT):
        chance, text = random.Random(seed), _EXAMPLES[1]
        for _ in range(chance.randint(1, 2)):
            text = _damaged(text, chance)
        path = write_config(tmp_path, text, version="")
        try:
            said = repr(run_settings_of(read_config(path)))
        except ConfigError as cause:
            refused, said = refused + 1, str(cause)
            assert all(line.isprintable() for line in said.split("\n")), seed
            assert all(line.startswith((str(tmp_path), "mqtt.", "pipelines[")) for line in said.split("\n")), seed
        assert "ter2" not in said, seed
    assert _COUNT / 2 < refused < _COUNT
