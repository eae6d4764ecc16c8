"""The command: errors become one line and the family's exit code."""

from __future__ import annotations

import msgspec
import pytest

from edge_sdk.cli.root import run


def test_targets_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets"]) == 0
    assert "raspberry_pi_5        Raspberry Pi 5" in capsys.readouterr().out
    assert run(["targets", "--json"]) == 0
    assert {t["name"] for t in msgspec.json.decode(capsys.readouterr().out)} >= {"arm64", "x86_64"}


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["nonsense"], 2, "no verb 'nonsense'; expected one of: build, run,"),
        (["rum"], 2, "no verb 'rum'; did you mean run?"),
        (["sign"], 2, "Missing argument 'BUNDLE'"),
        (["sign", "none.edge", "--key", "none.key"], 2, "none.key: no such key file"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, expected: str
) -> None:
    assert run(arguments) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-sdk: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(verb in out for verb in ("keygen", "sign", "targets"))
