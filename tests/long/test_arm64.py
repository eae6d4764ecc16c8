"""Bundles built here run on a Raspberry Pi 4 and 5: the real device install, real aarch64 programs, an emulated CPU.

On an arm64 machine the same tests run without the emulator, on its own CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost.counter import CORES, CORTEX_A72, Core
from tests.support.arm64 import (
    BOARD_OF,
    Board,
    DeviceInstall,
    find_emulator,
    installed,
    is_native,
    make_roots,
    sizes_mb,
    write_classifier,
    write_detector,
    write_pictures,
)
from tests.support.arm64_replay import HOST_ONLY
from tests.support.broker import Broker, Received, Subscriber
from tests.support.cache import Cache

pytestmark = [pytest.mark.system, pytest.mark.arm64]
CHECKOUT = Path(__file__).parents[2]
REPLAY = Path(__file__).parents[1] / "support" / "arm64_replay.py"
TARGET_OF = {"aarch64": BOARD_OF[CORTEX_A72.model]} if is_native() else BOARD_OF
MODELS = {"classification": write_classifier, "detection": write_detector}
PICTURES = 3
on_each_board = pytest.mark.parametrize("name", list(TARGET_OF))


class Facts(msgspec.Struct, frozen=True):
    """What replay.py said about where it ran."""

    machine: str
    cpu_parts: list[str]
    dot_product: bool
    modules: dict[str, str]
    host_only: list[str]


class Answer(NamedTuple):
    """What replay.py said, and the tensors it left."""

    facts: Facts
    tensors: dict[str, Tensor]


@pytest.fixture(scope="module")
def cache() -> Cache:
    return Cache(CHECKOUT / ".cache" / "arm64")


@pytest.fixture(scope="module")
def boards(cache: Cache) -> dict[str, Board]:
    """Boards by name, with the device install."""
    bare = _bare_boards(cache)
    site = DeviceInstall(CHECKOUT, bare[0], BOARD_OF[CORTEX_A72.model]).make(cache)
    return {board.name: board.with_install(site) for board in bare}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Bundles by target and task, built by the command on this machine."""
    built = {}
    for task, write in MODELS.items():
        folder = tmp_path_factory.mktemp(task)
        description = write(folder)
        for target in TARGET_OF.values():
            bundle = folder / f"{target}.edge"
            _on_host("-m", "edge_sdk", "build", str(description), "--target", target, "--fresh", "-o", str(bundle))
            built[target, task] = bundle
    return built


@pytest.fixture(scope="module")
def answers(
    boards: dict[str, Board], bundles: dict[tuple[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answer]:
    """What each board, and under `host` this machine, makes of the golden inputs of the same bundles."""
    folder = tmp_path_factory.mktemp("replayed")

    def ask(name: str, run: Callable[..., str]) -> Answer:
        out = folder / f"{name}.npz"
        facts = msgspec.json.decode(run(str(REPLAY), str(out), *map(str, bundles.values())), type=Facts)
        with np.load(out) as tensors:
            return Answer(facts, dict(tensors))

    runs: dict[str, Callable[..., str]] = {name: _checked(board) for name, board in boards.items()}
    runs["host"] = _on_host
    with ThreadPoolExecutor() as pool:
        return dict(zip(runs, pool.map(ask, runs.keys(), runs.values()), strict=True))


def test_the_device_install_has_nothing_of_the_workstation(boards: dict[str, Board]) -> None:
    site = Path(next(iter(boards.values())).environment["PYTHONPATH"])
    sizes = sizes_mb(site)
    assert {"edge-sdk", "numpy", "onnxruntime", "opencv-python-headless"} <= set(sizes)
    assert not set(HOST_ONLY) & set(installed(site))
    assert all(size > 0 for size in sizes.values())


@on_each_board
def test_every_module_imports_on_an_arm64_board(answers: dict[str, Answer], name: str) -> None:
    files = (path.relative_to(CHECKOUT).with_suffix("") for path in (CHECKOUT / "edge_sdk").rglob("*.py"))
    modules = {".".join(p.parts).removesuffix(".__init__") for p in files} - {"edge_sdk", "edge_sdk.__main__"}
    facts = answers[name].facts
    assert facts.modules == dict.fromkeys(modules, "")
    assert (facts.host_only, facts.machine) == ([], "aarch64")


@pytest.mark.skipif(is_native(), reason="this machine is the board: there is no emulated CPU to look at")
@pytest.mark.parametrize("core", CORES, ids=lambda core: core.model)
def test_the_emulated_cpu_is_the_target_s(answers: dict[str, Answer], core: Core) -> None:
    facts = answers[core.model].facts
    assert facts.cpu_parts == [core.part]
    assert facts.dot_product == ("asimddp" in core.features)


@on_each_board
def test_the_command_runs_and_sends_builders_to_the_workstation(boards: dict[str, Board], name: str) -> None:
    assert "raspberry_pi_5" in _checked(boards[name])("-m", "edge_sdk", "targets")
    done = boards[name].run("-m", "edge_sdk", "build", "model.toml", "--target", "arm64")
    assert done.returncode == 8
    assert ".[host]" in done.stderr


@on_each_board
@pytest.mark.parametrize("task", list(MODELS))
def test_golden_inputs_give_the_same_int8_tensors_as_here(
    answers: dict[str, Answer], bundles: dict[tuple[str, str], Path], name: str, task: str
) -> None:
    bundle = Bundle.open(bundles[TARGET_OF[name], task])
    key = f"{bundle.path}/"
    here, there = ({k: v for k, v in answers[n].tensors.items() if k.startswith(key)} for n in ("host", name))
    outputs = [tensor for k, tensor in here.items() if "/output_" in k]
    assert len(outputs) >= bundle.manifest.variants[0].golden.count
    assert all(len(np.unique(tensor)) <= 256 for tensor in outputs), "a float tensor, expected INT8 times its scale"
    assert {k: v.shape for k, v in there.items()} == {k: v.shape for k, v in here.items()}
    assert {k: int((there[k] != here[k]).sum()) for k in here} == dict.fromkeys(here, 0)


@on_each_board
@pytest.mark.parametrize("task", list(MODELS))
def test_run_publishes_what_it_sees(
    boards: dict[str, Board], bundles: dict[tuple[str, str], Path], tmp_path: Path, name: str, task: str
) -> None:
    pictures = write_pictures(tmp_path / "pictures", PICTURES + 2, seed=5)
    bundle = bundles[TARGET_OF[name], task]
    with Broker(tmp_path) as broker, Subscriber(broker) as subscriber:
        arguments = ["--source", str(pictures), "--mqtt", broker.url, "--frames", str(PICTURES), "--device", "board"]
        # The emulator runs one program, and no other Python of its board beside it.
        arguments += ["--trial-seconds", "0"]
        _checked(boards[name])("-m", "edge_sdk", "run", str(bundle), *arguments)
        subscriber.wait_for(lambda messages: "offline" in _statuses(messages), "the board's goodbye")
        results = [json.loads(message.payload) for message in subscriber.messages("/result/camera")]
        *online, goodbye = _statuses(subscriber.messages())
        assert (set(online), goodbye) == ({"online"}, "offline")
    assert [result["seq"] for result in results] == list(range(PICTURES))
    assert {result["task"] for result in results} == {task}
    assert {result["model"]["sha256"] for result in results} == {Bundle.open(bundle).digest}
    assert all(result["frame"] == {"width": 160, "height": 120} for result in results)
    assert any(result.get("detections") or result.get("classes") for result in results)


def _bare_boards(cache: Cache) -> list[Board]:
    if is_native():
        return [Board.native()]
    find_emulator()
    return [Board.emulated(core, root) for core, root in make_roots(cache).items()]


def _checked(board: Board) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        done = board.run(*arguments)
        assert done.returncode == 0, f"{board.name}: exit code {done.returncode}: {done.stderr}"
        return done.stdout

    return run


def _on_host(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout


def _statuses(messages: list[Received]) -> list[str]:
    return [json.loads(message.payload)["status"] for message in messages if message.topic.endswith("/status")]
