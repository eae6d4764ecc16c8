"""Sessions of the workstation: ONNX Runtime's profile, operators of onnxruntime-extensions, and latency here.

Latencies are taken side by side, in CPU time: they make ratios, never a claim about the device. x86 before VNNI sums
U8S8 products in saturating 16-bit lanes: with full-range weights such a host would write down as golden what no ARM
board gives.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.bundle.target import CPU, Target
from edge_sdk.core.errors import IncompatibleError, OutputError
from edge_sdk.core.files import system_text
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, SessionSettings, available_providers, extension_libraries
from edge_sdk.inference.session import Session
from edge_sdk_tools.bundle_folder import raise_if_full


class ProfiledSession(Session):
    """Runs as any session does, and notes it; `stop_profile` says what."""

    def __init__(self, model: Path, folder: Path) -> None:
        # ONNX Runtime adds only the millisecond to the name, and two may be opened within one.
        settings = SessionSettings(profile_prefix=str(folder / f"profile_{id(self):x}"))
        self._folder = folder
        super().__init__(model.read_bytes(), settings, model.name)

    def stop_profile(self) -> list[ProfileEvent]:
        """Return all that was noted; an OSError says that the disk is full."""
        try:
            return super().stop_profile()
        except OutputError as cause:
            raise_if_full(self._folder, cause)
            raise


def has_extensions() -> bool:
    """Tell whether onnxruntime-extensions is installed here."""
    return importlib.util.find_spec("onnxruntime_extensions") is not None


def extension_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes of the main graph that are operators of onnxruntime-extensions."""
    return [node for node in proto.graph.node if node.domain == EXTENSIONS_DOMAIN]


def register_extensions(options: ort.SessionOptions, model: bytes) -> None:
    """Make the package's operators known to a session that is about to be opened, where its model names them."""
    for library in extension_libraries(model):
        options.register_custom_ops_library(str(library))


def timing_settings(target: Target) -> SessionSettings:
    """Return the settings by which times for a target are taken: one thread, on its providers that are here."""
    here = tuple(provider for provider in target.providers if provider in available_providers())
    return SessionSettings(here, provider_options=target.provider_options) if here[0] != CPU else SessionSettings()


def host_saturates() -> bool:
    """Tell whether sums of INT8 saturate on this machine."""
    return saturates(platform.machine(), system_text(Path("/proc/cpuinfo")))


def saturates(machine: str, cpu_info: str) -> bool:
    """Tell whether sums of INT8 saturate on a machine with this /proc/cpuinfo."""
    return machine == "x86_64" and "vnni" not in cpu_info


def host_target() -> str:
    """Return the name of this machine's target; an IncompatibleError says that it has none."""
    names = {"x86_64": "x86_64_avx2" if host_saturates() else "x86_64", "aarch64": "arm64"}
    if (machine := platform.machine()) not in names:
        raise IncompatibleError(f"this machine is {machine}, expected {' or '.join(names)}")
    return names[machine]


_ROUNDS = 15
_MOST_ROUNDS = 60
_SECONDS = 6.0
_DOUBT = 0.05


def interleaved_latency_ms(
    calls: Sequence[Callable[[], object]],
    on_round: Callable[[int, int], None] = lambda _done, _total: None,
    limits: Sequence[float] = (),
) -> list[float]:
    """Return the milliseconds of each call: its median ratio to the last call, round by round, times that one's median.

    The calls are measured in turn, in CPU time of this thread, in which they must do all their work: what else the
    machine does disturbs all of them alike, and hardly at all. Each is called twice to warm up. Where the interval of
    the first call's ratio holds one of `limits`, more rounds follow. About six seconds of CPU time are spent at most,
    and three rounds at least. `on_round` gets the rounds done and all rounds.
    """
    for call in calls:
        call()
        call()
    rounds: list[list[float]] = []
    deadline = time.thread_time() + _SECONDS
    while len(rounds) < 3 or time.thread_time() < deadline:
        rounds.append([_cpu_ms(call) for call in calls])
        on_round(len(rounds), max(len(rounds), _ROUNDS))
        taken_ms = np.array(rounds)
        ratios = taken_ms[:, 0] / taken_ms[:, -1]
        is_clear = not any(median_bound(ratios) <= limit <= -median_bound(-ratios) for limit in limits)
        if len(rounds) >= _MOST_ROUNDS or (len(rounds) >= _ROUNDS and is_clear):
            break
    last_ms = taken_ms[:, -1:]
    return [float(ratio * np.median(last_ms)) for ratio in np.median(taken_ms / last_ms, axis=0)]


def _cpu_ms(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return max((time.thread_time() - start) * 1e3, 1e-6)


def median_bound(values: NDArray[np.float64]) -> float:
    """Return the median's lower 95 % bound: an order statistic, by the binomial law, whatever the noise is like."""
    count = len(values)
    below = np.cumsum([math.comb(count, number) for number in range(count + 1)]) / 2**count
    rank = int(np.searchsorted(below, _DOUBT)) - 1
    return float(np.sort(values)[max(rank, 0)])


_ONE = threading.Lock()


@contextlib.contextmanager
def silenced(*words: str) -> Iterator[None]:
    """Discard what is printed within the context, and what is logged on the root logger with any of these words."""

    def is_other(record: logging.LogRecord) -> bool:
        return not any(part in record.getMessage() for part in words)

    root = logging.getLogger()
    with _ONE, contextlib.redirect_stdout(io.StringIO()):
        root.addFilter(is_other)
        try:
            yield
        finally:
            root.removeFilter(is_other)
