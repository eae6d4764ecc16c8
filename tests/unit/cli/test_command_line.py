"""The command line: errors of one line with an exit code, the docs that explain them, and `edge-sdk inspect`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import click
import msgspec
import onnx
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import REDUCED_FILE
from edge_sdk.cli import root
from edge_sdk.core.errors import IncompatibleError
from edge_sdk.inference import trial
from edge_sdk.inference.profile import ProfileEvent, profile_of
from tests.support import models as tiny
from tests.support.bundles import edit_manifest, write_real_bundle
from tests.support.program import Cli


def test_targets_as_table_and_json(cli: Cli) -> None:
    assert "raspberry_pi_5        Raspberry Pi 5" in cli(0, "targets").out
    assert {t["name"] for t in msgspec.json.decode(cli(0, "targets", "--json").out)} >= {"arm64", "x86_64"}


_RUN = ["run", "none.edge", "--source"]


def test_errors_are_one_line(cli: Cli) -> None:
    for arguments, expected in (
        ([*_RUN, "0", "--duration", "nan"], "nan is no number"),
        (["nonsense"], "No such command 'nonsense'. (see `edge-sdk --help`)"),
        (["buld"], "No such command 'buld', did you mean 'build'? (see `edge-sdk --help`)"),
        (["sign", "none.edge", "--key", "none.key"], "none.key: no such key file"),
        ([*_RUN, "0", "--latency-ms", "0.2"], "is 0.2, expected 1 millisecond or more"),
        ([*_RUN, "rtsps://h", "--source-tls-fingerprint", "ab"], "--source-tls-fingerprint: 'ab', expected 64"),
        ([*_RUN, "0", "--cpu-share", "0.5", "--no-tune"], "--cpu-share is a limit that tuning keeps"),
        ([*_RUN, "0", "--device", "\udcff"], "device name '\\udcff'"),
        ([*_RUN, "rtsp://b:hun/ter2@h"], "give --source-password-file"),
        ([*_RUN, "rtsp://b@h:554/x:y"], "none.edge: no such bundle"),
        ([*_RUN, "0", "--mqtt", "localhost:1883"], "did you mean mqtt://localhost:1883?"),
        (["init", "yolo.pt"], "with Ultralytics: yolo export model=yolo.pt format=onnx, then edge-sdk init yolo.onnx"),
        (["run", "none.onnx", "--source", "0", "--annotate", "a.gif"], "a.gif: expected a name that ends in .mp4"),
        (["models", "fetch", "yolov4-tinny"], "no such model, expected one of yolov4-tiny, centerface, "),
        (["run", "x" * 300 + ".edge", "--source", "0"], "x.edge: no such bundle: File name too long"),
    ):
        out, err = cli(2, *arguments)
        assert (out, err[:10], err.count("\n")) == ("", "edge-sdk: ", 1)
        assert expected in err
        assert "ter2" not in err


def test_a_file_that_vanished_is_no_bug(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(root.cli, "main", lambda **_options: Path("gone/model.onnx").read_bytes())
    assert cli(1).err == "edge-sdk: gone/model.onnx: No such file or directory\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_verb(cli: Cli, arguments: list[str]) -> None:
    out, err = cli(0, *arguments)
    assert (out[:15], err) == ("Usage: edge-sdk", "")
    assert all(verb in out for verb in root.cli.list_commands(click.Context(root.cli)))


def test_a_broker_password_that_is_no_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_SDK_MQTT_PASSWORD", "hun\udcffter2")
    said = cli(2, *_RUN, "0", "--mqtt", "mqtt://user@h").err
    assert said == "edge-sdk: $EDGE_SDK_MQTT_PASSWORD: the password is not UTF-8\n"


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
from edge_sdk.cli.root import run
sys.exit(run(["build", "model.toml", "--target", "arm64"]))
"""


def test_all_modules_import_on_a_device_and_verbs_of_the_workstation_say_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert int(done.stdout) > 40
    assert (done.returncode, done.stderr.count("\n")) == (8, 1)
    assert "pip install -c constraints.txt '.[host]'" in done.stderr


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
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else _GAP for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.replace("{}", _GAP)


def test_lines_that_the_documentation_explains_are_said() -> None:
    rows = [row for row in (_ROOT / "docs" / "troubles.md").read_text().splitlines() if row.startswith("| `")]
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(lines) > 40
    modules = (ast.parse(path.read_text()) for path in (_ROOT / "edge_sdk").rglob("*.py"))
    said = "\n".join(text for module in modules for text in _texts(module))
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


# `edge-sdk inspect`: what a bundle is, where its time goes, the graph as it runs.


MODEL = tiny.classifier(classes=2)


def _kernel(name: str, operator: str, start: int, duration: int, provider: str = "CPU") -> ProfileEvent:
    return ProfileEvent(f"{name}_kernel_time", start, duration, 1, {"op_name": operator, "provider": provider})


def test_times_are_medians_of_runs_and_shares_of_all_nodes() -> None:
    events = []
    for start, factor in ((0, 100), (1000, 1), (2000, 2), (3000, 30)):  # the first run warms up
        events += [
            ProfileEvent("model_run", start, 8 * factor, 1),
            _kernel("a", "Conv", start, 4 * factor),
            _kernel("b", "Conv", start + 4 * factor, 2 * factor),
            _kernel("c", "Relu", start + 6 * factor, 2 * factor, "CUDA"),
        ]
    profile = profile_of(events, warm_up=1)
    nodes = [(node.node, node.ms, node.share) for node in profile.nodes]
    operators = [(each.operator, each.provider, each.nodes, each.share) for each in profile.operators]
    assert (profile.runs, profile.run_ms) == (3, 0.016)
    assert nodes == [("a", 0.008, 0.5), ("b", 0.004, 0.25), ("c", 0.004, 0.25)]
    assert operators == [("Conv", "CPU", 2, 0.75), ("Relu", "CUDA", 1, 0.25)]


def test_a_loop_does_not_count_what_its_body_takes() -> None:
    events = [
        ProfileEvent("model_run", 0, 100, 1), _kernel("loop", "Loop", 0, 90), _kernel("inner", "If", 10, 30),
        _kernel("x", "Relu", 12, 20), _kernel("x", "Relu", 50, 20), _kernel("after", "Conv", 90, 10),
    ]  # fmt: skip
    took = {node.node: node.ms for node in profile_of(events).nodes}
    assert took == {"loop": 0.04, "inner": 0.01, "x": 0.04, "after": 0.01}
    with pytest.raises(ValueError, match="one run or more"):
        profile_of(events, warm_up=1)


def test_a_bundle_is_shown_with_every_node_of_its_profile(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    text = cli(0, "inspect", folder, "--profile", "--runs", "3").out
    for expected in ("tiny 1, built", "model.int8.ort", "compatible with this machine", "nodes on CPU", "Softmax"):
        assert expected in text
    document = msgspec.json.decode(cli(0, "inspect", folder, "--profile", "--runs", "3", "--json").out)
    bundle, profile = document["bundle"], document["run"]["profile"]
    assert (bundle["digest"], bundle["labels"], bundle["signature"]) == (Bundle.open(folder).digest, 2, "none")
    assert {"Conv", "Softmax", "GlobalAveragePool"} <= {o["operator"] for o in profile["operators"]}
    times = [node["ms"] for node in profile["nodes"]]
    assert (profile["runs"], times) == (3, sorted(times, reverse=True))
    assert {node["provider"] for node in profile["nodes"]} == {"CPUExecutionProvider"}
    assert sum(node["share"] for node in profile["nodes"]) == pytest.approx(1)
    assert 0 < sum(times) <= profile["run_ms"] * 1.5
    edit_manifest(folder, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert "CUDAExecutionProvider was asked for and is not used: not in this" in cli(0, "inspect", folder).out


def test_a_bundle_for_another_machine_is_shown_and_not_run(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    edit_manifest(folder, machine="aarch64" if Bundle.open(folder).manifest.machine == "x86_64" else "x86_64")
    assert "this machine is" in cli(0, "inspect", folder).out
    cli(6, "inspect", folder, "--profile")


def test_what_is_said_of_the_signature(tmp_path: Path, cli: Cli) -> None:
    folder, key = write_real_bundle(tmp_path / "a.edge", MODEL), tmp_path / "fleet.key"
    cli(0, "keygen", key)
    cli(0, "sign", folder, "--key", key)
    for trust, expected in (((), "not checked"), (("--trust", f"{key}.pub"), "by a trusted key")):
        assert expected in cli(0, "inspect", folder, *trust).out


def test_the_graph_is_written_once(tmp_path: Path, cli: Cli) -> None:
    folder, graph = write_real_bundle(tmp_path / "a.edge", MODEL), tmp_path / "graph.onnx"
    cli(0, "inspect", folder, "--graph", graph)
    operators = {node.op_type for node in onnx.load(graph).graph.node}
    assert operators & {"Softmax", "Relu"} == {"Softmax"}  # Relu is fused: it is the graph as it runs
    before = graph.read_bytes()
    assert "nothing is ever overwritten" in cli(2, "inspect", folder, "--graph", graph).err
    assert "inside of a bundle" in cli(2, "inspect", folder, "--graph", f"{folder}/graph.onnx").err
    assert graph.read_bytes() == before
    cli(2, "inspect", folder, "--graph", tmp_path / "graph.txt")
    cli(1, "inspect", folder, "--graph", tmp_path / "nowhere/graph.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.edge", "graph.onnx"]


def test_a_reduced_runtime_is_shown_and_refuses_what_it_lacks(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    (tmp_path / "capi").mkdir()
    monkeypatch.setattr("onnxruntime.__file__", str(tmp_path / "__init__.py"))
    for text, expected, shown in (
        (b'{"operators": ["ai.onnx:Relu"], "operator_sets": []}', r"here has no ai\.onnx:", "reduced to 1 operators"),
        (b"{}", "cannot be read", ""),
    ):
        (tmp_path / "capi" / REDUCED_FILE).write_bytes(text)
        assert re.search(expected, cli(6, "inspect", folder, "--profile").err)
        assert shown in cli(0 if shown else 6, "inspect", folder).out
    (tmp_path / "capi" / REDUCED_FILE).write_text('{"operators": [], "operator_sets": []}')
    monkeypatch.setattr(trial, "check_device", Mock())  # as if it said that it had all
    monkeypatch.setattr(trial, "prove_here", Mock(side_effect=IncompatibleError("no kernel for Conv")))
    assert "no kernel for Conv" in cli(0, "inspect", folder).out
    assert "no kernel for Conv" in cli(6, "run", folder, "--source", "pattern", "--check").err
