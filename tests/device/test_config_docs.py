"""docs/config.md and its schema say what the program reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from edge_sdk.config import (
    CommandsConfig,
    Config,
    Defaults,
    DeviceConfig,
    EventConfig,
    EventsConfig,
    HomeAssistantConfig,
    MqttConfig,
    OutboxConfig,
    PipelineConfig,
    PublishConfig,
    ResultsConfig,
    SnapshotsConfig,
    TrustConfig,
    config_schema,
    read_config,
)
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.errors import ConfigError
from edge_sdk.snapshot_settings import SnapshotSettings
from edge_sdk.source_options import SourceOptions
from edge_sdk.toml_file import read_document

DOCS = Path(__file__).parents[2] / "docs"
_TEXT = (DOCS / "config.md").read_text(encoding="utf-8")
_EXAMPLES = re.findall(r"^```toml\n(.*?)^```", _TEXT, re.DOTALL | re.MULTILINE)
_SECTIONS = {
    "At the top": {*Config.__struct_fields__},
    "`[device]`": {*DeviceConfig.__struct_fields__},
    "`[mqtt]`": {*MqttConfig.__struct_fields__},
    "`[outbox]`": {*OutboxConfig.__struct_fields__},
    "`[trust]`": {*TrustConfig.__struct_fields__},
    "`[commands]`": {*CommandsConfig.__struct_fields__},
    "`[home_assistant]`": {*HomeAssistantConfig.__struct_fields__},
    "`[[pipelines]]`": {*PipelineConfig.__struct_fields__} - {*Defaults.__struct_fields__},
    "`[defaults]`": {*Defaults.__struct_fields__},
    "`[[events]]`": {*EventConfig.__struct_fields__},
    "`[publish.results]`": {*ResultsConfig.__struct_fields__},
    "`[publish.events]`": {*EventsConfig.__struct_fields__},
    "`[publish.snapshots]`": {*SnapshotsConfig.__struct_fields__},
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


def test_the_whole_example_has_every_key(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(_EXAMPLES[1], encoding="utf-8")
    config = read_config(path)
    assert isinstance(config.mqtt, MqttConfig)
    unset = {
        field
        for table in (
            *(config.device, config.mqtt, config.outbox, config.trust, config.commands, config.home_assistant),
        )
        for field in table.__struct_fields__
        if getattr(table, field) is msgspec.UNSET
    }
    assert isinstance(config.publish, PublishConfig)
    assert isinstance(config.publish.snapshots, SnapshotsConfig)
    assert config.events[0].cameras == ("gate",)
    of_publish = (config.publish.results, config.publish.events, config.publish.snapshots, *config.events)
    unset |= {
        f"{type(t).__name__}.{f}" for t in of_publish for f in t.__struct_fields__ if getattr(t, f) is msgspec.UNSET
    }
    yard = config.pipelines[1]
    unset |= {field for field in yard.__struct_fields__ if getattr(yard, field) is msgspec.UNSET}
    assert unset - {"transport", "open_timeout_s", "read_timeout_s"} == {
        "key_password_env",
        "key_password_credential",
        "password_file",
        "password_env",
        "password_credential",
        "SnapshotsConfig.interval_s",
    }
    assert config.pipelines[0].transport == "tcp"


@pytest.mark.parametrize(("title", "fields"), _SECTIONS.items())
def test_every_key_is_documented(title: str, fields: set[str]) -> None:
    keys = [key for row in _rows(title) for key in re.findall(r"`(\w+)`", row[0])]
    assert sorted(keys) == sorted(fields)


def test_documented_defaults_are_those_of_the_program() -> None:
    tables: dict[str, tuple[type[msgspec.Struct], ...]] = {
        "`[device]`": (DeviceConfig,),
        "`[mqtt]`": (MqttConfig,),
        "`[outbox]`": (OutboxConfig,),
        "`[trust]`": (TrustConfig,),
        "`[home_assistant]`": (HomeAssistantConfig,),
        "`[[pipelines]]`": (PipelineSettings, SourceOptions),
        "`[defaults]`": (PipelineSettings, SourceOptions),
        "`[[events]]`": (EventConfig,),
        "`[publish.results]`": (ResultsConfig,),
        "`[publish.events]`": (EventsConfig,),
        "`[publish.snapshots]`": (SnapshotsConfig, SnapshotSettings),
    }
    count = 0
    for title, structs in tables.items():
        known = [f for struct in structs for f in msgspec.structs.fields(struct)]
        defaults: dict[str, Any] = {f.name: f.default for f in known if f.default is not msgspec.UNSET}
        documented = {
            row[0].strip(" `"): msgspec.json.decode(row[2].strip(" `"))
            for row in _rows(title)
            if row[2].startswith("`")
        }
        assert documented.pop("keys", []) == documented.pop("labels", []) == []  # tuples
        count += len(documented)
        assert documented == {key: defaults[key] for key in documented}, title
    assert count >= 26


def test_the_schema_is_up_to_date() -> None:
    path = DOCS / "config.schema.json"
    assert msgspec.json.decode(path.read_bytes()) == msgspec.json.decode(config_schema()), (
        "write it again: python -c 'import pathlib; from edge_sdk.config import config_schema; "
        'pathlib.Path("docs/config.schema.json").write_bytes(config_schema())\''
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2, "pipelines": [{"name": "a", "source": "0"}]},
        {"version": 1, "pipelines": []},
        {"version": 1, "pipelines": [{"name": "a"}]},
        {"version": 1, "pipelines": [{"name": "a", "source": "0", "sorce": "0"}]},
        {"version": 1, "pipelines": [{"name": "a", "source": "0", "fps": 0}]},
        {"version": 1, "pipelines": [{"name": "a", "source": "0"}], "mqtt": {"url": "mqtt://h", "qos": 2}},
    ],
)
def test_an_editor_sees_what_is_wrong(wrong: dict[str, Any]) -> None:
    schema = msgspec.json.decode(config_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong))


def test_every_key_is_described_to_an_editor() -> None:
    definitions = msgspec.json.decode(config_schema())["$defs"]
    keys = [(key, field) for table in definitions.values() for key, field in table["properties"].items()]
    undescribed = [key for key, field in keys if "description" not in field and "$ref" not in field]
    assert undescribed == ["pipelines", "events"]
