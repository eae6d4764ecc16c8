"""The command line: errors are one line with an exit code, it works on devices, and the docs explain what it says."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from edge_sdk.cli.root import cli, run


def test_targets_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets"]) == 0
    assert "raspberry_pi_5        Raspberry Pi 5" in capsys.readouterr().out
    assert run(["targets", "--json"]) == 0
    assert {t["name"] for t in msgspec.json.decode(capsys.readouterr().out)} >= {"arm64", "x86_64"}


_RUN = ["run", "none.edge", "--source"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*_RUN, "0", "--duration", "nan"], "nan is no number"),
        (["nonsense"], "No such command 'nonsense'. (see `edge-sdk --help`)"),
        (["sign", "none.edge", "--key", "none.key"], "none.key: no such key file"),
        ([*_RUN, "0", "--latency-ms", "0.2"], "is 0.2, expected 1 millisecond or more"),
        ([*_RUN, "rtsps://h", "--source-tls-fingerprint", "ab"], "--source-tls-fingerprint: 'ab', expected 64"),
        ([*_RUN, "0", "--cpu-share", "0.5", "--no-tune"], "--cpu-share is a limit that tuning keeps"),
        ([*_RUN, "0", "--device", "\udcff"], "device name '\\udcff'"),
        ([*_RUN, "0", "--mqtt", "mqtt://h", "--camera", "\udcff"], "camera name"),
        ([*_RUN, "rtsp://b:hun/ter2@h"], "give --source-password-file"),
        ([*_RUN, "rtsp://b@h:554/x:y"], "none.edge: no such bundle"),
        ([*_RUN, "0", "--source-password-file", "none"], "none: the source's password cannot be"),
        ([*_RUN, "0", "--mqtt", "localhost:1883"], "did you mean mqtt://localhost:1883?"),
        ([*_RUN, "0", "--conf", "0.5"], "--confidence"),
        (["init", "yolo.pt"], "with Ultralytics: yolo export model=yolo.pt format=onnx, then edge-sdk init yolo.onnx"),
        (["run", "yolo.pt", "--source", "0"], "with Ultralytics: yolo export model=yolo.pt format=onnx"),
        (["run", "none.onnx", "--source", "0", "--annotate", "a.gif"], "a.gif: expected a name that ends in .mp4"),
        (["models", "fetch", "yolov4-tinny"], "no such model, expected one of yolov4-tiny, centerface, "),
        (["run", "x" * 300 + ".edge", "--source", "0"], "x.edge: no such bundle: File name too long"),
        (["run", "x" * 300 + ".onnx", "--source", "0"], "x.onnx: File name too long"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("edge-sdk: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert "ter2" not in captured.err


def test_a_file_that_vanished_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def went(**_options: object) -> None:
        Path("gone/model.onnx").read_bytes()

    monkeypatch.setattr(cli, "main", went)
    assert run([]) == 1
    assert capsys.readouterr().err == "edge-sdk: gone/model.onnx: No such file or directory\n"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert run(arguments) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith("Usage: edge-sdk")
        assert all(verb in captured.out for verb in cli.list_commands(click.Context(cli)))
        assert captured.err == ""


def test_a_broker_password_that_is_no_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_SDK_MQTT_PASSWORD", "hun\udcffter2")
    assert run(["run", "none.edge", "--source", "0", "--mqtt", "mqtt://user@h"]) == 2
    assert capsys.readouterr().err == "edge-sdk: $EDGE_SDK_MQTT_PASSWORD: the password is not UTF-8\n"


# A device, where the packages of the workstation are not installed.

_PROGRAM = """
import importlib, pkgutil, sys
for name in ("onnx", "rich", "torch", "matplotlib", "sympy", "edge_sdk_tools", "amqtt"):
    sys.modules[name] = None  # importing it raises ImportError, as where it is not installed
import edge_sdk
names = [m.name for m in pkgutil.walk_packages(edge_sdk.__path__, "edge_sdk.") if m.name != "edge_sdk.__main__"]
for name in names:
    importlib.import_module(name)
print(len(names))
from edge_sdk.cli.root import cli, run
sys.exit(run(["build", "model.toml", "--target", "arm64"]))
"""


def test_all_modules_import_on_a_device_and_verbs_of_the_workstation_say_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert int(done.stdout) > 40
    assert done.returncode == 8
    assert done.stderr.count("\n") == 1
    assert "pip install -c constraints.txt '.[host]'" in done.stderr


def test_threads_of_opencv_are_told_not_to_burn_cores_before_it_is_loaded() -> None:
    name = "OPENCV_THREAD_POOL_ACTIVE_WAIT_WORKER"
    program = f"import sys, os, edge_sdk; print('cv2' in sys.modules, os.environ['{name}'])"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENCV_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False 0\n"


def test_importing_leaves_no_telemetry_behind(tmp_path: Path) -> None:
    """The package of the workstation imports this one first."""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment.update(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    subprocess.run([sys.executable, "-c", "import edge_sdk.inference.session"], check=True, env=environment)
    assert list(tmp_path.rglob("*")) == []


# Lines that the documentation explains are lines that the program says.

_ROOT = Path(__file__).parents[3]
_GAP = "…"  # in a line, what differs

# Where a line is put together: gaps, punctuation, and what are a user's, the system's, OpenSSL's or the broker's words.
_THEIRS = (
    "/mqtt|the authorities in ca.pem|135|Not authorized|154|Retain not supported|Hostname mismatch|"
    "certificate is not valid for|Too many open files"
)
_JOINTS = rf"{_GAP}|[;:(),]| bytes |{_THEIRS}"


def _texts(tree: ast.AST) -> Iterator[str]:
    """All strings of a module, with gaps for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else _GAP for p in node.values)
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("{}", _GAP)


def test_lines_that_the_documentation_explains_are_said() -> None:
    """The first cells of a table that begin with a line in backquotes."""
    rows = [row for row in (_ROOT / "docs" / "troubles.md").read_text().splitlines() if row.startswith("| `")]
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(lines) > 40
    said = "\n".join(
        text for path in (_ROOT / "edge_sdk").rglob("*.py") for text in _texts(ast.parse(path.read_text()))
    )
    pieces = [piece.strip() for line in lines for piece in re.split(_JOINTS, line)]
    assert not [piece for piece in pieces if len(piece) > 3 and piece not in said]


# Links between the pages of the documentation lead somewhere.


_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md")), *sorted((_ROOT / "examples").rglob("*.md"))]
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def _prose(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.+?) *$", _prose(page), re.M)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in shown}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for path, anchor in _LINK.findall(_prose(page)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    assert broken == []


def test_the_index_names_every_page() -> None:
    index = (_ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (_ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in index} == set()
