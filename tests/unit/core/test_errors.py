"""Errors and JSON are text that a terminal, a journal and a parser take; errors of other code become one line."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edge_sdk.cli.root import run
from edge_sdk.core.errors import LONGEST_LINE, BundleError, ConfigError, failure_line, first_line
from tests.support.bundles import edit_manifest, write_bundle

NO_TEXT = os.fsdecode(b"\xff")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a.edge: altered", "a.edge: altered"),
        ("a\nedge-sdk: all is well\r\nb", "a edge-sdk: all is well b"),
        ("\x1b[2J\u202eb", "�[2J�b"),
        (NO_TEXT, "�"),
    ],
)
def test_an_error_is_one_printable_line(message: str, expected: str) -> None:
    assert str(BundleError(message)) == expected


def test_a_long_error_keeps_its_beginning_and_its_end_and_several_lines_stay_apart_in_other_processes_too() -> None:
    said = str(BundleError(f"a.edge: {'x' * 100_000} is not allowed; build it again"))
    assert len(said) == LONGEST_LINE
    assert said.startswith("a.edge: xxx")
    assert said.endswith("xxx is not allowed; build it again")
    assert str(pickle.loads(pickle.dumps(ConfigError("one", "two\n3")))) == "one\ntwo 3"


@pytest.mark.parametrize("verb", [["inspect"], ["sign", "--key", "KEY"], ["run", "--check", "--source", "pattern"]])
def test_a_bundle_whose_name_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]) -> None:
    folder, key = write_bundle(tmp_path / f"{NO_TEXT}.edge"), tmp_path / f"{NO_TEXT}.key"
    assert run(["keygen", str(key), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["public_key"] == f"{tmp_path}/�.key.pub"
    run([*(word.replace("KEY", str(key)) for word in verb), str(folder), "--json"])
    assert msgspec.json.decode(capsys.readouterr().out)


def test_a_terminal_that_takes_text_alone_gets_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "edge_sdk", "keygen", str(tmp_path / f"{NO_TEXT}.key")]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(arguments, capture_output=True, check=False, timeout=200, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\udcff.key.pub" in done.stdout


@pytest.mark.parametrize("verb", [["inspect"], ["run", "--check", "--source", "pattern"]])
def test_a_manifest_writes_but_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]) -> None:
    folder = write_bundle(tmp_path / "a.edge")
    edit_manifest(folder, target="\x1b]0;title\x07", created_at="\x1b]0;title\x07")  # names the window
    run([*verb, str(folder)])
    assert "\x1b" not in capsys.readouterr().out


def _raised(cause: BaseException) -> BaseException:
    try:
        raise cause
    except BaseException as caught:  # noqa: BLE001 - to be shown
        return caught


_LINE = _raised.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n  \n one \ntwo", "one"),
        ("[ONNXRuntimeError] : 1 : FAIL : no", "1 : FAIL : no"),
        ("\x1b[31mred\x1b[0m and \x07 rings", "red and \N{REPLACEMENT CHARACTER} rings"),
        ("", "ValueError (test_errors.py:{LINE})"),
    ],
)
def test_the_first_line_of_an_exception(text: str, expected: str) -> None:
    assert first_line(_raised(ValueError(text))) == expected.format(LINE=_LINE)


def test_a_bug_says_its_type_once() -> None:
    for cause, said in (
        (AssertionError(), f"AssertionError (test_errors.py:{_LINE})"),
        (ValueError("a\nb"), "ValueError: a"),
    ):
        assert failure_line(_raised(cause)) == f"this is a bug in edge-sdk: {said}"
