"""BoardOutputs: what a model says on an emulated core, computed by a process beside this one.

Owns the process, its folder and its end.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from edge_sdk.core.errors import EdgeError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost.counter import Counter, Cpu

_GUEST = Path(__file__).with_name("guest_outputs.py")
_SPARE_S = 45.0  # beyond the time for inputs: start-up takes 3 s, the first inference of a YOLOv8n 10


class BoardOutputs:
    """An emulation that runs; use it as a context, at whose end its process and its files are gone.

    Args:
        counter: what was set up.
        model: an .ort or .onnx file with one input.
        cpu: the core.
        tensors: float32, its inputs; kept nowhere.
        seconds: after so many no further input is begun.
    """

    def __init__(self, counter: Counter, model: Path, cpu: Cpu, tensors: Sequence[Tensor], seconds: float) -> None:
        self._seconds, self._cpu = seconds, cpu
        self._scratch = tempfile.TemporaryDirectory(prefix="edge-sdk-board-")
        self._folder, self._count = Path(self._scratch.name).absolute(), len(tensors)
        for number, tensor in enumerate(tensors):
            np.save(self._folder / f"input_{number}.npy", tensor)
        self._process = subprocess.Popen(
            [*counter.board_python(cpu), str(_GUEST), str(model.absolute()), str(self._folder), str(seconds)],
            env=counter.environment,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> BoardOutputs:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stderr:
            self._process.stderr.close()
        self._scratch.cleanup()

    def finish(self) -> list[tuple[Tensor, ...]]:
        """Wait for the outputs, one tuple an input, of as many inputs as there was time for, one at least.

        Raises:
            EdgeError: the model does not run there, the emulator failed, or the first input took too long.
        """
        try:
            _, said = self._process.communicate(timeout=self._seconds + _SPARE_S)
            words = (said.strip().splitlines() or ["it said nothing"])[-1]
            problem = f"the emulated {self._cpu} ended with {self._process.returncode}: {words}"
        except subprocess.TimeoutExpired:
            problem = f"one image takes the emulated {self._cpu} more than {self._seconds + _SPARE_S:g} s"
        paths = [self._folder / f"output_{number}.npz" for number in range(self._count)]
        outputs = [_read(path) for path in paths if path.is_file()]
        if not outputs or self._process.returncode:  # None after a time-out, where some may be there
            raise EdgeError(problem)
        return outputs


def _read(path: Path) -> tuple[Tensor, ...]:
    with np.load(path) as arrays:
        return tuple(np.asarray(arrays[str(number)]) for number in range(len(arrays.files)))
