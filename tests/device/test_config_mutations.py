"""Damaged configurations: whatever is cut out of one or written into it, what is wrong is said in plain lines."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

from edge_sdk.config import read_config
from edge_sdk.daemon.configured import run_settings_of
from edge_sdk.errors import ConfigError
from tests.device.certificates import Authority

_GOOD = re.findall(
    r"^```toml\n(.*?)^```",
    (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8"),
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

_COUNT = 400  # files


def _insert(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(_PIECES) + text[at:]


def _cut(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at + chance.randint(1, 30) :]


def _set(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    at = chance.randrange(len(lines))
    lines[at] = re.sub("=.*", lambda _: f"= {chance.choice(_VALUES)}", lines[at])
    return "\n".join(lines)


def _swap(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


_DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (_insert, _cut, _set, _set, _swap)


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
        for _ in range(chance.randint(1, 4)):
            text = chance.choice(_DAMAGES)(text, chance) or _GOOD
        path.write_text(text, encoding="utf-8")
        said = _refusal(path)
        if said is None:
            continue
        refused += 1
        assert "ter2" not in said, seed
        assert all(line.isprintable() for line in said.split("\n")), seed
        assert all(line.startswith((str(tmp_path), "mqtt.", "pipelines[")) for line in said.split("\n")), seed
    assert _COUNT / 2 < refused < _COUNT
