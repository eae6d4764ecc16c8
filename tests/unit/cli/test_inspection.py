"""`edge-sdk inspect`: what a bundle is, where its time goes, the graph as it runs."""

import re
from pathlib import Path

import msgspec
import onnx
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import REDUCED_FILE
from edge_sdk.inference.profile import ProfileEvent, profile_of
from tests.support import models as tiny
from tests.support.bundles import edit_manifest, write_real_bundle
from tests.support.program import Cli

MODEL = tiny.classifier(classes=2)


def _kernel(
    name: str, operator: str, start: int, duration: int, provider: str = "CPUExecutionProvider"
) -> ProfileEvent:
    return ProfileEvent(f"{name}_kernel_time", start, duration, 1, {"op_name": operator, "provider": provider})


def test_times_are_medians_of_runs_and_shares_of_all_nodes() -> None:
    events = []
    for start, factor in ((0, 100), (1000, 1), (2000, 2), (3000, 30)):  # the first run warms up
        events += [
            ProfileEvent("model_run", start, 8 * factor, 1),
            _kernel("a", "Conv", start, 4 * factor),
            _kernel("b", "Conv", start + 4 * factor, 2 * factor),
            _kernel("c", "Relu", start + 6 * factor, 2 * factor, "CUDAExecutionProvider"),
        ]
    profile = profile_of(events, warm_up=1)
    assert (profile.runs, profile.run_ms) == (3, 0.016)
    assert [(n.node, n.ms, n.share) for n in profile.nodes] == [
        ("a", 0.008, 0.5),
        ("b", 0.004, 0.25),
        ("c", 0.004, 0.25),
    ]
    assert [(o.operator, o.provider, o.nodes, o.share) for o in profile.operators] == [
        ("Conv", "CPUExecutionProvider", 2, 0.75),
        ("Relu", "CUDAExecutionProvider", 1, 0.25),
    ]


def test_a_loop_does_not_count_what_its_body_takes() -> None:
    events = [
        ProfileEvent("model_run", 0, 100, 1),
        _kernel("loop", "Loop", 0, 90),
        _kernel("inner", "If", 10, 30),
        _kernel("x", "Relu", 12, 20),
        _kernel("x", "Relu", 50, 20),
        _kernel("after", "Conv", 90, 10),
    ]
    took = {node.node: node.ms for node in profile_of(events).nodes}
    assert took == {"loop": 0.04, "inner": 0.01, "x": 0.04, "after": 0.01}
    with pytest.raises(ValueError, match="one run or more"):
        profile_of(events, warm_up=1)


def test_a_bundle_is_shown_with_every_node_of_its_profile(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    text = cli(0, "inspect", folder, "--profile", "--runs", "3").out
    for expected in ("tiny 1, built", "model.int8.ort", "nothing speaks against it", "nodes on CPU", "Softmax"):
        assert expected in text
    document = msgspec.json.decode(cli(0, "inspect", folder, "--profile", "--runs", "3", "--json").out)
    bundle, profile = document["bundle"], document["run"]["profile"]
    assert (bundle["digest"], bundle["labels"], bundle["signature"]) == (Bundle.open(folder).digest, 2, "none")
    assert profile["runs"] == 3
    assert {"Conv", "Softmax", "GlobalAveragePool"} <= {o["operator"] for o in profile["operators"]}
    times = [node["ms"] for node in profile["nodes"]]
    assert times == sorted(times, reverse=True)
    assert {node["provider"] for node in profile["nodes"]} == {"CPUExecutionProvider"}
    assert sum(node["share"] for node in profile["nodes"]) == pytest.approx(1)
    assert 0 < sum(times) <= profile["run_ms"] * 1.5


def test_a_bundle_for_another_machine_is_shown_and_not_run(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    edit_manifest(folder, machine="aarch64" if Bundle.open(folder).manifest.machine == "x86_64" else "x86_64")
    assert "this machine is" in cli(0, "inspect", folder).out
    cli(6, "inspect", folder, "--profile")


def test_what_is_said_of_the_signature(tmp_path: Path, cli: Cli) -> None:
    folder = write_real_bundle(tmp_path / "a.edge", MODEL)
    cli(0, "keygen", tmp_path / "fleet.key")
    public = tmp_path / "fleet.key.pub"
    cli(7, "inspect", folder, "--trust", public)
    cli(0, "sign", folder, "--key", tmp_path / "fleet.key")
    for trust, expected in (((), "not checked"), (("--trust", str(public)), "by a trusted key")):
        assert expected in cli(0, "inspect", folder, *trust).out


def test_the_graph_is_written_once(tmp_path: Path, cli: Cli) -> None:
    folder, graph = write_real_bundle(tmp_path / "a.edge", MODEL), tmp_path / "graph.onnx"
    cli(0, "inspect", folder, "--graph", graph)
    operators = [node.op_type for node in onnx.load(graph).graph.node]
    assert "Softmax" in operators
    assert "Relu" not in operators  # fused: it is the graph as it runs
    before = graph.read_bytes()
    assert "a graph is never overwritten" in cli(2, "inspect", folder, "--graph", graph).err
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
