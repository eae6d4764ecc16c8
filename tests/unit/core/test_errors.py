"""Errors are one printable line each, whatever they come of: other code, a terminal, a TOML file."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from edge_sdk.cli.root import run
from edge_sdk.core.errors import LONGEST_LINE, BundleError, ConfigError, failure_line, first_line
from edge_sdk.core.toml import problems, read_toml, shown
from tests.support.bundles import edit_manifest, write_bundle
from tests.support.logs import refusal

NO_TEXT = os.fsdecode(b"\xff")


def test_an_error_is_one_printable_line() -> None:
    for message, expected in (
        ("a.edge: altered", "a.edge: altered"),
        ("a\nedge-sdk: all is well\r\nb", "a edge-sdk: all is well b"),
        ("\x1b[2J\u202eb", "�[2J�b"),
        (NO_TEXT, "�"),
        ("👩\u200d🚒 ന്\u200d می\u200cخواهم\n", "👩\u200d🚒 ന്\u200d می\u200cخواهم"),  # joined as they are written
        ("a\u200db \u200d\u200d", "a�b ��"),
    ):
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
    edit_manifest(folder, target="\x1b]0;title\x07", created_at="\x1b]0;title\x07")  # names the window
    assert run(["keygen", str(key), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["public_key"] == f"{tmp_path}/�.key.pub"
    command = [*(word.replace("KEY", str(key)) for word in verb), str(folder)]
    run([*command, "--json"])
    assert msgspec.json.decode(capsys.readouterr().out)
    run(command)
    assert "\x1b" not in capsys.readouterr().out


def test_a_terminal_that_takes_text_alone_gets_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "edge_sdk", "keygen", str(tmp_path / f"{NO_TEXT}.key")]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(arguments, capture_output=True, check=False, timeout=200, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\udcff.key.pub" in done.stdout


def _raised(cause: BaseException) -> BaseException:
    try:
        raise cause
    except BaseException as caught:  # noqa: BLE001 - to be shown
        return caught


_PLACE = f"(test_errors.py:{_raised.__code__.co_firstlineno + 2})"


def test_the_first_line_of_an_exception() -> None:
    for text, expected in (
        ("\n  \n one \ntwo", "one"),
        ("[ONNXRuntimeError] : 1 : FAIL : no", "1 : FAIL : no"),
        ("\x1b[31mred\x1b[0m and \x07 rings", "red and \N{REPLACEMENT CHARACTER} rings"),
        ("", f"ValueError {_PLACE}"),
    ):
        assert first_line(_raised(ValueError(text))) == expected


def test_a_bug_says_its_type_once() -> None:
    for cause, said in ((AssertionError(), f"AssertionError {_PLACE}"), (ValueError("a\nb"), "ValueError: a")):
        assert failure_line(_raised(cause)) == f"this is a bug in edge-sdk: {said}"
    assert failure_line(ImportError("no x", name="cv2")).startswith("a package is missing, damaged or of")


# TOML files: what is wrong with one is said in the words of whoever wrote it.


class Camera(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(pattern="^rtsp://", description="an address that begins with rtsp://")]
    fps: Annotated[float, Meta(ge=1, lt=240)] = 25.0
    rotate: Literal[0, 90, 180] = 0


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    site: Annotated[str, Meta(min_length=1, max_length=4)]
    qos: Literal["once", "twice"]
    cameras: list[Camera] = []
    named: dict[str, Camera] = {}
    code: Annotated[str, Meta(pattern="^[0-9]+$")] = "0"
    pairs: tuple[tuple[float, float], ...] = ()
    budget: Annotated[float, Meta(gt=0, examples=[100])] | None = None
    either: int | str | list[bool] = 0


GOOD = 'site = "a"\nqos = "once"\n'


def _complaint(folder: Path, text: str) -> str:
    path = folder / "device.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml(path, Device, ConfigError)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    return "\n".join(line.removeprefix(f"{path}: ") for line in lines)


def test_complaints_name_key_value_and_expectation(tmp_path: Path) -> None:
    for text, expected in (
        ('site = "a"', "qos is missing, expected 'once' or 'twice'"),
        ("qos = once", "not valid TOML: Invalid value (at line 1, column 7); a line is key = value, and strings"),
        ('site = ""\nqos = "once"', "site has 0 characters, expected 1 or more"),
        ("[[cameras]]", "cameras[0].url is missing, expected an address that begins with rtsp://"),
        ('cameras = [{url = "rtsp://x", rotate = 45}]', "cameras[0].rotate: 45, expected 0, 90 or 180"),
        ('cameras = [{url = "rtsp://x"}, 3]', "cameras[1]: got a whole number, expected a table"),
        ("[named.gate]\nfsp = 3", "named.gate: unknown key fsp; did you mean fps? (line 4)\nnamed.gate.url is missing"),
        ('code = "a"', "code: 'a', expected a string that matches '^[0-9]+$'"),
        ("pairs = [[1, 2], [3]]", "pairs[1] has 1 item, expected 2"),
        ("budget = -1.5", "budget is -1.5, expected more than 0"),
        ('budget = "100"', "budget: got a string, expected a number such as 100"),
        ("either = [1]", "either[0]: got a whole number, expected true or false"),
    ):
        start = "" if text.startswith(("site", "qos")) else GOOD
        assert _complaint(tmp_path, start + text).startswith(expected)


def test_values_are_shown_short_and_without_passwords(tmp_path: Path) -> None:
    said = _complaint(tmp_path, GOOD + 'cameras = [{url = "http://admin:hunter2@gate/stream"}]')
    assert "'http://***@gate/…" in said
    assert "hunter2" not in said
    assert len(_complaint(tmp_path, GOOD + f'code = "{"x" * 500}"')) < 200


@pytest.mark.parametrize("control", ["", "\n", "\x1b", "\u2028"])
def test_of_a_url_only_the_host_is_shown(control: str) -> None:
    for path in ("gate:7441/AbCdEf{}GhI", "gate/user=admin_pass{}word=AbCdEf.sdp", "admin:AbCdEf{}/@gate/live"):
        url = f"rtsp://{path.format(control)}"
        assert "gate" in shown(url)
        assert "AbCdEf" not in shown(url) + shown([url])


def test_a_good_file_is_read_and_one_that_is_no_text_is_not(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text(GOOD + '[[cameras]]\nurl = "rtsp://x"\n')
    assert read_toml(path, Device, ConfigError).cameras == [Camera("rtsp://x")]
    path.write_bytes(b"site = '\xff'")
    assert "cannot be read" in refusal(ConfigError, read_toml, path, Device, ConfigError)


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    wait: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] | msgspec.UnsetType = msgspec.UNSET
    protocol: Literal["5", "3"] = "5"
    inner: Camera | None = None


class House(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gates: Annotated[tuple[Gate, ...], Meta(min_length=1)]
    size: Annotated[int, Meta(le=10)] = 0

    def __post_init__(self) -> None:
        if self.size == len(self.gates):
            raise ValueError("size: expected another number")


def test_all_problems_of_a_document_are_found() -> None:
    for document, expected in (
        ({"gates": {}}, ["gates: got a table, expected tables [[gates]]"]),
        ({"gates": []}, ["gates has 0 items, expected 1 or more"]),
        ({"gates": [{"name": "a"}]}, []),
        ({"gates": [{"name": "a"}], "size": 1}, ["size: expected another number"]),
        ({"gates": [{}, 3]}, ["gates[0].name is missing, expected a string", "gates[1]: got a whole number, expected"]),
        ({"gates": [{"name": ""}, {"name": "a\nb", "x": 1}]}, ["gates[1]: unknown key x; known keys: name, wait,"]),
        (
            {"gates": [{"name": "a", "wait": "2 s"}, {"name": "b", "wait": 0, "protocol": 5, "wiat": 1}], "siz": 3},
            [
                'gates[0] ("a"): wait: got a string, expected a number of seconds',
                'gates[1] ("b"): wait is 0, expected more than 0',
                "gates[1] (\"b\"): protocol: got a whole number, expected '3' or '5'",
                'gates[1] ("b"): unknown key wiat; did you mean wait?',
                "unknown key siz; did you mean size?",
            ],
        ),
        (
            {"gates": [{"name": "a", "inner": {"url": "x", "fps": 0}}]},
            [
                "gates[0] (\"a\"): inner.url: 'x', expected an address that begins with rtsp://",
                'gates[0] ("a"): inner.fps is 0, expected 1 or more',
            ],
        ),
    ):
        found = [*problems(document, House)]
        assert [line[: len(words)] for line, words in zip(found, expected, strict=True)] == expected
