"""An emulated Raspberry Pi 4 and 5: bundles run there from a real device install; what inferences cost is counted."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distributions, version
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import ModelProto, helper, numpy_helper
from packaging.utils import canonicalize_name

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.root import run
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost.counter import CORES, CPUS, Core, Counter, board_outputs
from edge_sdk_tools.arm_cost.estimate import estimate
from edge_sdk_tools.arm_cost.installation import unpack_wheels
from edge_sdk_tools.graph.profile import host_saturates
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.quantize.forms import core_form
from tests.support.absent import Cache
from tests.support.broker import Broker, Subscriber
from tests.support.models import parsed
from tests.support.projects import CLASSIFIER, DETECTOR, write_pictures, write_project
from tests.support.subscribers import documents, statuses

pytestmark = [pytest.mark.system, pytest.mark.arm64]
CHECKOUT = Path(__file__).parents[2]
REPLAY = Path(__file__).parents[1] / "support" / "arm64_replay.py"
PICTURES = 3

# The board, which `arm-cost` emulates, and what `pip install edge-sdk` leaves there, made here from aarch64 wheels.


class Board(NamedTuple):
    command: list[str]
    environment: dict[str, str]
    site: Path

    @classmethod
    def of(cls, counter: Counter, core: Core, ours: Path, site: Path) -> Board:
        *before, python = counter.board_python(core.model)
        # Python compiles bytecode slowly on an emulated board.
        paths = {"PYTHONPATH": f"{ours}:{site}", "PYTHONPYCACHEPREFIX": str(site.parent / "compiled")}
        given = [part for name, path in paths.items() for part in ("-E", f"{name}={path}")]
        return cls([*before, *given, python], counter.environment, site)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with `arguments` to its end, in `/`: in the checkout, `-m` would take the packages from there."""
        return subprocess.run(
            [*self.command, *arguments], env=self.environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=600,
        )  # fmt: skip

    def checked(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{self.command}: exit code {done.returncode}: {done.stderr}"
        return done.stdout


def _install(fresh: Path, wheel: Path, python: str) -> None:
    """This wheel and all that it requires, for the board's Python."""
    glibc, machine = load_target("raspberry_pi_4").wheel_platform.removeprefix("manylinux_2_").split("_", 1)
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(int(glibc), 16, -1)]
    tags = [part for name in (*platforms, f"manylinux2014_{machine}") for part in ("--platform", name)]
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--no-compile", *tags]
    pins = ["--constraint", str(CHECKOUT / "constraints.txt"), f"onnxruntime=={version('onnxruntime')}"]
    _on_host("-m", "pip", "install", "--quiet", "--target", str(fresh / "site"), *options, *pins, str(wheel))


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
    _on_host("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT))
    [wheel] = folder.glob("*.whl")
    python = counter.recipe.python
    recipe = [(CHECKOUT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    recipe += [python.encode(), version("onnxruntime").encode()]
    cache = Cache(CHECKOUT / ".cache" / "arm64")
    kept = cache.folder_of("device", recipe, lambda fresh: _install(fresh, wheel, python))
    unpack_wheels([wheel], folder / "ours")  # found before the kept installation, whose sources may be older
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
            assert run(["build", str(description), "--target", target, "--fresh", "-o", str(bundle)]) == 0
            built[target, task] = bundle
    return built


@pytest.fixture(scope="module")
def answers(
    boards: dict[str, Board], bundles: dict[tuple[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answer]:
    """The outputs of each board, and under `host` of this machine, for the golden inputs of the same bundles."""
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
    facts, [core] = answers[name].facts, [core for core in CORES if core.model == name]
    assert (set(facts.modules), facts.machine) == (modules, "aarch64")
    # The emulated CPU is the target's.
    assert (facts.cpu_parts, facts.dot_product) == ([core.part], "asimddp" in core.features)


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
        # The emulator runs a single program, so that no trial can start in a process of its own.
        arguments += ["--trial-seconds", "0"]
        boards[name].checked("-m", "edge_sdk", "run", str(bundle), *arguments)
        subscriber.wait_for(lambda _: statuses(subscriber)[-1:] == [("offline", "shutdown", False)], "the last message")
        results = documents(subscriber.messages("/result/camera"))
    assert [result["seq"] for result in results] == list(range(PICTURES))
    assert {(result["task"], result["model"]["sha256"]) for result in results} == {(task, Bundle.open(bundle).digest)}
    assert all(result["frame"] == {"width": 48, "height": 40} for result in results)
    assert any(result.get("detections") or result.get("classes") for result in results)


def _on_host(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return done.stdout


# Counting for real: an emulated core, an arm64 ONNX Runtime and the plugin, on small convolutions.


SIDE, CHANNELS, FILTERS, KERNEL = 32, 32, 64, 3
MACS = SIDE * SIDE * CHANNELS * FILTERS * KERNEL * KERNEL
SAME = 1.001  # counts of the same thing differ by at most .1 %


def convolution(path: Path, *, integer: bool) -> Path:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (FILTERS, CHANNELS, KERNEL, KERNEL)).astype(np.int8)
    constants = {"w": weight if integer else weight.astype(np.float32) / 127}
    of, convolve = "float[batch,", "Conv<pads=[1,1,1,1]>(x, w)"
    if integer:
        scale, zero = np.float32(0.02), np.uint8(128)
        constants |= {"xs": scale, "xz": zero, "ws": scale, "wz": np.int8(0), "ys": np.float32(20), "yz": zero}
        of, convolve = "uint8[batch,", "QLinearConv<pads=[1,1,1,1]>(x, xs, xz, w, ws, wz, ys, yz)"
    text = f"""convolution ({of}{CHANNELS},{SIDE},{SIDE}] x) => ({of}{FILTERS},{SIDE},{SIDE}] y)
        {{ y = {convolve} }}"""
    onnx.save(_model(text, constants, ir_version=8), path)
    return path


def _model(text: str, constants: Mapping[str, np.ndarray], ir_version: int) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


@pytest.mark.parametrize("cpu", CPUS)
def test_int8_costs_less_and_the_kernels_are_the_core_s(counter: Counter, tmp_path: Path, cpu: str) -> None:
    fp32 = counter.count(convolution(tmp_path / "fp32.onnx", integer=False), cpu)
    int8 = counter.count(convolution(tmp_path / "int8.onnx", integer=True), cpu)
    assert int8.total < fp32.total
    assert sum(fp32.by_class.values()) == fp32.total
    # An instruction makes four products of floats, eight widening ones, or sixteen of a dot product; edges add some.
    assert MACS / 4 <= fp32.by_class["fmla"] < MACS / 4 * 1.2
    assert fp32.integer_share < 0.01
    assert int8.integer_share > 0.99
    dots = int8.by_class["sdot"] + int8.by_class["udot"]
    if cpu == "cortex-a76":
        assert MACS / 16 <= dots < MACS / 16 * 1.2
    else:
        assert dots == 0
        assert int8.by_class["smlal"] >= MACS / 8


def test_the_same_model_counts_the_same_twice(counter: Counter, tmp_path: Path) -> None:
    model = convolution(tmp_path / "int8.onnx", integer=True)
    first, second = (counter.count(model, "cortex-a76") for _ in range(2))
    assert 1 / SAME < first.total / second.total < SAME
    estimated = estimate(first, load_target("raspberry_pi_5"))
    assert estimated is not None
    assert estimated.low_ms < estimated.latency_ms < estimated.high_ms


_SATURATES = pytest.mark.skipif(host_saturates(), reason="sums of INT8 saturate on this CPU, which has no VNNI")


@_SATURATES
def test_a_model_says_the_same_there_as_here(counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolution(tmp_path / "int8.onnx", integer=True)
    random = np.random.default_rng(1)
    tensors = [random.integers(0, 256, (1, CHANNELS, SIDE, SIDE)).astype(np.uint8) for _ in range(2)]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with board_outputs(counter, model, "cortex-a76", tensors, 60) as board:
        outputs = board()
    for (got,), tensor in zip(outputs, tensors, strict=True):
        np.testing.assert_array_equal(got, session.run(None, {"x": tensor})[0])
    # A build keeps its files in a folder whose path may be relative.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", ".")
    assert counter.count(Path("int8.onnx"), "cortex-a76").total > 0
    with board_outputs(counter, Path("int8.onnx"), "cortex-a76", tensors[:1], 60) as board:
        np.testing.assert_array_equal(board()[0][0], outputs[0][0])
    assert [path.name for path in tmp_path.iterdir()] == ["int8.onnx"]


# Offset weights on a Cortex-A72: they take fewer instructions, and no sum leaves its 16 bits.

CORE = "cortex-a72"
_SIDE, _CHANNELS, _FILTERS = 7, 72, 48
LARGEST_SUM = _CHANNELS * 3 * 3 * 127 * 255
FINE = 5000.0  # sums of filters with random signs are some hundred times as large


def extreme_weights(limit: int, channels: int = _CHANNELS) -> np.ndarray:
    """Filters of the lowest and the highest integer: all equal, alternating, paired, random; and of any integers."""
    random = np.random.default_rng(4)
    weights = random.choice(np.array([-limit, limit], np.int8), (_FILTERS, channels, 3, 3))
    weights[0], weights[1] = -limit, limit
    weights[2:4] = -limit
    weights[2, ::2], weights[3, 1::4] = limit, limit
    weights[3, ::4] = limit
    weights[4:8] = random.integers(-limit, limit + 1, (4, channels, 3, 3))
    return weights.astype(np.int8)


def extreme_inputs() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    shape = (1, _CHANNELS, _SIDE, _SIDE)
    drawn = [random.choice(np.array([0, 255], np.uint8), shape) for _ in range(3)]
    turns = np.where(np.arange(_CHANNELS).reshape(1, -1, 1, 1) % 2, 255, 0) + np.zeros(shape)
    return [value.astype(np.uint8) for value in (np.zeros(shape), np.full(shape, 255), turns, 255 - turns, *drawn)]


def extremes(weights: np.ndarray, zero: int, step: float, groups: int = 1) -> onnx.ModelProto:
    """One convolution in QDQ form between unsigned integers; `step` is the scale of the output."""
    channels = weights.shape[1] * groups
    constants = {
        "x_scale": np.float32(1), "x_zero": np.uint8(zero), "weights": weights,
        "scales": np.full(len(weights), 1, np.float32), "zeros": np.zeros(len(weights), np.int8),
        "y_scale": np.float32(step), "y_zero": np.uint8(128),
    }  # fmt: skip
    text = f"""extremes (uint8[1,{channels},{_SIDE},{_SIDE}] x) => (uint8[1,{len(weights)},{_SIDE},{_SIDE}] y) {{
        a = DequantizeLinear(x, x_scale, x_zero) w = DequantizeLinear<axis=0>(weights, scales, zeros)
        b = Conv<pads=[1,1,1,1], group={groups}>(a, w) y = QuantizeLinear(b, y_scale, y_zero) }}"""
    proto = _model(text, constants, ir_version=9)
    proto.graph.node[2].name = "conv"
    return proto


def offset_anyway(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every weight less 1, even where sums then overflow."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {w.name: w for w in copy.graph.initializer}
    for name in ("weights", "zeros"):
        less = numpy_helper.to_array(constants[name]) - np.int8(1)
        constants[name].CopyFrom(numpy_helper.from_array(less, name))
    return copy


def written(proto: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    onnx.save(proto, folder / "model.onnx")
    return convert(folder / "model.onnx", load_target("raspberry_pi_4"), folder).model


def wrong_share(counter: Counter, model: Path, tensors: list[np.ndarray]) -> float:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with board_outputs(counter, model, CORE, tensors, 120) as board:
        outputs = board()
    assert len(outputs) == len(tensors)
    here = [session.run(None, {"x": tensor})[0] for tensor in tensors]
    assert max(np.ptp(value) for value in here) > 50
    return float(np.mean([a != b for (a,), b in zip(outputs, here, strict=True)]))


@_SATURATES
@pytest.mark.parametrize(("zero", "step"), [(0, FINE), (128, FINE), (255, FINE), (128, LARGEST_SUM / 127)])
def test_no_sum_leaves_its_bits_at_the_limits(counter: Counter, tmp_path: Path, zero: int, step: float) -> None:
    form = core_form(extremes(extreme_weights(126), zero, step), CORE)
    assert form is not None
    assert wrong_share(counter, written(form, tmp_path / "form"), extreme_inputs()) == 0


def test_one_more_would_leave_them(counter: Counter, tmp_path: Path) -> None:
    """The inputs and weights above do reach the extremes: when this test fails, the limit is not needed any more."""
    proto = extremes(extreme_weights(127), 128, FINE)
    assert core_form(proto, CORE) is None
    assert wrong_share(counter, written(offset_anyway(proto), tmp_path / "beyond"), extreme_inputs()) > 0.01


def test_what_is_offset_takes_fewer_instructions_and_nothing_else_would(counter: Counter, tmp_path: Path) -> None:
    def count(proto: onnx.ModelProto, name: str) -> int:
        return counter.count(written(proto, tmp_path / name), CORE).total

    wide = extremes(extreme_weights(126), 128, FINE)
    form = core_form(wide, CORE)
    assert form is not None
    assert count(form, "wide_form") < 0.9 * count(wide, "wide")
    deep = extremes(extreme_weights(126, 1), 128, FINE, groups=_FILTERS)
    assert core_form(deep, CORE) is None
    assert count(deep, "deep") < count(offset_anyway(deep), "deep_form")
