"""docs/commands.md and the schemas say what the program does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec

from edge_sdk.messages.commands import COMMANDS, CONTROLS, PERMISSIONS, Code, Command, ControlState, ResponseMessage
from edge_sdk.service.commands import HANDLERS

DOCS = Path(__file__).parents[3] / "docs"
_TEXT = (DOCS / "commands.md").read_text(encoding="utf-8")


def _rows(heading: str) -> list[list[str]]:
    section = _TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]


def test_every_command_is_documented_with_its_fields_and_its_permission() -> None:
    rows = {row[0].strip("`"): row for row in _rows("The commands")}
    assert {row[3].strip("` ") for row in rows.values()} == set(PERMISSIONS)
    for kind in get_args(Command):
        row = rows.pop(kind.__struct_config__.tag)
        assert re.findall(r"`(\w+)`", row[1]) == [f.name for f in msgspec.structs.fields(kind) if f.name != "id"]
        entry = COMMANDS[kind.__struct_config__.tag]
        assert (type(entry.example), entry.permission) == (kind, row[3].strip("` "))
        assert (entry.control is None) is (kind in HANDLERS)
    assert rows == {}
    assert len(COMMANDS) == len(get_args(Command))
    assert [control.name for control in CONTROLS] == list(ControlState.__struct_fields__)


def test_every_code_is_documented() -> None:
    assert sorted(row[0].strip("`") for row in _rows("The answer")) == sorted(get_args(Code))


def test_the_example_of_an_answer_is_one() -> None:
    [line] = [line for line in _TEXT.splitlines() if line.startswith('{"stream":"response"')]
    assert msgspec.json.decode(line, type=ResponseMessage).command == "pause"
