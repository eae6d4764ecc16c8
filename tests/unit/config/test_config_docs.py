"""docs/config.md and its schema say what the program reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest

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
from edge_sdk.core.errors import ConfigError
from edge_sdk.core.toml import read_document
from edge_sdk.outbox.event import OutboxConfig
from edge_sdk.publishing.discovery import HomeAssistantSettings

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
