"""PeakMemory: how much memory models take at their peaks, measured by one process beside this one.

Owns the process and its end. What cannot be measured is left out, and never fails a build.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_CHILD = Path(__file__).with_name("peak_memory_child.py")
_TIME_LIMIT_S = 60.0  # six models of a YOLOv8m's size take ten seconds on two slow cores
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


class PeakMemory:
    """A measurement that runs; use it as a context, at whose end its process is gone.

    Args:
        models: .onnx and .ort files that can be trusted.
        shipped: the one of them that a device loads, and so as a device does: from bytes that it has read.
    """

    def __init__(self, models: Sequence[Path], shipped: Path) -> None:
        self._count = len(models)
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), *(str(model.absolute()) for model in (shipped, *models))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, **_ENVIRONMENT},
        )

    def __enter__(self) -> PeakMemory:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the fork that holds a model
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def finish(self) -> list[float | None]:
        """Wait for the figures: MB of 1e6 bytes above those of a process without a model, one a model in their order.

        Memory of the process alone counts, not the pages of ONNX Runtime's library; None where it is not known.
        """
        try:
            said, _ = self._process.communicate(timeout=_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            said = ""
        lines = said.splitlines()[: self._count]
        found: list[float | None] = [int(line) / 1e6 if line.isdigit() else None for line in lines]
        return found + [None] * (self._count - len(found))
