"""Prove a reduced runtime's wheel: what is in it, and that it gives what the stock wheel gives on the same core.

A board for aarch64 is that of `arm_cost`: the same emulator, Debian and numpy, with this wheel, the stock wheel of the
same version, and the stock wheel that the bundles were built with. Where the stock wheel of the same version does not
run on a core (1.21.0 needs instructions that a Cortex-A72 lacks), the last one takes its place, and the record says so.
For x86_64 this machine is the board; nothing counts its instructions, so that CPU time is shown and not judged.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import parser

from edge_sdk.bundle.bundle import Bundle, largest_difference
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError, IncompatibleError
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.arm_cost.counter import CPUS, Board, Counter, Recipe, board_outputs, current_recipe, spoken
from edge_sdk_tools.arm_cost.installation import download_wheels, set_up, unpack_wheels
from edge_sdk_tools.jobs.runner import OnProgress
from edge_sdk_tools.packages import last_words, run_program
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.runtime.package import output_of
from edge_sdk_tools.runtime.recipe import MACHINES

_SECONDS = 600.0  # for the golden inputs of one model on one core
_MOST_INSTRUCTIONS = 1.02  # of the stock wheel's
# What is no kernel is compiled for size: .045 more on a model of 1.1 million, whatever it computes.
_CALL_MILLIONS = 0.1
_ROUNDS = 3
_RUNS = 20  # of which the shortest is an inference's CPU time
_SHARED = ("qemu-aarch64", "libraries", "system", "icount.so", *CPUS)
_BEHIND = ("GLIBC_", "GLIBCXX_", "CXXABI_", "GCC_")
PEAK = """
def peak_kib():
    # Not ru_maxrss, which begins with what the process had that started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
"""
"""Python source of a function that returns the highest resident memory of a program, in KiB."""
# What a device does first. Both runtimes import numpy, so that it is not counted.
_STARTUP = """
import json, sys, time
import numpy
marks = []
def mark():
    marks.append((time.process_time(), peak_kib()))
mark()
import onnxruntime as ort
mark()
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
mark()
spec = session.get_inputs()[0]
kind = {"tensor(uint8)": numpy.uint8, "tensor(int8)": numpy.int8}.get(spec.type, numpy.float32)
tensor = numpy.zeros(spec.shape, kind)
for _ in range(int(sys.argv[2])):
    session.run(None, {spec.name: tensor})
    mark()
print(json.dumps(marks))
"""
_LOAD = "import sys, onnxruntime as ort; ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
# Small operators, one of which no bundle has: a model of it must be refused.
_STRANGERS = ("Erf", "Softplus", "Cos", "Mish", "Asinh", "HardSwish", "ThresholdedRelu")


class Start(msgspec.Struct, frozen=True):
    """What a start costs: import, loading the smallest model, its first inference.

    Seconds are of CPU, the emulator's where there is one: the least of three rounds, in turn with the other runtime.
    Memory is resident, at its highest after the import and in all, in MB of 1e6 bytes above what Python with numpy has.
    """

    import_s: float
    load_s: float
    first_s: float
    import_mb: float
    peak_mb: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a bundle on one core.

    Attributes:
        difference: the largest from the golden outputs, which are the build machine's.
        stock: version of the stock wheel that it is compared with on this core.
        is_identical: whether all outputs are the stock wheel's to the last bit.
        cost, stock_cost: of one inference on one thread, in the proof's unit.
    """

    bundle: str
    variant: str
    core: str
    difference: float
    stock: str
    is_identical: bool
    cost: float
    stock_cost: float

    @property
    def ratio(self) -> float:
        """Cost over that of the stock wheel."""
        return self.cost / self.stock_cost


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; everything that must hold does, or there is no proof.

    Attributes:
        tag: platform tag by auditwheel.
        needed: shared libraries that the device must have.
        refusals: what the runtime says to an .onnx file, and to a model with an operator that it lacks.
        unit: of what an inference costs, `million instructions` or `CPU ms`.
        start, stock_start: cost of a start by core; of the stock wheel where it runs.
    """

    tag: str
    unit: str
    needed: tuple[str, ...]
    refusals: tuple[str, ...]
    replays: tuple[Replayed, ...]
    start: dict[str, Start]
    stock_start: dict[str, Start]


def prove(
    wheel: Path,
    bundles: Sequence[Bundle],
    operators: Sequence[str],
    device: Target,
    *,
    version: str,
    private: Sequence[Path],
    downloads: Path,
    on_progress: OnProgress,
) -> Proof:
    """Prove a wheel of a runtime for these bundles, whose models are replayed; an IncompatibleError says what is wrong.

    `operators` are `domain:name` of what the runtime has. It is compared with the stock wheel of its source's
    `version`, which `downloads` keeps. `private` are folders of this machine whose names must not be in the wheel.
    """
    machine = MACHINES[device.machine]
    needed = check_library(wheel, machine.compiler)
    check_leaks(wheel, private)
    with tempfile.TemporaryDirectory(prefix="edge-sdk-prove-") as scratch:
        folder = Path(scratch)
        recipe = msgspec.structs.replace(current_recipe(device.python), onnxruntime=version)
        wanted = [f"onnxruntime=={version}", *([] if machine.is_emulated else [f"numpy=={recipe.numpy}"])]
        same, *others = download_wheels(wanted, device.python, downloads, device.machine)
        counter = set_up(python=device.python) if machine.is_emulated else None

        def board_of(one: Path) -> Board:
            wheels, place = [one, *others], folder / one.stem
            return board_with(counter, wheels, place, version) if counter else native_board(wheels, place, recipe)

        reduced, stock = board_of(wheel), board_of(same)
        by_core = {core: (reduced, stock if _runs(stock, core) else counter or stock) for core in machine.cores}
        refusals = _refusals(reduced, operators, device, folder)
        models = [(b.with_primary(v.file), v.file) for b in bundles for v in b.manifest.variants]
        replays = list[Replayed]()
        total = len(models) * len(by_core) + 1
        for number, (bundle, file) in enumerate(models):
            path = folder / f"{number}-{file}"
            path.write_bytes(bundle.read(file))
            for core, boards in by_core.items():
                on_progress("prove", len(replays), total)
                replays.append(_replay(bundle, path, core, *boards))
        smallest = min(folder.glob("[0-9]*-*.ort"), key=lambda p: p.stat().st_size)
        starts = {core: _starts(boards, core, smallest) for core, boards in by_core.items()}
    on_progress("prove", total, total)
    return Proof(
        tag=wheel.stem.rsplit("-", 1)[-1],
        unit="million instructions" if machine.is_emulated else "CPU ms",
        needed=needed,
        refusals=refusals,
        replays=tuple(replays),
        start={core: own for core, (own, _) in starts.items()},
        stock_start={core: its for core, (_, its) in starts.items()},
    )


def check_library(wheel: Path, binutils: str) -> tuple[str, ...]:
    """Return the shared libraries that a wheel's library needs; refuse a symbol that neither they nor Python have."""
    with tempfile.TemporaryDirectory(prefix="edge-sdk-prove-") as scratch, zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".so")]
        library = archive.extract(name, scratch)
        unknown = undefined_symbols(Path(library), binutils)
        dynamic = output_of([f"{binutils}readelf", "-d", "-W", library])
    if unknown:
        raise IncompatibleError(f"{wheel.name}: undefined symbols: {', '.join(unknown[:5])}")
    return tuple(line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line)


def undefined_symbols(library: Path, binutils: str) -> list[str]:
    """Return the symbols of a library, C++ names in words, that neither the C and C++ libraries nor Python have."""
    lines = output_of([f"{binutils}nm", "-D", "-C", "--undefined-only", str(library)]).splitlines()
    strong = [symbol for kind, symbol in (line.split(maxsplit=1) for line in lines) if kind != "w"]
    others = [symbol for symbol in strong if not symbol.startswith(("Py", "_Py"))]
    return [symbol for symbol in others if not symbol.rpartition("@")[2].startswith(_BEHIND)]


def check_leaks(wheel: Path, private: Sequence[Path]) -> None:
    """Raise IncompatibleError where the wheel contains the name of a folder of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            for folder in private:
                if folder.name and os.fsencode(f"{folder}/") in data:  # a home folder may be the root
                    raise IncompatibleError(f"{wheel.name}: {name} contains the path {folder}")


def board_with(counter: Counter, wheels: Sequence[Path], folder: Path, version: str = "") -> Counter:
    """Make a board like that of `counter` with these wheels in place of its own, and with its numpy unless given."""
    folder.mkdir()
    for name in _SHARED:
        (folder / name).symlink_to(counter.folder / name)
    board = Counter(folder, msgspec.structs.replace(counter.recipe, onnxruntime=version or counter.recipe.onnxruntime))
    unpack_wheels(wheels, board.site)
    if not (board.site / "numpy").is_dir():
        for path in counter.site.glob("numpy*"):
            (board.site / path.name).symlink_to(path)
    return board


def native_board(wheels: Sequence[Path], folder: Path, recipe: Recipe) -> Board:
    """Make a board of this machine with these wheels."""
    board = Board(folder, recipe)
    unpack_wheels(wheels, board.site)
    return board


def run_python(board: Board, core: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python on a board."""
    command = [*board.board_python(core), "-c", code, *arguments]
    return run_program(command, timeout_s=_SECONDS, cwd="/", env=board.environment)


def output_on(board: Board, core: str, what: str, code: str, *arguments: str) -> Any:
    """Return the JSON that a program in Python prints on a board; an EdgeError says how `what` ended there."""
    done = run_python(board, core, code, *arguments)
    if done.returncode:
        raise EdgeError(f"{what} on {spoken(core)} ended with {done.returncode}: {last_words(done.stderr)}")
    return json.loads(done.stdout)


def _runs(board: Board, core: str) -> bool:
    return run_python(board, core, "import onnxruntime").returncode == 0


def _refusals(board: Board, operators: Sequence[str], device: Target, folder: Path) -> tuple[str, ...]:
    """Load what the runtime must refuse, with the operator's name; return what it says."""
    stranger = next(name for name in _STRANGERS if f"ai.onnx:{name}" not in operators)
    text = f'<ir_version: 8, opset_import: ["": 18]> one (float[1,4] x) => (float[1,4] y) {{ y = {stranger}(x) }}'
    strange, work = folder / "stranger.onnx", folder / "stranger"
    onnx.save(parser.parse_model(text), strange)
    work.mkdir()
    converted = convert(strange, device, work).model
    words = []
    for path, expected in ((strange, "ONNX"), (converted, stranger)):
        done = run_python(board, MACHINES[device.machine].cores[0], _LOAD, str(path))
        line = last_words(done.stderr)
        if done.returncode != 1 or expected not in line:
            raise IncompatibleError(f"{path.name} should be refused with the word {expected!r}, got: {line}")
        words.append(line)
    return tuple(words)


def _replay(bundle: Bundle, model: Path, core: str, reduced: Board, stock: Board) -> Replayed:
    variant = bundle.manifest.variants[0]
    golden, noise = bundle.golden_and_noise()
    prepare = Prepare.of(bundle.manifest)
    tensors = [prepare.normalise(image).copy() for image, _ in golden]
    where = f"{bundle.manifest.name} {variant.name} on {spoken(core)}"
    with board_outputs(reduced, model, core, tensors, _SECONDS) as finish:
        outputs = finish()
    with board_outputs(stock, model, core, tensors, _SECONDS) as finish:
        expected = finish()

    def worst_of(promised: Sequence[Sequence[Tensor]], what: str) -> float:
        worst = 0.0
        for got, wanted in zip(outputs, promised, strict=True):
            problem = largest_difference(got, wanted, variant.golden, noise)
            if isinstance(problem, str):
                raise IncompatibleError(f"{where}: {what}: {problem}")
            worst = max(worst, problem)
        return worst

    pairs = [(a, b) for got, other in zip(outputs, expected, strict=True) for a, b in zip(got, other, strict=True)]
    found = Replayed(
        bundle=bundle.manifest.name,
        variant=variant.name,
        core=core,
        difference=worst_of([promised for _, promised in golden], "the golden inputs give other results"),
        stock=stock.recipe.onnxruntime,
        is_identical=all(np.array_equal(a, b) for a, b in pairs),
        cost=_cost(reduced, model, core),
        stock_cost=_cost(stock, model, core),
    )
    if stock.recipe.onnxruntime == reduced.recipe.onnxruntime:
        others = f"other results than those of the stock wheel {found.stock}"
        worst_of(expected, others)
        if isinstance(reduced, Counter):
            _judge(found, where, others)
    return found


def _judge(found: Replayed, where: str, others: str) -> None:
    """Refuse what is not the stock wheel's to the last bit, or takes more instructions than it."""
    if not found.is_identical:
        raise IncompatibleError(f"{where}: {others}")
    if found.cost > found.stock_cost * _MOST_INSTRUCTIONS + _CALL_MILLIONS:
        raise IncompatibleError(
            f"{where}: {found.ratio:.3f} times the {found.stock_cost:.2f} million instructions of the stock "
            f"wheel, expected {_MOST_INSTRUCTIONS} times and {_CALL_MILLIONS} million at most"
        )


def _cost(board: Board, model: Path, core: str) -> float:
    """Return million instructions of one inference, or milliseconds of CPU where nothing counts them."""
    if isinstance(board, Counter):
        return board.count(model, core).millions
    seconds = [spent for spent, _ in _marks(board, core, model, _RUNS)]
    return 1e3 * float(np.diff(seconds)[3:].min())


def _starts(boards: Sequence[Board], core: str, model: Path) -> list[Start]:
    """Measure starts on boards in turn."""
    rounds = [[_marks(board, core, model) for board in boards] for _ in range(_ROUNDS)]
    return [_start(own) for own in zip(*rounds, strict=True)]


def _marks(board: Board, core: str, model: Path, runs: int = 1) -> list[tuple[float, float]]:
    said = output_on(board, core, model.name, PEAK + _STARTUP, str(model), str(runs))
    return [(float(seconds), float(kib)) for seconds, kib in said]


def _start(rounds: Sequence[Sequence[tuple[float, float]]]) -> Start:
    seconds = np.array([[mark[0] for mark in one] for one in rounds])
    memory = np.array([[mark[1] for mark in one] for one in rounds]) * 1024 / 1e6
    spent = np.diff(seconds, axis=1).min(axis=0)
    above = (memory - memory[:, :1]).min(axis=0)
    return Start(*(round(float(value), 3) for value in (*spent, above[1], above[3])))
