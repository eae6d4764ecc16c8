"""Emulated ARM boards: a sysroot, the device install made from aarch64 wheels, and two small networks."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import MissingDependencyError
from edge_sdk_tools.arm_cost import counter, installation
from edge_sdk_tools.arm_cost.counter import CORES, Core
from tests.support.absent import not_installed
from tests.support.cache import Cache

# Which target's board has which core.

BOARD_OF = {load_target(name).cpu: name for name in ("raspberry_pi_4", "raspberry_pi_5")}
"""Names of targets by core, in qemu's spelling."""


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
    recipe = (Path(__file__).read_bytes(), *modules, repr(release).encode())
    try:
        folder = cache.folder_of("debian", recipe, lambda fresh: _fill(fresh, release))
    except MissingDependencyError as cause:
        not_installed(str(cause))
    return {each: folder / each.model for each in CORES}


def _release() -> tuple[str, str]:
    """The distribution's id and its release's code name."""
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
_WHO = "import json, platform; print(json.dumps([platform.python_version(), platform.machine()]))"


def is_native() -> bool:
    """Whether this machine is an arm64 one and needs no emulator."""
    return platform.machine() == "aarch64"


def find_emulator() -> str:
    """The path of qemu's user emulator."""
    found = next((path for name in _EMULATORS if (path := shutil.which(name))), None)
    if found is None:
        not_installed("no qemu-aarch64-static, expected Debian's package qemu-user-static")
    return found


@dataclass(frozen=True)
class Board:
    """A Python interpreter on arm64."""

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
        """This machine, without what the tests' own Python has installed."""
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

    def identify(self) -> tuple[str, str]:
        """Its Python's version and its machine, as programs there see them: ("3.11.2", "aarch64")."""
        done = self.run("-c", _WHO)
        if done.returncode:
            raise RuntimeError(f"Python does not start on {self.name}: {done.stderr.strip()}")
        version, machine = json.loads(done.stdout)
        return version, machine


# The device install: the folder that `pip install edge-sdk` leaves on a board, made here from aarch64 wheels.

_SOURCES = ("edge_sdk", "tools/edge_sdk_tools", "targets")
_OLDEST_GLIBC = 17


class DeviceInstall:
    """Makes the folder for one board."""

    def __init__(self, checkout: Path, board: Board, target: str) -> None:
        self._checkout = checkout
        self._version, self._machine = board.identify()
        self._tags = [] if is_native() else _pip_tags(self._version, load_target(target).wheel_platform)

    def make(self, cache: Cache) -> Path:
        """The site folder; from the cache when neither the sources nor the pinned versions changed."""
        settings = " ".join([self._version, self._machine, *self._tags, *self._constraints()])
        recipe = [Path(__file__).read_bytes(), settings.encode(), (self._checkout / "pyproject.toml").read_bytes()]
        sources = [part for path in self._source_files() for part in (str(path).encode(), path.read_bytes())]
        folder = cache.folder_of("device", [*recipe, *sources], lambda fresh: self._fill(fresh, cache, recipe))
        return folder / "site"

    def _fill(self, folder: Path, cache: Cache, recipe: Iterable[bytes]) -> None:
        site, scratch = folder / "site", folder / "wheel"
        _pip("wheel", "--no-deps", "--wheel-dir", str(scratch), str(self._checkout))
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
        lines = (self._checkout / "constraints.txt").read_text().splitlines()
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
        found = (path for folder in _SOURCES for path in (self._checkout / folder).rglob("*") if path.is_file())
        return sorted(path for path in found if "__pycache__" not in path.parts)


def installed(site: Path) -> dict[str, Distribution]:
    """The distributions in a site folder by canonical name."""
    return {canonicalize_name(d.metadata["Name"]): d for d in distributions(path=[str(site)])}


def sizes_mb(site: Path) -> dict[str, float]:
    """MB (of 1e6 bytes) on disk by distribution, largest first, without bytecode."""
    sizes = {name: _size_mb(distribution) for name, distribution in installed(site).items()}
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _size_mb(distribution: Distribution) -> float:
    paths = (Path(str(file.locate())) for file in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


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

Floats = NDArray[np.float32]

CLASSIFIER_TOML = """\
model = "classifier.onnx"
name = "small_classifier"
task = "classification"
decoder = "logits"
labels = "labels.txt"
[input]
size_wh = [64, 64]
resize = "stretch"
mean = [127.5, 127.5, 127.5]
std = [127.5, 127.5, 127.5]
"""
DETECTOR_TOML = """\
model = "detector.onnx"
name = "small_detector"
task = "detection"
decoder = "yolov4"
labels = "labels.txt"
[input]
size_wh = [96, 96]
std = [255, 255, 255]
[detection]
anchors = [[[12, 16], [24, 20]], [[40, 48], [64, 64]]]
"""
# Random weights agree with nothing: what is tested is that the same tensors come out, not that they mean something.
DATA_TOML = """\
[data]
calibration = "calibration"
evaluation = "evaluation"
[gates]
int8_min_agreement = 0.0
"""
LABELS = ("red", "green", "blue")
_ANCHORS_A_HEAD = 2


class _Graph:
    """Nodes and weights of a network that is being written, one layer after the other."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name, **attributes))
        return name

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, *, bias: Floats | None = None
    ) -> str:
        """A convolution from `channels[0]` to `channels[1]`, padded to keep the size."""
        weight = self._weight((channels[1], channels[0], kernel, kernel))
        shift = self._random.normal(0, 0.1, channels[1]).astype(np.float32) if bias is None else bias
        pads = [kernel // 2] * 4
        return self.add("Conv", x, self._keep(weight), self._keep(shift), pads=pads, strides=[stride, stride])

    def linear(self, x: str, features: tuple[int, int]) -> str:
        """A fully connected layer."""
        weight = self._weight((features[1], features[0], 1, 1))[:, :, 0, 0]
        return self.add("Gemm", x, self._keep(weight), self._keep(np.zeros(features[1], np.float32)), transB=1)

    def save(self, path: Path, side_px: int, outputs: dict[str, list[int]]) -> None:
        """Write the model; `outputs` gives the shape of each."""
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, side_px, side_px])
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, path.stem, [image], values, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)

    def _weight(self, shape: tuple[int, int, int, int]) -> Floats:
        weight = np.clip(self._random.normal(0, 0.2, shape), -0.5, 0.5)
        weight[:, 0, 0, 0] = 1.0
        weight[:, 1:2, 0, 0] = 0.0
        weight[:, 0, 0, 1:2] = 0.0
        gain = np.sqrt(2.0 / np.square(weight).sum(axis=(1, 2, 3), keepdims=True))
        scaled: Floats = (weight * gain).astype(np.float32)
        return scaled

    def _keep(self, array: Floats) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name


def write_classifier(folder: Path) -> Path:
    """Write model, labels, pictures and model.toml of a classifier with a residual branch; returns model.toml."""
    graph = _Graph(seed=1)
    stem = graph.add("Relu", graph.conv("image", (3, 16), 3, 2))
    branch = graph.add("Relu", graph.conv(stem, (16, 16), 3))
    joined = graph.add("Relu", graph.add("Add", stem, graph.conv(branch, (16, 16), 1)))
    deep = graph.add("Relu", graph.conv(joined, (16, 48), 3, 2))
    logits = graph.linear(graph.add("Flatten", graph.add("GlobalAveragePool", deep)), (48, len(LABELS)))
    graph.save(folder / "classifier.onnx", 64, {logits: [1, len(LABELS)]})
    return _write_description(folder, CLASSIFIER_TOML)


def write_detector(folder: Path) -> Path:
    """Write a detector with two raw YOLOv4 heads, likewise."""
    graph = _Graph(seed=2)
    x = graph.add("LeakyRelu", graph.conv("image", (3, 16), 3, 2), alpha=0.1)
    x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("LeakyRelu", graph.conv(x, (16, 32), 3, 2), alpha=0.1)
    fine = graph.add("LeakyRelu", graph.conv(x, (32, 32), 3, 2), alpha=0.1)
    coarse = graph.add("LeakyRelu", graph.conv(fine, (32, 64), 3, 2), alpha=0.1)
    channels = _ANCHORS_A_HEAD * (5 + len(LABELS))
    heads = {
        graph.conv(x, (n, channels), 1, bias=_head_bias()): side for x, n, side in ((fine, 32, 6), (coarse, 64, 3))
    }
    graph.save(folder / "detector.onnx", 96, {name: [1, channels, side, side] for name, side in heads.items()})
    return _write_description(folder, DETECTOR_TOML)


def write_pictures(folder: Path, count: int, seed: int) -> Path:
    """Write `count` PNG pictures of soft random colours, 160x120; returns the folder."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    for number in range(count):
        coarse = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{number:02}.png"), cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC))
    return folder


def _head_bias() -> Floats:
    """Lifts objectness, so that some cells answer with a detection."""
    bias = np.zeros((_ANCHORS_A_HEAD, 5 + len(LABELS)), np.float32)
    bias[:, 4] = 1.0
    return bias.reshape(-1)


def _write_description(folder: Path, description: str) -> Path:
    (folder / "labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    write_pictures(folder / "calibration", 16, seed=3)
    write_pictures(folder / "evaluation", 8, seed=4)
    path = folder / "model.toml"
    path.write_text(f"{description}{DATA_TOML}")
    return path
