"""Prove a reduced runtime's wheel: what is in it, and that it gives what the stock wheel gives on emulated cores.

The board is that of `arm_cost`: the same emulator, Debian and numpy, with this wheel, the stock wheel of the same
version, and the stock wheel that the bundles were built with. Where the stock wheel of the same version does not run on
a core (1.21.0 needs instructions that a Cortex-A72 lacks), the last one takes its place, and the record says so.
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
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.arm_cost.counter import CPUS, Counter, Cpu, board_outputs
from edge_sdk_tools.arm_cost.installation import download_wheels, set_up, unpack_wheels
from edge_sdk_tools.jobs.runner import OnProgress, silent
from edge_sdk_tools.packages import last_words, run_program
from edge_sdk_tools.quantize.convert import convert
from edge_sdk_tools.runtime.package import output_of

_SECONDS = 600.0  # for the golden inputs of one model on one core
_MOST_INSTRUCTIONS = 1.02  # of the stock wheel's
# What is no kernel is compiled for size: .045 more on a model of 1.1 million, whatever it computes.
_CALL_MILLIONS = 0.1
_ROUNDS = 3
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
session.run(None, {spec.name: numpy.zeros(spec.shape, kind)})
mark()
print(json.dumps(marks))
"""
_LOAD = "import sys, onnxruntime as ort; ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
# Small operators, one of which no bundle has: a model of it must be refused.
_STRANGERS = ("Erf", "Softplus", "Cos", "Mish", "Asinh", "HardSwish", "ThresholdedRelu")


class Start(msgspec.Struct, frozen=True):
    """What a start costs: import, loading the smallest model, its first inference.

    Attributes:
        cpu_s: CPU seconds of the emulator, the least of three rounds, in turn with the other runtime.
        peak_mb: resident memory at its highest, MB of 1e6 bytes above what Python with numpy has.
    """

    import_s: float
    load_s: float
    first_s: float
    import_mb: float
    peak_mb: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a bundle on one emulated core.

    Attributes:
        difference: the largest from the golden outputs, which are the build machine's.
        stock: version of the stock wheel that it is compared with on this core.
        is_identical: whether all outputs are the stock wheel's to the last bit.
        millions, stock_millions: instructions of one inference on one thread.
    """

    bundle: str
    variant: str
    core: Cpu
    difference: float
    stock: str
    is_identical: bool
    millions: float
    stock_millions: float

    @property
    def ratio(self) -> float:
        """Instructions over those of the stock wheel."""
        return self.millions / self.stock_millions


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; everything that must hold does, or there is no proof.

    Attributes:
        tag: platform tag by auditwheel.
        needed: shared libraries that the device must have.
        refusals: what the runtime says to an .onnx file, and to a model with an operator that it lacks.
        start, stock_start: cost of a start by core; of the stock wheel where it runs.
    """

    tag: str
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
    binutils: str,
    private: Sequence[Path],
    downloads: Path,
    on_progress: OnProgress,
) -> Proof:
    """Prove a wheel of a runtime for these bundles, whose models are replayed; an IncompatibleError says what is wrong.

    `operators` are `domain:name` of what the runtime has. It is compared with the stock wheel of its source's
    `version`, which `downloads` keeps. `binutils` is the prefix of the programs that read the library, and `private`
    are folders of this machine whose names must not be in the wheel.
    """
    needed = check_library(wheel, binutils)
    check_leaks(wheel, private)
    counter = set_up(on_progress=silent)
    with tempfile.TemporaryDirectory(prefix="edge-sdk-prove-") as scratch:
        folder = Path(scratch)
        reduced = board_with(counter, [wheel], folder / "reduced", version)
        [same] = download_wheels([f"onnxruntime=={version}"], counter.recipe.python, downloads)
        stock = board_with(counter, [same], folder / "stock", version)
        refusals = _refusals(reduced, operators, device, folder)
        models = [(b.with_primary(v.file), v.file) for b in bundles for v in b.manifest.variants]
        replays = list[Replayed]()
        total = len(models) * len(CPUS) + 1
        for number, (bundle, file) in enumerate(models):
            path = folder / f"{number}-{file}"
            path.write_bytes(bundle.read(file))
            for cpu in CPUS:
                on_progress("prove", len(replays), total)
                replays.append(_replay(bundle, path, cpu, reduced, stock if _runs(stock, cpu) else counter))
        smallest = min(folder.glob("[0-9]*-*.ort"), key=lambda p: p.stat().st_size)
        start, stock_start = _starts(reduced, stock, counter, smallest)
    on_progress("prove", total, total)
    tag, replayed = wheel.stem.rsplit("-", 1)[-1], tuple(replays)
    return Proof(tag=tag, needed=needed, refusals=refusals, replays=replayed, start=start, stock_start=stock_start)


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
                if os.fsencode(f"{folder}/") in data:
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


def run_python(board: Counter, cpu: Cpu, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python on a board."""
    command = [*board.board_python(cpu), "-c", code, *arguments]
    return run_program(command, timeout_s=_SECONDS, cwd="/", env=board.environment)


def output_on(board: Counter, cpu: Cpu, what: str, code: str, *arguments: str) -> Any:
    """Return the JSON that a program in Python prints on a board; an EdgeError says how `what` ended there."""
    done = run_python(board, cpu, code, *arguments)
    if done.returncode:
        raise EdgeError(f"{what} on an emulated {cpu} ended with {done.returncode}: {last_words(done.stderr)}")
    return json.loads(done.stdout)


def _runs(board: Counter, cpu: Cpu) -> bool:
    return run_python(board, cpu, "import onnxruntime").returncode == 0


def _refusals(board: Counter, operators: Sequence[str], device: Target, folder: Path) -> tuple[str, ...]:
    """Load what the runtime must refuse, with the operator's name; return what it says."""
    stranger = next(name for name in _STRANGERS if f"ai.onnx:{name}" not in operators)
    text = f'<ir_version: 8, opset_import: ["": 18]> one (float[1,4] x) => (float[1,4] y) {{ y = {stranger}(x) }}'
    strange, work = folder / "stranger.onnx", folder / "stranger"
    onnx.save(parser.parse_model(text), strange)
    work.mkdir()
    converted = convert(strange, device, work).model
    words = []
    for path, expected in ((strange, "ONNX"), (converted, stranger)):
        done = run_python(board, "cortex-a72", _LOAD, str(path))
        line = last_words(done.stderr)
        if done.returncode != 1 or expected not in line:
            raise IncompatibleError(f"{path.name} should be refused with the word {expected!r}, got: {line}")
        words.append(line)
    return tuple(words)


def _replay(bundle: Bundle, model: Path, cpu: Cpu, reduced: Counter, stock: Counter) -> Replayed:
    variant = bundle.manifest.variants[0]
    golden, noise = bundle.golden_and_noise()
    prepare = Prepare.of(bundle.manifest)
    tensors = [prepare.normalise(image).copy() for image, _ in golden]
    where = f"{bundle.manifest.name} {variant.name} on an emulated {cpu}"
    with board_outputs(reduced, model, cpu, tensors, _SECONDS) as finish:
        outputs = finish()
    with board_outputs(stock, model, cpu, tensors, _SECONDS) as finish:
        expected = finish()
    worst = 0.0
    for got, (_, promised) in zip(outputs, golden, strict=True):
        problem = largest_difference(got, promised, variant.golden, noise)
        if isinstance(problem, str):
            raise IncompatibleError(f"{where}: the golden inputs give other results: {problem}")
        worst = max(worst, problem)
    pairs = [(a, b) for got, other in zip(outputs, expected, strict=True) for a, b in zip(got, other, strict=True)]
    found = Replayed(
        bundle=bundle.manifest.name,
        variant=variant.name,
        core=cpu,
        difference=worst,
        stock=stock.recipe.onnxruntime,
        is_identical=all(np.array_equal(a, b) for a, b in pairs),
        millions=reduced.count(model, cpu).millions,
        stock_millions=stock.count(model, cpu).millions,
    )
    if stock.recipe.onnxruntime == reduced.recipe.onnxruntime:
        if not found.is_identical:
            raise IncompatibleError(f"{where}: other results than those of the stock wheel {found.stock}")
        if found.millions > found.stock_millions * _MOST_INSTRUCTIONS + _CALL_MILLIONS:
            raise IncompatibleError(
                f"{where}: {found.ratio:.3f} times the {found.stock_millions:.2f} million instructions of the stock "
                f"wheel, expected {_MOST_INSTRUCTIONS} times and {_CALL_MILLIONS} million at most"
            )
    return found


def _starts(reduced: Counter, stock: Counter, other: Counter, model: Path) -> tuple[dict[str, Start], dict[str, Start]]:
    """Measure starts of the reduced and a stock runtime in turn, by core."""
    found: tuple[dict[str, Start], dict[str, Start]] = ({}, {})
    for cpu in CPUS:
        boards = (reduced, stock if _runs(stock, cpu) else other)
        rounds = [[_marks(board, cpu, model) for board in boards] for _ in range(_ROUNDS)]
        for index, starts in enumerate(found):
            starts[cpu] = _start([one[index] for one in rounds])
    return found


def _marks(board: Counter, cpu: Cpu, model: Path) -> list[tuple[float, float]]:
    said = output_on(board, cpu, model.name, PEAK + _STARTUP, str(model))
    return [(float(seconds), float(kib)) for seconds, kib in said]


def _start(rounds: Sequence[Sequence[tuple[float, float]]]) -> Start:
    seconds = np.array([[mark[0] for mark in one] for one in rounds])
    memory = np.array([[mark[1] for mark in one] for one in rounds]) * 1024 / 1e6
    spent = np.diff(seconds, axis=1).min(axis=0)
    above = (memory - memory[:, :1]).min(axis=0)
    return Start(*(round(float(value), 3) for value in (*spent, above[1], above[3])))
