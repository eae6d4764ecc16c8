"""Counter: a folder with an emulator, an arm64 Python and the plugin, which counts what an inference costs.

Owns the folder's layout and the emulator's command line. `installation` fills the folder.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from edge_sdk.core.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.arm_cost.counts import Counts, count_classes
from edge_sdk_tools.arm_cost.recipe import Recipe, current_recipe
from edge_sdk_tools.wheel import cache_folder

Cpu: TypeAlias = Literal["cortex-a72", "cortex-a76"]
CPUS: tuple[Cpu, ...] = ("cortex-a72", "cortex-a76")
"""What can be counted: cores of which it is known what ONNX Runtime chooses on them."""

TIME_LIMIT_S = 900.0
"""Seconds for one count, unless the caller says otherwise; a YOLOv8n takes about 50."""
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


class Counter:
    """What `set_up` made.

    Args:
        folder: its folder.
        recipe: what is in it.
    """

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder = folder
        self.recipe = recipe

    @property
    def emulator(self) -> Path:
        """The user emulator of qemu."""
        return self.folder / "qemu-aarch64"

    @property
    def key(self) -> str:
        """Names the counter by all that it was made of."""
        return self.recipe.key

    @property
    def libraries(self) -> Path:
        """Shared libraries of this machine's kind that the emulator needs."""
        return self.folder / "libraries"

    @property
    def system(self) -> Path:
        """The arm64 Debian."""
        return self.folder / "system"

    @property
    def site(self) -> Path:
        """The unpacked aarch64 wheels."""
        return self.folder / "site"

    @property
    def plugin(self) -> Path:
        """The compiled plugin."""
        return self.folder / "icount.so"

    @property
    def record(self) -> Path:
        """The recipe as JSON; written last, so that where it is, everything is."""
        return self.folder / "counter.json"

    def root(self, cpu: str) -> Path:
        """The system as programs see it on a board with that core."""
        return self.folder / cpu

    def count(self, model: Path, cpu: Cpu, *, time_limit_s: float = TIME_LIMIT_S) -> Counts:
        """Count the instructions of one inference, on one thread and noise for input.

        Args:
            model: an .onnx or .ort file with inputs of fixed shape; a batch that is left open is 1.
            cpu: the core.
            time_limit_s: seconds by the clock after which the emulator is ended.

        Raises:
            UsageError: there is no such file or core.
            ModelError: ONNX Runtime on the board cannot run it.
            EdgeError: the emulator failed, or took too long.
            OSError: the disk is full.
        """
        if model.suffix not in SUFFIXES or not model.is_file():
            what = "not a model" if model.exists() else "no such file"
            raise UsageError(f"{model}: {what}, expected an {' or '.join(SUFFIXES)} file")
        if cpu not in CPUS:
            raise UsageError(f"{cpu!r} cannot be counted, expected one of: {', '.join(CPUS)}")
        return self._run(cpu, model, time_limit_s)

    def try_out(self, cpu: str, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        """Run the board's Python, ONNX Runtime and the plugin without a model; it leaves their bytecode too.

        Raises:
            EdgeError: they do not work together on this machine.
        """
        counts = self._run(cpu, None, time_limit_s)
        if not counts.total or counts.onnxruntime != self.recipe.onnxruntime:
            raise EdgeError(f"the emulated {cpu} counts nothing, or has ONNX Runtime {counts.onnxruntime!r}")

    def _run(self, cpu: str, model: Path | None, time_limit_s: float) -> Counts:
        what = model.name if model else "a trial"
        with tempfile.TemporaryDirectory(prefix="edge-sdk-count-") as scratch:
            record = Path(scratch).absolute() / "counts"  # the emulator runs in another folder
            try:
                done = subprocess.run(
                    [*self.board_python(cpu, record), str(_GUEST), *([str(model.absolute())] if model else [])],
                    env=self.environment,
                    cwd=scratch,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    check=False,
                    timeout=time_limit_s,
                )
            except subprocess.TimeoutExpired:
                raise EdgeError(
                    f"{what}: not counted within {time_limit_s:g} s on an emulated {cpu}; give it more time"
                ) from None
            if done.returncode:
                raise _fault(what, cpu, done.returncode, done.stderr)
            by_class = count_classes(record.read_bytes())
        return Counts(what, cpu, done.stdout.strip(), sum(by_class.values()), by_class)

    @property
    def environment(self) -> dict[str, str]:
        """Of the emulator: only it needs these libraries; -U takes them from the guest, whose are others."""
        return {"LD_LIBRARY_PATH": str(self.libraries)}

    def board_python(self, cpu: str, record: Path | None = None) -> list[str]:
        """The command that starts the board's Python.

        Args:
            cpu: the core.
            record: where instructions are counted; None counts none and is some times faster.
        """
        environment = {**_GUEST_ENVIRONMENT, "PYTHONPATH": str(self.site)}
        return [
            *(str(self.emulator), "-cpu", cpu, "-L", str(self.root(cpu)), "-seed", "0", "-U", "LD_LIBRARY_PATH"),
            # A comma ends a value there, unless there are two of them.
            *(("-plugin", f"{_escaped(self.plugin)},counts={_escaped(record)}") if record else ()),
            *(part for name, value in environment.items() for part in ("-E", f"{name}={value}")),
            str(self.system / "usr" / "bin" / f"python{self.recipe.python}"),
        ]


def find_counter(folder: Path | None = None) -> Counter | None:
    """The counter that was set up for this machine and its ONNX Runtime; nothing is downloaded.

    Args:
        folder: the cache's root; `cache_folder()` by default.
    """
    recipe = current_recipe()
    counter = Counter(counters_folder(folder) / recipe.key, recipe)
    return counter if counter.record.is_file() else None


def counters_folder(folder: Path | None = None) -> Path:
    """Where counters lie in a cache."""
    return (folder or cache_folder()).absolute() / "arm-cost"


def write_record(counter: Counter) -> None:
    """Say that a counter's folder is complete."""
    counter.record.write_bytes(msgspec.json.format(msgspec.json.encode(counter.recipe), indent=2) + b"\n")


def _escaped(path: Path) -> str:
    return str(path).replace(",", ",,")


def _fault(what: str, cpu: str, code: int, said: str) -> EdgeError:
    words = (said.strip().splitlines() or ["it said nothing"])[-1]
    if code == _MODEL_FAULT:
        return ModelError(f"{what}: ONNX Runtime on an emulated {cpu} cannot run it: {words}")
    if code < 0:
        return EdgeError(f"{what}: the emulator of {cpu} died of {signal.Signals(-code).name}: {words}")
    return EdgeError(f"{what}: the emulator of {cpu} ended with {code}: {words}")
