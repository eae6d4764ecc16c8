"""Count what one inference costs on an emulated core: a folder with an emulator, an arm64 Python and a plugin.

This module owns the folder's layout, the emulator's command line and the format that the plugin writes; `installation`
fills the folder. `board_outputs` runs a model on the emulated core in a process of its own.

Instructions are classified by their 32 bits and the table instructions.txt, after the encoding index of the Arm
Architecture Reference Manual (DDI 0487, C4.1). The classes distinguish kernels by their multiplications, loads and
stores. SVE and SME are one class, because no core here has them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import EdgeError, ModelError, UsageError
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk_tools.packages import cache_folder, last_words, run_program

_TABLE = Path(__file__).with_name("instructions.txt")

FLOAT_MULTIPLIES = ("fmla",)  # classes of the multiplications of FP32 and FP16 kernels
INTEGER_MULTIPLIES = ("sdot", "udot", "mixed_dot", "smlal")  # and of INT8 kernels


@functools.cache
def _rules() -> tuple[tuple[int, int, str], ...]:
    """Return masks, values and names: an instruction belongs to the first whose value its bits under the mask are."""
    lines = (line.partition("#")[0].split() for line in _TABLE.read_text(encoding="ascii").splitlines())
    return tuple((int(mask, 16), int(value, 16), name) for mask, value, name in filter(None, lines))


@functools.cache
def classes() -> tuple[str, ...]:
    """Return the names of the classes; `other` includes instructions that fit no rule."""
    return tuple(dict.fromkeys(name for _, _, name in _rules()))


def classify(words: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the class of each instruction, as its index in `classes()`."""
    found = np.full(words.shape, classes().index("other"), np.intp)
    open_ = np.ones(words.shape, np.bool_)
    for mask, value, name in _rules():
        fits = open_ & ((words & np.uint32(mask)) == np.uint32(value))
        found[fits] = classes().index(name)
        open_ &= ~fits
    return found


_HEAD = struct.Struct("=QI")  # of a block: its runs, and its number of instructions


class Counts(msgspec.Struct, frozen=True):
    """Counted instructions of one inference on one thread of a core in qemu's spelling, in all and by class."""

    model: str
    cpu: str
    onnxruntime: str
    total: int
    by_class: dict[str, int]

    @property
    def millions(self) -> float:
        """Total number of instructions, in millions."""
        return self.total / 1e6

    @property
    def integer_share(self) -> float:
        """Share of the multiplying instructions that multiply integers: 0 for FP32, near 1 for INT8; 0 for none."""
        integer = sum(self.by_class[name] for name in INTEGER_MULTIPLIES)
        multiplying = integer + sum(self.by_class[name] for name in FLOAT_MULTIPLIES)
        return integer / multiplying if multiplying else 0.0


def count_classes(record: bytes) -> dict[str, int]:
    """Return instructions by class from what the plugin wrote: each block's runs, its length and its instructions."""
    words: list[NDArray[np.uint32]] = []
    runs: list[NDArray[np.uint64]] = []
    start = 0
    try:
        while start < len(record):
            runs_of_block, length = _HEAD.unpack_from(record, start)
            words.append(np.frombuffer(record, np.uint32, length, start + _HEAD.size))
            runs.append(np.full(length, runs_of_block, np.uint64))
            start += _HEAD.size + words[-1].nbytes
    except (struct.error, ValueError) as cause:
        raise ValueError("the record of counts is cut short") from cause
    totals = [0] * len(classes())
    if words:
        found, all_runs = classify(np.concatenate(words)), np.concatenate(runs)
        totals = [int(all_runs[found == index].sum()) for index in range(len(totals))]
    return dict(zip(classes(), totals, strict=True))


_PROCESSORS = 4


@dataclass(frozen=True)
class Core:
    """One CPU core that can be emulated and counted: its name as qemu and targets spell it, and its /proc/cpuinfo."""

    model: str
    part: str
    variant: str
    revision: str
    features: str

    def files(self) -> dict[str, str]:
        """Files of the kernel that differ from this machine's, by path.

        ONNX Runtime chooses its kernels by what it reads there, and dies of what an x86 kernel writes.
        """
        fields = {
            "BogoMIPS": "108.00",
            "Features": self.features,
            "CPU implementer": "0x41",
            "CPU architecture": "8",
            "CPU variant": self.variant,
            "CPU part": self.part,
            "CPU revision": self.revision,
        }
        body = "".join(f"{name}\t: {value}\n" for name, value in fields.items())
        span = f"0-{_PROCESSORS - 1}\n"
        return {
            "proc/cpuinfo": "".join(f"processor\t: {number}\n{body}\n" for number in range(_PROCESSORS)),
            "sys/devices/system/cpu/possible": span,
            "sys/devices/system/cpu/present": span,
        }


_A76 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
CORES = (
    Core("cortex-a72", "0xd08", "0x0", "3", "fp asimd evtstrm crc32 cpuid"),
    Core("cortex-a76", "0xd0b", "0x4", "1", _A76),
)


PLUGIN_SOURCE = Path(__file__).with_name("icount.c")

PYTHONS = {"3.11": "bookworm", "3.13": "trixie"}
"""Minor versions of Python that a board can have, and Debian's release with each one's program and headers."""
PYTHON = "3.11"
"""The one that it has unless told otherwise."""


class Recipe(msgspec.Struct, frozen=True):
    """Everything that decides what a counter counts.

    Attributes:
        onnxruntime: the version that runs the models, this machine's own.
        numpy: the version beside it; its share of an inference is nothing that could be seen.
        qemu: package version of the emulator in that `release` of Debian. Later ones load no plugins.
        python: the minor version on the emulated board, whose Debian is that of PYTHONS.
    """

    machine: str
    onnxruntime: str
    plugin: str
    cores: tuple[Core, ...] = CORES
    numpy: str = "2.4.6"
    qemu: str = "1:7.2*"
    release: str = "bookworm"
    python: str = PYTHON

    @property
    def key(self) -> str:
        """Name of the folder: readable where it matters, and another one whenever anything changes."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        return f"onnxruntime-{self.onnxruntime}-{digest[:12]}"


def current_recipe(python: str = PYTHON) -> Recipe:
    """Return the recipe for this machine and its ONNX Runtime."""
    return Recipe(platform.machine(), onnxruntime_version(), PLUGIN_SOURCE.read_text(encoding="utf-8"), python=python)


CPUS = tuple(core.model for core in CORES)
"""Cores that can be counted, because it is known which kernels ONNX Runtime chooses on them."""

TIME_LIMIT_S = 900.0  # for one count, unless the caller says otherwise; a YOLOv8n takes about 50
SUFFIXES = (".onnx", ".ort")

_GUEST = Path(__file__).with_name("guest.py")
_MODEL_FAULT = 3  # exit code of guest.py
# All that the guest sees of an environment: what differs from one machine to the next would change its memory layout.
_GUEST_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
}


def spoken(cpu: str) -> str:
    """Return a board's core as messages name it."""
    return f"an emulated {cpu}" if cpu in CPUS else f"this {cpu}"


@functools.cache
def native_python(version: str) -> str:
    """Return this machine's Python of a minor version: the one that runs this, or that of PATH; empty for none."""
    if platform.python_version().startswith(f"{version}."):
        return sys.executable
    with contextlib.suppress(OSError):
        return run_program([f"python{version}", "-c", "import sys; print(sys.executable)"]).stdout.strip()
    return ""


class Board:
    """A Python that has the unpacked wheels in `site` and nothing else, on this machine as it is."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe, self.site = folder, recipe, folder / "site"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the program that `board_python` starts."""
        return {**_GUEST_ENVIRONMENT, "PATH": os.defpath, "PYTHONPATH": str(self.site)}

    def board_python(self, cpu: str) -> list[str]:
        """Return the command that starts Python."""
        return [native_python(self.recipe.python), "-S"]  # without the packages of its own environment


class Counter(Board):
    """The installed counter: an emulator with its plugin, and a guest's Python with ONNX Runtime.

    `libraries` are those of this machine's kind that the emulator needs, `system` is the arm64 Debian, `site` has the
    unpacked wheels, and `record` the recipe as JSON: it is written last, so that where it is, everything is.
    """

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        super().__init__(folder, recipe)
        self.key = recipe.key
        self.emulator = folder / "qemu-aarch64"
        self.libraries, self.system = folder / "libraries", folder / "system"
        self.plugin, self.record = folder / "icount.so", folder / "counter.json"

    def root(self, cpu: str) -> Path:
        """Return the system as programs see it on a board with that core."""
        return self.folder / cpu

    def count(self, model: Path | None, cpu: str, *, time_limit_s: float = TIME_LIMIT_S) -> Counts:
        """Count the instructions of one inference, on one thread and noise for input; a batch that is left open is 1.

        Without a model nothing is run, which shows that everything works together. A UsageError says that there is no
        such file, a ModelError that ONNX Runtime on the board cannot run it, an EdgeError that the emulator failed or
        took longer than the time limit, an OSError that the disk is full.
        """
        if model and (model.suffix not in SUFFIXES or not model.is_file()):
            what = "not a model" if model.exists() else "no such file"
            raise UsageError(f"{model}: {what}, expected an {' or '.join(SUFFIXES)} file")
        what = model.name if model else "a trial"
        with tempfile.TemporaryDirectory(prefix="edge-sdk-count-") as scratch:
            record = Path(scratch).absolute() / "counts"  # the emulator runs in another folder
            try:
                command = [*self.board_python(cpu, record), str(_GUEST), *([str(model.absolute())] if model else [])]
                done = run_program(command, timeout_s=time_limit_s, cwd=scratch, env=self.environment)
            except subprocess.TimeoutExpired:
                raise EdgeError(
                    f"{what}: not counted within {time_limit_s:g} s on an emulated {cpu}; give it more time"
                ) from None
            if done.returncode:
                raise _fault(what, cpu, done.returncode, done.stderr)
            by_class = count_classes(record.read_bytes())
        return Counts(what, cpu, done.stdout.strip(), sum(by_class.values()), by_class)

    def try_out(self) -> None:
        """Run Python, ONNX Runtime and the plugin on each core without a model; it leaves their bytecode too."""
        for core in self.recipe.cores:
            counts = self.count(None, core.model)
            if not counts.total or counts.onnxruntime != self.recipe.onnxruntime:
                raise EdgeError(f"the emulated {core.model} counts nothing, or has ONNX Runtime {counts.onnxruntime!r}")

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the emulator; its option -U hides these libraries from the guest, which has its own."""
        return {"LD_LIBRARY_PATH": str(self.libraries)}

    def board_python(self, cpu: str, record: Path | None = None) -> list[str]:
        """Return the command that starts the board's Python; without a record nothing is counted, which is faster."""
        environment = {**_GUEST_ENVIRONMENT, "PYTHONPATH": str(self.site)}
        return [
            *(str(self.emulator), "-cpu", cpu, "-L", str(self.root(cpu)), "-seed", "0", "-U", "LD_LIBRARY_PATH"),
            # A comma ends a value there, unless there are two of them.
            *(("-plugin", f"{_escaped(self.plugin)},counts={_escaped(record)}") if record else ()),
            *(part for name, value in environment.items() for part in ("-E", f"{name}={value}")),
            str(self.system / "usr" / "bin" / f"python{self.recipe.python}"),
        ]


def find_counter(folder: Path | None = None, python: str = PYTHON) -> Counter | None:
    """Return the counter that was set up for this machine and its ONNX Runtime; nothing is downloaded."""
    recipe = current_recipe(python)
    counter = Counter(counters_folder(folder) / recipe.key, recipe)
    return counter if counter.record.is_file() else None


def counters_folder(folder: Path | None = None) -> Path:
    """Return the folder of the installed counters inside the cache."""
    return (folder or cache_folder()).absolute() / "arm-cost"


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")


def _fault(what: str, cpu: str, code: int, said: str) -> EdgeError:
    words = last_words(said)
    if code == _MODEL_FAULT:
        return ModelError(f"{what}: ONNX Runtime on an emulated {cpu} cannot run it: {words}")
    if code < 0:
        return EdgeError(f"{what}: the emulator of {cpu} died of {signal.Signals(-code).name}: {words}")
    return EdgeError(f"{what}: the emulator of {cpu} ended with {code}: {words}")


_SPARE_S = 45.0  # beyond the time for inputs: start-up takes 3 s, the first inference of a YOLOv8n 10


@contextmanager
def board_outputs(
    counter: Board, model: Path, cpu: str, tensors: Sequence[Tensor], seconds: float
) -> Iterator[Callable[[], list[tuple[Tensor, ...]]]]:
    """Run an emulation beside this process; after `seconds` no further input, float32, is begun.

    The yielded function waits for the outputs, one tuple an input, for as many inputs as there was time for.
    It raises an EdgeError where the model does not run there, the emulator failed, or the first input took too long.
    """

    def finish() -> list[tuple[Tensor, ...]]:
        try:
            _, said = process.communicate(timeout=seconds + _SPARE_S)
            words = last_words(said)
            problem = f"{spoken(cpu)} ended with {process.returncode}: {words}"
        except subprocess.TimeoutExpired:
            problem = f"one image takes {spoken(cpu)} more than {seconds + _SPARE_S:g} s"
        paths = [folder / f"output_{number}.npz" for number in range(len(tensors))]
        outputs = []
        for path in filter(Path.is_file, paths):
            with np.load(path) as arrays:
                outputs.append(tuple(np.asarray(arrays[str(number)]) for number in range(len(arrays.files))))
        if not outputs or process.returncode:  # None after a time-out, where some may be there
            raise EdgeError(problem)
        return outputs

    with tempfile.TemporaryDirectory(prefix="edge-sdk-board-") as scratch:
        folder = Path(scratch).absolute()
        for number, tensor in enumerate(tensors):
            np.save(folder / f"input_{number}.npy", tensor)
        with subprocess.Popen(
            [*counter.board_python(cpu), str(_GUEST), str(model.absolute()), str(folder), str(seconds)],
            env=counter.environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            try:
                yield finish
            finally:
                process.kill()
