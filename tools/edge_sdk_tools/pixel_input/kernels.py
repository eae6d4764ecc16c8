"""What a model file runs, kernel by kernel, and how long each takes: read from ONNX Runtime's own profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from edge_sdk.frame import Tensor
from edge_sdk.session import Session, SessionSettings

_RUN = "model_run"
_KERNEL = "_kernel_time"


class KernelRun(msgspec.Struct, frozen=True):
    """One inference.

    Attributes:
        counts: kernels by operator.
        ms: milliseconds of all kernels of an operator together.
    """

    counts: Counter[str]
    ms: dict[str, float]


class KernelClock:
    """A session that notes what it runs.

    Args:
        model: the file.
        folder: for the profile.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        # Named by the clock too: ONNX Runtime names a profile by the millisecond, and two are opened within one.
        settings = SessionSettings(profile_prefix=str(folder / f"kernels_{id(self):x}"))
        self._session = Session(model.read_bytes(), settings, model.name)

    def run(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Run once; outputs are overwritten by the next call."""
        return self._session.run(tensor)

    def stop(self) -> list[KernelRun]:
        """All runs so far, in their order; nothing is noted any more."""
        profile = Path(self._session.inference.end_profiling())
        events = msgspec.json.decode(profile.read_bytes(), type=list[_Event])
        profile.unlink()
        kernels = [event for event in events if event.name.endswith(_KERNEL) and "op_name" in event.args]
        return [
            _run([kernel for kernel in kernels if run.ts <= kernel.ts < run.ts + run.dur])
            for run in sorted((event for event in events if event.name == _RUN), key=lambda event: event.ts)
        ]


class _Event(msgspec.Struct):
    """One line of the profile: start and duration in microseconds."""

    name: str
    ts: int = 0
    dur: int = 0
    args: dict[str, Any] = {}


def _run(kernels: list[_Event]) -> KernelRun:
    ms: dict[str, float] = {}
    for kernel in kernels:
        name = kernel.args["op_name"]
        ms[name] = ms.get(name, 0.0) + kernel.dur / 1e3
    return KernelRun(Counter(kernel.args["op_name"] for kernel in kernels), ms)
