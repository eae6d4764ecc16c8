"""What a model file runs, kernel by kernel, and how long each takes: read from ONNX Runtime's own profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from edge_sdk.frame import Tensor
from edge_sdk.session import Event
from edge_sdk_tools.profiled import ProfiledSession

_RUN = "model_run"


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
        self._session = ProfiledSession(model, folder)

    def run(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Run once; outputs are overwritten by the next call."""
        return self._session.run(tensor)

    def stop(self) -> list[KernelRun]:
        """All runs so far, in their order; nothing is noted any more."""
        events = self._session.stop_profile()
        kernels = [event for event in events if event.is_kernel]
        return [
            _run([kernel for kernel in kernels if run.ts <= kernel.ts < run.ts + run.dur])
            for run in sorted((event for event in events if event.name == _RUN), key=lambda event: event.ts)
        ]


def _run(kernels: list[Event]) -> KernelRun:
    ms: dict[str, float] = {}
    for kernel in kernels:
        name = kernel.args["op_name"]
        ms[name] = ms.get(name, 0.0) + kernel.dur / 1e3
    return KernelRun(Counter(kernel.args["op_name"] for kernel in kernels), ms)
