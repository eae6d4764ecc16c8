"""Bundles built here run on a Raspberry Pi 4 and 5: the real device install, real aarch64 programs, an emulated CPU.

On an arm64 machine the same tests run without the emulator, on its own CPU.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions, version
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from onnx import ModelProto
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import MissingDependencyError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost import counter, installation
from edge_sdk_tools.arm_cost.counter import CORES, CORTEX_A72, Core
from tests.support.absent import Cache, not_installed
from tests.support.broker import Broker, Received, Subscriber
from tests.support.models import parsed
from tests.support.projects import CLASSIFIER, DETECTOR, write_pictures, write_project

pytestmark = [pytest.mark.system, pytest.mark.arm64]
CHECKOUT = Path(__file__).parents[2]
REPLAY = Path(__file__).parents[1] / "support" / "arm64_replay.py"
PICTURES = 3

# Sysroot: an arm64 Python of this machine's own release in a folder, and one root for each core to run it under.

PACKAGES = ("python3", "libstdc++6", "libgomp1")
_UBUNTU_SOURCES = "".join(
    "deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://ports.ubuntu.com/ubuntu-ports "
    f"{{codename}}{pocket} main universe\n"
    for pocket in ("", "-updates", "-security")
)


def make_roots(cache: Cache) -> dict[Core, Path]:
    """The root folder of each core: the same Debian below, a kernel that names another CPU on top."""
    release = _release()
    modules = (Path(str(module.__file__)).read_bytes() for module in (counter, installation))
    recipe = (inspect.getsource(_fill).encode(), *modules, repr((PACKAGES, release)).encode())
    try:
        folder = cache.folder_of("debian", recipe, lambda fresh: _fill(fresh, release))
    except MissingDependencyError as cause:
        not_installed(str(cause))
    return {each: folder / each.model for each in CORES}


def _release() -> tuple[str, str]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        not_installed("this system has no os-release, expected Debian or Ubuntu")
    return release.get("ID", ""), release.get("VERSION_CODENAME", "")


def _fill(folder: Path, release: tuple[str, str]) -> None:
    state = folder / "apt"
    fetched = installation.Apt("arm64", state, state / "archives", _sources(release)).download(PACKAGES)
    installation.make_system(folder / "system", fetched)
    shutil.rmtree(state)
    for each in CORES:
        installation.lay_root(folder / each.model, folder / "system", each)


def _sources(release: tuple[str, str]) -> str:
    """Debian's own servers have every architecture, Ubuntu keeps arm64 on others."""
    distribution, codename = release
    return _UBUNTU_SOURCES.format(codename=codename) if distribution == "ubuntu" else ""


# Board: runs Python programs as a device would, on an emulated core or, on an arm64 machine, on its own.

_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
_WHO = "import platform; print(platform.python_version(), platform.machine())"


def is_native() -> bool:
    return platform.machine() == "aarch64"


def find_emulator() -> str:
    found = next((path for name in _EMULATORS if (path := shutil.which(name))), None)
    if found is None:
        not_installed("no qemu-aarch64-static, expected Debian's package qemu-user-static")
    return found


@dataclass(frozen=True)
class Board:
    name: str
    interpreter: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})

    @classmethod
    def emulated(cls, core: Core, root: Path) -> Board:
        """A board whose CPU is `core` and whose system lies in `root`."""
        emulator = (find_emulator(), "-cpu", core.model, "-L", str(root))
        return cls(core.model, (*emulator, str(root / "usr/bin/python3")))

    @classmethod
    def native(cls) -> Board:
        return cls(platform.machine(), (sys.executable, "-S"))

    def with_install(self, site: Path) -> Board:
        """The same board with the packages of `site`; their bytecode is kept beside it, being slow to make."""
        paths = {"PYTHONPATH": str(site), "PYTHONPYCACHEPREFIX": str(site.parent / "compiled")}
        return replace(self, environment={**self.environment, **paths})

    def run(self, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run Python with `arguments` to its end, in `/`: in the checkout, `-m` would take the packages from there."""
        return subprocess.run(
            [*self.interpreter, *arguments],
            env=dict(self.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def checked(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.name}: exit code {done.returncode}: {done.stderr}"
        return done.stdout


# The device install: the folder that `pip install edge-sdk` leaves on a board, made here from aarch64 wheels.

_SOURCES = ("edge_sdk", "tools/edge_sdk_tools", "targets")
_OLDEST_GLIBC = 17


class DeviceInstall:
    def __init__(self, board: Board, target: str) -> None:
        self._version, self._machine = board.checked("-c", _WHO).split()
        self._tags = [] if is_native() else _pip_tags(self._version, load_target(target).wheel_platform)

    def make(self, cache: Cache) -> Path:
        """The site folder; from the cache when neither the sources nor the pinned versions changed."""
        settings = " ".join([self._version, self._machine, *self._tags, *self._constraints()])
        code = inspect.getsource(DeviceInstall) + inspect.getsource(_pip)
        recipe = [code.encode(), settings.encode(), (CHECKOUT / "pyproject.toml").read_bytes()]
        sources = [part for path in self._source_files() for part in (str(path).encode(), path.read_bytes())]
        folder = cache.folder_of("device", [*recipe, *sources], lambda fresh: self._fill(fresh, cache, recipe))
        return folder / "site"

    def _fill(self, folder: Path, cache: Cache, recipe: Iterable[bytes]) -> None:
        site, scratch = folder / "site", folder / "wheel"
        _pip("wheel", "--no-deps", "--wheel-dir", str(scratch), str(CHECKOUT))
        [wheel] = scratch.glob("*.whl")
        self._install(site, [wheel])
        # Linked, not copied: 220 MB that stay the same while the sources change.
        others = cache.folder_of("dependencies", recipe, lambda fresh: self._install_dependencies(fresh, wheel))
        shutil.copytree(others, site, copy_function=os.link, dirs_exist_ok=True)

    def _install_dependencies(self, site: Path, wheel: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            self._download(Path(scratch), wheel)
            self._install(site, sorted(Path(scratch).glob("*.whl")))

    def _install(self, site: Path, wheels: Iterable[Path]) -> None:
        # Bytecode of this machine's Python would be of no use on the board, whose pip makes its own.
        # pip holds a wheel in a file against this machine's Python; the download held it against the board's.
        options = ("--no-deps", "--no-index", "--no-compile", "--ignore-requires-python", "--target", str(site))
        _pip("install", *options, *self._tags, *map(str, wheels))

    def _download(self, folder: Path, wheel: Path) -> None:
        """Fetch what `wheel` requires, then what that requires, until nothing new comes up."""
        pins = folder / "constraints.txt"
        pins.write_text("".join(f"{line}\n" for line in self._constraints()))
        options = ("--no-deps", "--dest", str(folder), "--constraint", str(pins), *self._tags)
        found: set[str] = set()
        pending = self._requirements_of(wheel)
        while pending := {name: text for name, text in pending.items() if name not in found}:
            _pip("download", *options, *pending.values())
            found.update(pending)
            arrived = folder.glob("*.whl")
            pending = {name: text for item in arrived for name, text in self._requirements_of(item).items()}

    def _requirements_of(self, wheel: Path) -> dict[str, str]:
        """What a wheel requires on the board: name to requirement without its marker."""
        [distribution] = distributions(path=[str(wheel)])
        return self._that_apply(distribution.requires or [])

    def _constraints(self) -> Iterable[str]:
        """The pinned versions as the board's Python reads them, but for ONNX Runtime."""
        lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
        pins = self._that_apply(line for line in lines if line and not line.startswith("#"))
        return {**pins, "onnxruntime": f"onnxruntime=={version('onnxruntime')}"}.values()

    def _that_apply(self, lines: Iterable[str]) -> dict[str, str]:
        environment = {
            **{key: str(value) for key, value in default_environment().items()},
            "python_version": ".".join(self._version.split(".")[:2]),
            "python_full_version": self._version,
            "implementation_version": self._version,
            "platform_machine": self._machine,
            "extra": "",
        }
        applying: dict[str, str] = {}
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                requirement.marker = None
                applying[canonicalize_name(requirement.name)] = str(requirement)
        return applying

    def _source_files(self) -> list[Path]:
        found = (path for folder in _SOURCES for path in (CHECKOUT / folder).rglob("*") if path.is_file())
        return sorted(path for path in found if "__pycache__" not in path.parts)


def _pip_tags(python: str, platform: str) -> list[str]:
    """pip's options for another machine's wheels: that platform tag and the older ones, which it also runs."""
    glibc, machine = platform.removeprefix("manylinux_2_").split("_", 1)
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(int(glibc), _OLDEST_GLIBC - 1, -1)]
    platforms.append(f"manylinux2014_{machine}")
    tags = ["--only-binary=:all:", "--implementation", "cp", "--python-version", ".".join(python.split(".")[:2])]
    return [*tags, *(part for name in platforms for part in ("--platform", name))]


def _pip(verb: str, *arguments: str) -> None:
    command: Sequence[str] = (sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"pip {verb} failed: {done.stderr.strip()}")


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

BOARD_OF = {load_target(name).cpu: name for name in ("raspberry_pi_4", "raspberry_pi_5")}
"""Names of targets by core, in qemu's spelling."""
TARGET_OF = {"aarch64": BOARD_OF[CORTEX_A72.model]} if is_native() else BOARD_OF
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
def cache() -> Cache:
    return Cache(CHECKOUT / ".cache" / "arm64")


@pytest.fixture(scope="module")
def boards(cache: Cache) -> dict[str, Board]:
    bare = [Board.native()]
    if not is_native():
        find_emulator()
        bare = [Board.emulated(core, root) for core, root in make_roots(cache).items()]
    site = DeviceInstall(bare[0], BOARD_OF[CORTEX_A72.model]).make(cache)
    return {board.name: board.with_install(site) for board in bare}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Bundles by target and task, built by the command on this machine."""
    built = {}
    for task, write in MODELS.items():
        folder = tmp_path_factory.mktemp(task)
        description = write(folder / "project")
        for target in TARGET_OF.values():
            bundle = folder / f"{target}.edge"
            on_host("-m", "edge_sdk", "build", str(description), "--target", target, "--fresh", "-o", str(bundle))
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
    runs["host"] = on_host
    with ThreadPoolExecutor() as pool:
        return dict(zip(runs, pool.map(ask, runs.keys(), runs.values()), strict=True))


def test_the_device_install_has_nothing_of_the_workstation(boards: dict[str, Board]) -> None:
    site = next(iter(boards.values())).environment["PYTHONPATH"]
    installed = {canonicalize_name(distribution.metadata["Name"]) for distribution in distributions(path=[site])}
    assert {"edge-sdk", "numpy", "onnxruntime", "opencv-python-headless"} <= installed
    assert not {"onnx", "torch", "rich", "matplotlib", "sympy"} & installed


@on_each_board
def test_every_module_imports_on_an_arm64_board(answers: dict[str, Answer], name: str) -> None:
    files = (path.relative_to(CHECKOUT).with_suffix("") for path in (CHECKOUT / "edge_sdk").rglob("*.py"))
    modules = {".".join(p.parts).removesuffix(".__init__") for p in files} - {"edge_sdk", "edge_sdk.__main__"}
    facts = answers[name].facts
    assert (set(facts.modules), facts.machine) == (modules, "aarch64")


@pytest.mark.skipif(is_native(), reason="this machine is the board: there is no emulated CPU to look at")
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


def on_host(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout


def _statuses(messages: list[Received]) -> list[str]:
    return [json.loads(message.payload)["status"] for message in messages if message.topic.endswith("/status")]
