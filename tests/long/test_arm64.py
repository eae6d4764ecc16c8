"""Bundles built here run on a Raspberry Pi 4 and 5: the real device install, real aarch64 programs, an emulated CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions, version
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from onnx import ModelProto
from packaging.utils import canonicalize_name

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost.counter import CORES, Core, Counter
from edge_sdk_tools.arm_cost.installation import unpack_wheels
from tests.support.absent import Cache
from tests.support.broker import Broker, Received, Subscriber
from tests.support.models import parsed
from tests.support.projects import CLASSIFIER, DETECTOR, write_pictures, write_project

pytestmark = [pytest.mark.system, pytest.mark.arm64]
CHECKOUT = Path(__file__).parents[2]
REPLAY = Path(__file__).parents[1] / "support" / "arm64_replay.py"
PICTURES = 3

# The board, which `arm-cost` emulates, and what `pip install edge-sdk` leaves there, made here from aarch64 wheels.

_OLDEST_GLIBC = 17


class Board(NamedTuple):
    command: list[str]
    environment: dict[str, str]
    site: Path

    @classmethod
    def of(cls, counter: Counter, core: Core, ours: Path, site: Path) -> Board:
        *before, python = counter.board_python(core.model)
        # Bytecode is slow to make there.
        paths = {"PYTHONPATH": f"{ours}:{site}", "PYTHONPYCACHEPREFIX": str(site.parent / "compiled")}
        given = [part for name, path in paths.items() for part in ("-E", f"{name}={path}")]
        return cls([*before, *given, python], counter.environment, site)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with `arguments` to its end, in `/`: in the checkout, `-m` would take the packages from there."""
        return subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def checked(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.command}: exit code {done.returncode}: {done.stderr}"
        return done.stdout


def _install(fresh: Path, wheel: Path, python: str) -> None:
    """This wheel and all that it requires, for the board's Python."""
    glibc, machine = load_target("raspberry_pi_4").wheel_platform.removeprefix("manylinux_2_").split("_", 1)
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(int(glibc), _OLDEST_GLIBC - 1, -1)]
    tags = [part for name in (*platforms, f"manylinux2014_{machine}") for part in ("--platform", name)]
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--no-compile", *tags]
    pins = ["--constraint", str(CHECKOUT / "constraints.txt"), f"onnxruntime=={version('onnxruntime')}"]
    _pip("install", "--target", str(fresh / "site"), *options, *pins, str(wheel))


def _pip(verb: str, *arguments: str) -> None:
    _on_host("-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments)


# Two small networks with fixed random weights, and pictures to calibrate and run them on: nothing to download.
#
# Their INT8 results must be the same on every CPU. x86 without VNNI adds products of two neighbouring weights in 16
# bits, which overflow at 255 * (w0 + w1) > 32767; so every output channel has one weight of 1 with zeros beside it, and
# the others reach half of that at most: quantized to 127 and 64, no pair can overflow.

# Random weights agree with nothing: what is tested is that the same tensors come out, not that they mean something.
_GATES = "[gates]\nint8_min_agreement = 0.0\n"


def _network(text: str, side: int, outputs: dict[str, list[int]], **shapes: tuple[int, ...]) -> ModelProto:
    """`shapes` are those of the weights of layers; each has its bias, whose name ends in `_bias`."""
    random, weights = np.random.default_rng(1), dict[str, np.ndarray]()
    for name, shape in shapes.items():
        weight = np.clip(random.normal(0, 0.2, (*shape[:2], math.prod(shape[2:]))), -0.5, 0.5)
        weight[:, 0, 0] = 1.0
        weight[:, 1:2, 0] = 0.0
        weight[:, 0, 1:2] = 0.0
        weight *= np.sqrt(2.0 / np.square(weight).sum(axis=(1, 2), keepdims=True))
        weights[name] = weight.reshape(shape).astype(np.float32)
        weights[f"{name}_bias"] = random.normal(0, 0.1, shape[0]).astype(np.float32)
    return parsed(text, outputs, weights, shape=[1, 3, side, side])


def _write_classifier(folder: Path) -> Path:
    """A classifier with a residual branch; returns its model.toml."""
    text = """stem = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1, w1_bias) seen = Relu(stem)
        branch = Conv<pads=[1,1,1,1]>(seen, w2, w2_bias) passed = Relu(branch) back = Conv(passed, w3, w3_bias)
        sum = Add(seen, back) joined = Relu(sum)
        deep = Conv<pads=[1,1,1,1], strides=[2,2]>(joined, w4, w4_bias) features = Relu(deep)
        pooled = GlobalAveragePool(features) flat = Flatten(pooled) logits = Gemm<transB=1>(flat, w5, w5_bias)"""
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 16, 1, 1), "w4": (48, 16, 3, 3), "w5": (3, 48)}
    model = _network(text, 64, {"logits": [1, 3]}, **shapes)
    description = CLASSIFIER.replace("softmax", "logits").replace("[16, 16]", "[64, 64]")
    return write_project(folder, description + _GATES, model, pictures=16)


def _write_detector(folder: Path) -> Path:
    text = """c1 = Conv<pads=[1,1,1,1], strides=[2,2]>(images, w1, w1_bias) a1 = LeakyRelu<alpha=0.1>(c1)
        half = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a1)
        c2 = Conv<pads=[1,1,1,1], strides=[2,2]>(half, w2, w2_bias) a2 = LeakyRelu<alpha=0.1>(c2)
        c3 = Conv<pads=[1,1,1,1], strides=[2,2]>(a2, w3, w3_bias) a3 = LeakyRelu<alpha=0.1>(c3)
        c4 = Conv<pads=[1,1,1,1], strides=[2,2]>(a3, w4, w4_bias) a4 = LeakyRelu<alpha=0.1>(c4)
        fine = Conv(a3, w5, w5_bias) coarse = Conv(a4, w6, w6_bias)"""
    shapes = {"w1": (16, 3, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, 32, 3, 3), "w4": (64, 32, 3, 3)}
    shapes |= {"w5": (14, 32, 1, 1), "w6": (14, 64, 1, 1)}
    model = _network(text, 96, {"fine": [1, 14, 6, 6], "coarse": [1, 14, 3, 3]}, **shapes)
    anchors = "[[[12, 16], [24, 20]], [[40, 48], [64, 64]]]"
    description = DETECTOR.replace("[[[16, 16]]]", anchors).replace("[64, 64]", "[96, 96]", 1)
    return write_project(folder, description + _GATES, model, labels="red\nblue\n", pictures=16)


# Tests.

TARGET_OF = {load_target(name).cpu: name for name in ("raspberry_pi_4", "raspberry_pi_5")}
"""Names of targets by core, in qemu's spelling."""
MODELS = {"classification": _write_classifier, "detection": _write_detector}
on_each_board = pytest.mark.parametrize("name", list(TARGET_OF))


class Facts(msgspec.Struct, frozen=True):
    machine: str
    cpu_parts: list[str]
    dot_product: bool
    modules: list[str]


class Answer(NamedTuple):
    facts: Facts
    tensors: dict[str, Tensor]


@pytest.fixture(scope="module")
def boards(counter: Counter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Board]:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT))
    [wheel] = folder.glob("*.whl")
    python = counter.recipe.python
    recipe = [(CHECKOUT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    recipe += [python.encode(), version("onnxruntime").encode()]
    kept = Cache(CHECKOUT / ".cache" / "arm64").folder_of(
        "device", recipe, lambda fresh: _install(fresh, wheel, python)
    )
    unpack_wheels([wheel], folder / "ours")  # before what is kept, whose sources may be older
    return {core.model: Board.of(counter, core, folder / "ours", kept / "site") for core in CORES}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Bundles by target and task, built by the command on this machine."""
    built = {}
    for task, write in MODELS.items():
        folder = tmp_path_factory.mktemp(task)
        description = write(folder / "project")
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

    runs: dict[str, Callable[..., str]] = {name: board.checked for name, board in boards.items()}
    runs["host"] = _on_host
    with ThreadPoolExecutor() as pool:
        return dict(zip(runs, pool.map(ask, runs.keys(), runs.values()), strict=True))


def test_the_device_install_has_nothing_of_the_workstation(boards: dict[str, Board]) -> None:
    site = next(iter(boards.values())).site
    installed = {canonicalize_name(found.metadata["Name"]) for found in distributions(path=[str(site)])}
    assert {"edge-sdk", "numpy", "onnxruntime", "opencv-python-headless"} <= installed
    assert not {"onnx", "torch", "rich", "matplotlib", "sympy"} & installed


@on_each_board
def test_every_module_imports_on_an_arm64_board(answers: dict[str, Answer], name: str) -> None:
    files = (path.relative_to(CHECKOUT).with_suffix("") for path in (CHECKOUT / "edge_sdk").rglob("*.py"))
    modules = {".".join(p.parts).removesuffix(".__init__") for p in files} - {"edge_sdk", "edge_sdk.__main__"}
    facts = answers[name].facts
    assert (set(facts.modules), facts.machine) == (modules, "aarch64")


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.model)
def test_the_emulated_cpu_is_the_target_s(answers: dict[str, Answer], core: Core) -> None:
    facts = answers[core.model].facts
    assert facts.cpu_parts == [core.part]
    assert facts.dot_product == ("asimddp" in core.features)


@on_each_board
def test_the_command_runs_and_sends_builders_to_the_workstation(boards: dict[str, Board], name: str) -> None:
    assert "raspberry_pi_5" in boards[name].checked("-m", "edge_sdk", "targets")
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
    pictures = write_pictures(tmp_path / "pictures", PICTURES + 2, first=100)
    bundle = bundles[TARGET_OF[name], task]
    with Broker(tmp_path) as broker, Subscriber(broker) as subscriber:
        arguments = ["--source", str(pictures), "--mqtt", broker.url, "--frames", str(PICTURES), "--device", "board"]
        # The emulator runs one program, and no other Python of its board beside it.
        arguments += ["--trial-seconds", "0"]
        boards[name].checked("-m", "edge_sdk", "run", str(bundle), *arguments)
        subscriber.wait_for(lambda messages: "offline" in _statuses(messages), "the board's goodbye")
        results = [json.loads(message.payload) for message in subscriber.messages("/result/camera")]
        *online, goodbye = _statuses(subscriber.messages())
        assert (set(online), goodbye) == ({"online"}, "offline")
    assert [result["seq"] for result in results] == list(range(PICTURES))
    assert {result["task"] for result in results} == {task}
    assert {result["model"]["sha256"] for result in results} == {Bundle.open(bundle).digest}
    assert all(result["frame"] == {"width": 48, "height": 40} for result in results)
    assert any(result.get("detections") or result.get("classes") for result in results)


def _on_host(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout


def _statuses(messages: list[Received]) -> list[str]:
    return [json.loads(message.payload)["status"] for message in messages if message.topic.endswith("/status")]
