"""Sessions of the workstation: ONNX Runtime's profile, operators of onnxruntime-extensions, and latency here.

Latencies are taken side by side: they make ratios, and never a claim about the device. x86 before VNNI sums U8S8
products in saturating 16-bit lanes: with full-range weights such a host would write down as golden what no ARM board
gives.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx
import onnxruntime as ort

from edge_sdk.core.errors import OutputError
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, extension_libraries
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
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


_CPU_INFO = Path("/proc/cpuinfo")


def host_saturates() -> bool:
    """Tell whether sums of INT8 saturate on this machine."""
    machine = platform.machine()
    return machine == "x86_64" and saturates(machine, _CPU_INFO.read_text(encoding="utf-8", errors="replace"))


def saturates(machine: str, cpu_info: str) -> bool:
    """Tell whether sums of INT8 saturate on a machine with this /proc/cpuinfo."""
    return machine == "x86_64" and "vnni" not in cpu_info


_ROUNDS = 15
_SECONDS = 6.0


def interleaved_latency_ms(
    calls: Sequence[Callable[[], object]], on_round: Callable[[int, int], None] = lambda _done, _total: None
) -> list[float]:
    """Return the median milliseconds of each call, measured in turn so that a noisy machine disturbs all of them alike.

    Each is called twice to warm up. About six seconds are spent at most, and three rounds at least. `on_round` gets the
    rounds done and all rounds.
    """
    for call in calls:
        call()
        call()
    taken: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + _SECONDS
    for done in range(1, _ROUNDS + 1):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)
        on_round(done, _ROUNDS)
        if done >= 3 and time.perf_counter() > deadline:
            break
    return [statistics.median(times) for times in taken]


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
