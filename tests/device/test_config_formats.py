"""Files that are no TOML: another format, or a quote that is not closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sdk.config import read_config
from edge_sdk.errors import ConfigError

_JSON = "; this looks like JSON; it must be TOML, see docs/config.md"
_YAML = "; this looks like YAML; it must be TOML, key = value, see docs/config.md"
_QUOTE = "; is a quote not closed?"
_QUOTE_IN_3 = "; is a quote in line 3 not closed?"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"version": 1}', _JSON),
        ('\n{\n  "version": 1\n}\n', _JSON),
        ('[{"name": "gate"}]', _JSON),
        ("version: 1\npipelines:\n  - name: gate\n", _YAML),
        ("# the gate\npipelines:\n  - name: gate\n", _YAML),
        ("- name: gate\n", _YAML),
        ("---\nversion: 1\n", _YAML),
        ('version = 1\n[mqtt]\nurl: "mqtt://h"\n', _YAML),
        ('"version": 1\n', _YAML),
        ('version = 1\n[device]\nname = "gate\nsite = "x"\n', _QUOTE),
        ('version = 1\r\n[device]\r\nname = "gate\r\n', _QUOTE),
        ('version = 1\n[device]\nname = "gate', _QUOTE_IN_3),
        ("version = 1\n[device]\nname = 'gate\n", _QUOTE_IN_3),
        ('version = 1\n[device]\nname = """gate\nsite = "x"\n\n', _QUOTE_IN_3),
        ("# don't\nversion = 1\nname = '''gate\nsite = 'x'\n", _QUOTE_IN_3),
        ('a = """\nb\n"""\nname = "gate\\"', "; is a quote in line 4 not closed?"),
        ("version = 1\n[device\n", ""),
        ("version 1\n", ""),
        ("version = 1\nname:gate = 2\n", ""),
        ("version = 1\n[device]\nname = gate\n", "; strings need quotes"),
    ],
)
def test_what_it_is_instead_is_said(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: not valid TOML: ")
    assert "\n" not in line
    assert line.partition(")")[2] == hint if ")" in line else hint == ""
