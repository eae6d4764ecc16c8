"""The configuration file: what it says becomes what a daemon runs, and when a run goes by it."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import jsonschema
import msgspec
import pytest

from edge_sdk.cli.run import command, config_file
from edge_sdk.config import load
from edge_sdk.config.load import read_config
from edge_sdk.config.schema import (
    CommandsConfig,
    Config,
    DeviceConfig,
    EventConfig,
    EventsConfig,
    MqttConfig,
    PipelineConfig,
    ResultsConfig,
    SnapshotsConfig,
    ThenConfig,
    TrustConfig,
    config_schema,
)
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
from tests.support.configs import STREAM, write_config
from tests.support.logs import SAID


def _settings(folder: Path, text: str = STREAM) -> RunSettings:
    return run_settings_of(read_config(write_config(folder, text)))


def test_what_is_not_said_is_as_the_daemon_has_it(tmp_path: Path) -> None:
    settings = _settings(tmp_path)
    stream = PipelineSettings(camera="gate", source="0", bundle=tmp_path / "a.edge")
    assert settings == RunSettings(device=default_device(), pipelines=(stream,), waits=True)


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
    assert mqtt is not None
    assert (settings.device, mqtt.host, mqtt.port, mqtt.tls, mqtt.username) == ("pi", "broker", 1234, True, "edge")
    assert (mqtt.ca_file, mqtt.qos, mqtt.password) == (tmp_path / "ca.pem", 1, Secret("hunter2"))
    assert mqtt.topics.of("result", "gate") == "x/y/home/pi/result/gate"
    assert settings.pipelines == (
        PipelineSettings(
            camera="gate",
            source="rtsp://viewer@h/x",
            source_password=Secret("hunter2"),
            password_file=tmp_path / "pw",
            size_wh=(640, 480),
            bundle=Path("/b.edge"),
            trusted_keys=(tmp_path / "a.pub", Path("/b.pub")),
            allow_older=True,
            latency_ms=200,
            variant="int8",
        ),
    )
    assert "hunter2" not in repr(settings)


def test_defaults_are_for_streams_that_say_nothing_else(tmp_path: Path) -> None:
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
    first, second = settings.pipelines
    assert (first.bundle, first.tune, first.source_options) == (
        *(tmp_path / "d.edge", False, SourceOptions(size_wh=(640, 480), fps=5)),
    )
    assert (second.bundle, second.tune, second.source_options) == (
        *(tmp_path / "a.edge", True, SourceOptions(size_wh=(320, 240), fps=5)),
    )


def test_slow_rates_that_a_source_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "6")
    for source, more in (("/dev/video0", ""), ("picamera2", "read_timeout_s = 6\n"), ("rtsp://h/x", "")):
        read_config(write_config(tmp_path, STREAM.replace('"0"', f'"{source}"') + f"fps = 0.2\n{more}"))


def test_a_stream_says_alone_how_its_certificate_is_verified(tmp_path: Path) -> None:
    defaults = '[defaults]\nbundle = "a.edge"\ntls_ca_file = "ca.pem"\n'
    own = {"a": "", "b": f'tls_fingerprint = "{"ab" * 32}"', "c": "tls_verify = false"}
    streams = [f'[[pipelines]]\nname = "{name}"\nsource = "rtsps://h/{name}"\n{line}\n' for name, line in own.items()]
    config = read_config(write_config(tmp_path, defaults + "".join(streams)))
    assert [stream.source_options for stream in run_settings_of(config).pipelines] == [
        SourceOptions(tls_ca_file=tmp_path / "ca.pem"),
        SourceOptions(tls_fingerprint="ab" * 32),
        SourceOptions(tls_verify=False),
    ]
    assert [line.partition(": who")[0] for line in SAID] == ['warning: pipelines[2] ("c"): tls_verify is false']


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    for source, expected in (("0", "0"), ("rtsp://h/x", "rtsp://h/x"), ("clips/a.mp4", f"{tmp_path}/clips/a.mp4")):
        assert _settings(tmp_path, STREAM.replace('"0"', f'"{source}"')).pipelines[0].source == expected


_MQTT = '[mqtt]\nurl = "mqtt://broker"\nqos = 1\n'
_YARD = STREAM.replace("gate", "yard")
_CAT = '[[events]]\nlabels = ["cat"]\n'


def test_rules_are_of_the_cameras_that_they_name(tmp_path: Path) -> None:
    dog = '[[events]]\nlabels = ["dog"]\n'
    one, other = 'cameras = ["yard"]\nconfidence = 0.7\ncooldown_s = 5\n', 'cameras = ["gate"]\n'
    gate, yard = _settings(tmp_path, STREAM + _YARD + _CAT + dog + one + dog + other).pipelines
    cat = EventRule(labels=("cat",))
    assert gate.events == (cat, EventRule(labels=("dog",)))
    assert yard.events == (cat, EventRule(labels=("dog",), confidence=0.7, cooldown_s=5.0))
    assert gate.snapshots is None


def test_each_kind_travels_as_its_table_says_or_as_documented(tmp_path: Path) -> None:
    mqtt = _settings(tmp_path, _MQTT + STREAM).mqtt
    assert mqtt is not None
    assert mqtt.channels == {"result": Channel(qos=1), "event": EVENTS, "snapshot": SNAPSHOTS}
    text = """
        [publish]
        results = { qos = 0, expiry_s = 5, max_per_s = 2 }
        events = { qos = 1, expiry_s = 7, max_per_s = 3 }
        snapshots = { on = "interval", interval_s = 60, width = 320, quality = 50, qos = 1, expiry_s = 9 }
        """
    settings = _settings(tmp_path, _MQTT + text + STREAM)
    assert settings.mqtt is not None
    assert settings.mqtt.channels == {
        "result": Channel(qos=0, expiry_s=5, max_per_s=2.0),
        "event": Channel(qos=1, expiry_s=7, max_per_s=3.0),
        "snapshot": Channel(qos=1, expiry_s=9),
    }
    pictures = SnapshotSettings(on="interval", interval_s=60.0, width=320, quality=50)
    assert settings.pipelines[0].snapshots == pictures


def _config(folder: Path, line: str) -> Path:
    return write_config(folder, f'[mqtt]\nurl = "mqtts://edge@h"\n{line}\n{STREAM}')


def _password(path: Path) -> str | None:
    settings = run_settings_of(read_config(path))
    assert settings.mqtt is not None
    secret: Secret | None = settings.mqtt.password
    return secret.reveal() if secret else None


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path, file = _config(tmp_path, 'password_file = "pw"'), tmp_path / "pw"
    file.write_text("hunter2\nsecond line\n")
    file.chmod(0o600)
    assert _password(path) == "hunter2"
    assert SAID == []
    for mode in (0o640, 0o604):
        file.chmod(mode)
        assert _password(path) == "hunter2"
        assert f"other users can read the MQTT password (mode {mode:04o}); chmod 600 {file}" in SAID.pop()


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


def test_the_password_of_a_private_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority(tmp_path).issue("pi", password="hunter2")
    (tmp_path / "word").write_text("hunter2\n")
    (tmp_path / "word").chmod(0o600)
    monkeypatch.setenv("KEY_WORD", "hunter2")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for place, named in (("file", "word"), ("env", "KEY_WORD"), ("credential", "word")):
        lines = f'cert_file = "pi.pem"\nkey_file = "pi.key"\nkey_password_{place} = "{named}"'
        mqtt = run_settings_of(read_config(_config(tmp_path, lines))).mqtt
        assert mqtt is not None
        assert (mqtt.cert_file, mqtt.key_file) == (tmp_path / "pi.pem", tmp_path / "pi.key")
        assert (mqtt.key_password, mqtt.password) == (Secret("hunter2"), None)
    with pytest.raises(ConfigError, match="the private key is encrypted; name a file with its password"):
        run_settings_of(read_config(_config(tmp_path, 'cert_file = "pi.pem"\nkey_file = "pi.key"')))


def test_each_reading_of_the_settings_reads_the_password_again(tmp_path: Path) -> None:
    config = read_config(_config(tmp_path, 'password_file = "pw"'))  # which need not be there yet
    for word in ("first", "second"):
        (tmp_path / "pw").write_text(word)
        mqtt = run_settings_of(config).mqtt
        assert mqtt is not None
        assert mqtt.password is not None
        assert mqtt.password.reveal() == word
        assert word not in repr(config) + repr(mqtt)


def test_one_password_for_all_cameras_without_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pw").write_text("of all")
    monkeypatch.setenv("OWN", "its own")
    path = write_config(
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
    secrets = [stream.source_password for stream in run_settings_of(read_config(path)).pipelines]
    assert [secret.reveal() if secret else None for secret in secrets] == ["of all", "its own", None, None]


def _context(*arguments: str) -> click.Context:
    return command.make_context("run", list(arguments))


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device's usual place for a configuration, where there is none yet."""
    monkeypatch.setattr(load, "DEFAULT_PATH", tmp_path / "config.toml")
    return load.DEFAULT_PATH


def test_a_run_goes_by_its_flags_or_by_a_file_and_without_either_by_the_usual_one(usual: Path) -> None:
    with pytest.raises(UsageError, match=f"nothing to run; expected .*there is no {usual}"):
        config_file(_context("--duration", "3", "--json", "-q"))
    usual.touch()
    for arguments, expected in (
        (("--duration", "3", "--json", "-q"), usual),
        (("a.edge", "--source", "0"), None),
        (("--config", "other.toml", "--check", "--json", "-q", "--duration", "1"), Path("other.toml")),
    ):
        assert config_file(_context(*arguments)) == expected
    for arguments, refusal in (
        (("--source", "0"), "BUNDLE is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("a.edge",), "--source is missing; expected `edge-sdk run BUNDLE --source SOURCE`"),
        (("--camera", "camera"), "BUNDLE is missing"),  # given, although it is the default
        (("a.edge", "--config", "c"), "BUNDLE and --config: expected one of them; what c says, it says alone"),
        (("--no-tune", "--config", "c"), "--no-tune and --config: expected one of them"),
    ):
        with pytest.raises(UsageError, match=f"^{re.escape(refusal)}"):
            config_file(_context(*arguments))


# docs/config.md and its schema say what the program reads.


DOCS = Path(__file__).parents[3] / "docs"
_TEXT = (DOCS / "config.md").read_text(encoding="utf-8")
_EXAMPLES = re.findall(r"^```toml\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)
_TABLES: dict[str, type[msgspec.Struct]] = {
    "At the top": Config,
    "`[device]`": DeviceConfig,
    "`[mqtt]`": MqttConfig,
    "`[outbox]`": OutboxConfig,
    "`[trust]`": TrustConfig,
    "`[commands]`": CommandsConfig,
    "`[home_assistant]`": HomeAssistantSettings,
    "`[[pipelines]]`": PipelineConfig,
    "`[defaults]`": PipelineConfig,
    "`[pipelines.then]`": ThenConfig,
    "`[[events]]`": EventConfig,
    "`[publish.results]`": ResultsConfig,
    "`[publish.events]`": EventsConfig,
    "`[publish.snapshots]`": SnapshotsConfig,
}


def _rows(title: str) -> list[list[str]]:
    section = _TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("text", _EXAMPLES, ids=["least", "all"])
def test_examples_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    read_config(path)
    jsonschema.validate(read_document(path, ConfigError), msgspec.json.decode(config_schema()))


def _keys(table: object) -> Iterator[tuple[str, bool]]:
    """Each key of a table of the file and of those in it, and whether the file says it."""
    for item in table if isinstance(table, tuple) else (table,):
        if isinstance(item, msgspec.Struct):
            for field in item.__struct_fields__:
                value = getattr(item, field)
                yield f"{type(item).__name__}.{field}", value is not None
                yield from _keys(value)


def test_the_whole_example_has_every_key_but_those_that_stand_for_others(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(_EXAMPLES[1], encoding="utf-8")
    config = read_config(path)
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
        documented = {
            row[0].strip(" `"): msgspec.json.decode(row[2].strip(" `"))
            for row in _rows(title)
            if row[2].startswith("`")
        }
        assert documented.pop("keys", []) == documented.pop("labels", []) == []  # tuples
        count += len(documented)
        assert documented == {key: defaults[key] for key in documented}, title
    assert count >= 26


_TYPES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "string"}


def test_documented_types_and_ranges_are_those_of_the_program() -> None:
    definitions = msgspec.json.decode(config_schema())["$defs"]
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
    schema = msgspec.json.decode(config_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    definitions = schema["$defs"]
    keys = [(key, field) for table in definitions.values() for key, field in table["properties"].items()]
    undescribed = [key for key, field in keys if "description" not in field and "$ref" not in field]
    assert undescribed == ["pipelines", "events"]
