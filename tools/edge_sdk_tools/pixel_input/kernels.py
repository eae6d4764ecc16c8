"""What a model file runs, kernel by kernel, and how long each takes: read from ONNX Runtime's own profile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from edge_sdk.core.frame import Tensor
from edge_sdk.inference.profile import Event
from edge_sdk_tools.profiled import ProfiledSession

_RUN = "model_run"


class KernelRun(msgspec.Struct, frozen=True):
    """One inference. A kernel is named by its operator, and what it reads and makes after a space.

    Attributes:
        counts: how often each kernel ran.
        ms: milliseconds of each, all its runs together.
    """

    counts: Counter[str]
    ms: dict[str, float]

    @property
    def operators(self) -> Counter[str]:
        """How often each operator ran."""
        found: Counter[str] = Counter()
        for name, count in self.counts.items():
            found[name.split()[0]] += count
        return found


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
    counts: Counter[str] = Counter()
    for kernel in kernels:
        name = _name(kernel)
        counts[name] += 1
        ms[name] = ms.get(name, 0.0) + kernel.dur / 1e3
    return KernelRun(counts, ms)


def _name(kernel: Event) -> str:
    """With types and shapes, so that a convolution of four channels is another kernel than one of three."""
    sides = (kernel.args.get(key, []) for key in ("input_type_shape", "output_type_shape"))
    return f"{kernel.args['op_name']} {msgspec.json.encode(list(sides)).decode()}"
