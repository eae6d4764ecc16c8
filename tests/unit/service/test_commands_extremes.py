"""Numbers in commands, however odd: a command is taken exactly where the schema has it."""

from __future__ import annotations

from typing import get_args, get_type_hints

import jsonschema
import msgspec
import pytest

from edge_sdk.messages.commands import CLASSES, COMMANDS, Command, RefusedError
from edge_sdk.messages.schema import Topics, message_schema
from edge_sdk.publishing.connection import Incoming
from edge_sdk.service.commands import CommandAdmission

_FRACTIONS = "5e-324 1e-310 0.00999 0.01 0.5 1 1.0000000000000002 240 240.00000000000003 1e15 1e308 1e400"
_WHOLE = "0 63 64 1920 1921 9223372036854775808 1" + "0" * 400
_NUMBERS = [sign + each for each in f"{_FRACTIONS} {_WHOLE}".split() for sign in ("", "-")]
_NO_JSON = ["NaN", "-Infinity", "1e", ".5"]
_FIELDS = [
    (kind.__struct_config__.tag, name)
    for kind in get_args(Command)
    for name, hint in get_type_hints(kind).items()
    if hint in (int, float)
]


def _refusal(name: str, field: str, number: str) -> str:
    """Why a command with that number is refused; empty where it is taken."""
    document = {**msgspec.to_builtins(COMMANDS[name].example), field: msgspec.Raw(number.encode())}
    admission = CommandAdmission(Topics("edge/v1", "yard", "pi"), CLASSES)
    found = admission.admit(Incoming("cmd", msgspec.json.encode(document)))
    assert found is not None
    return found[1].complaint.message if isinstance(found[1], RefusedError) else ""


@pytest.mark.parametrize(("name", "field"), _FIELDS)
def test_a_number_is_taken_where_the_schema_has_it_and_else_it_is_said_what_would_be_one(name: str, field: str) -> None:
    assert len(_FIELDS) == 3
    schema = jsonschema.Draft202012Validator(msgspec.json.decode(message_schema("command")))
    for number in _NUMBERS:
        said = _refusal(name, field, number)
        if abs(float(number)) < 1e300:
            example = msgspec.to_builtins(COMMANDS[name].example)
            assert schema.is_valid({**example, field: msgspec.json.decode(number)}) == (not said), number
        if said and field == "max_fps" and abs(float(number)) < 2**53:
            assert ", expected 0 (as many as come) or 0.01 to 240; such as" in said
    assert all(_refusal(name, field, number) for number in _NO_JSON)
