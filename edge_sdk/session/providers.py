"""Providers: what was asked to compute, what does, and why not.

Owns where an execution provider keeps what it builds, and the reading of what ONNX Runtime says of one that does not
start: it says so on standard error alone, and goes on with the CPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_sdk.errors import OutputError
from edge_sdk.session.settings import SessionSettings
from edge_sdk.state_folder import state_folder

CPU = "CPUExecutionProvider"
_PACKAGES = {"TensorrtExecutionProvider": "onnxruntime-gpu", "CUDAExecutionProvider": "onnxruntime-gpu"}
_NO_LIBRARY = re.compile(r"Failed to load library \S*_providers_(\w+)\.so with error: (.+)")
_NOT_CREATED = re.compile(r"Failed to create (\w+)\.\s*(.*?)(?:\. Please|$)")
_OF_RUNTIME = re.compile(rb"\[[VIWEF]:onnxruntime:|^\x1b\[m$")  # a line of its log, or what ends the colour of one
_PIECE = 65_536
_PATIENCE_S = 1.0  # a process that was started meanwhile may keep the pipe open
_listening = threading.Lock()  # a process has one standard error


class Providers(msgspec.Struct, frozen=True):
    """Execution providers of one session, by ONNX Runtime's own names.

    Attributes:
        asked: in order of preference.
        got: in order of preference; the CPU comes last, always.
        why_not: of those that were asked for and not got, by name.
        nodes: how many nodes of the graph each one runs; empty where only the CPU was got, or where this ONNX Runtime
            does not tell.
    """

    asked: tuple[str, ...]
    got: tuple[str, ...]
    why_not: dict[str, str]
    nodes: dict[str, int]

    def shortfalls(self) -> list[str]:
        """What is not as it was asked for, one line each; nothing when all is."""
        lines = [f"{name} was asked for and is not used: {reason}" for name, reason in self.why_not.items()]
        on_cpu, count = self.nodes.get(CPU, 0), sum(self.nodes.values())
        if self.got[0] != CPU and on_cpu:
            lines.append(f"{on_cpu} of {count} nodes run on the CPU, though {self.got[0]} comes first")
        return lines


def options_of(provider: str, settings: SessionSettings) -> dict[str, str]:
    """The options that a provider gets: those of the settings, and for TensorRT a folder for its engines.

    A board builds an engine for minutes: once is enough. Its name says model, GPU and version. The folder is made where
    it is missing; without a place for one each start builds anew.
    """
    options = settings.provider_options.of(provider)
    folder = _engine_folder(settings.cache_folder) if provider == "TensorrtExecutionProvider" else None
    if folder is None:
        return options
    return {
        **options,
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
    }


def _engine_folder(chosen: str | None) -> Path | None:
    """Only this user's: an engine is code that the GPU runs."""
    try:
        folder = Path(chosen) if chosen else state_folder() / "tensorrt"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, OutputError):
        return None
    return folder


def not_installed(provider: str, version: str) -> str:
    """Why a provider that ONNX Runtime does not bring is not used."""
    package = _PACKAGES.get(provider)
    hint = f"; it comes with {package}, in place of onnxruntime" if package else ""
    return f"not in this ONNX Runtime {version}{hint}"


def not_started(provider: str, said: str, cause: str = "") -> str:
    """Why a provider that ONNX Runtime brings is not used.

    Args:
        provider: its name.
        said: what went to standard error.
        cause: what was raised; empty when nothing was.
    """
    short = provider.removesuffix("ExecutionProvider").lower()
    for library, reason in _NO_LIBRARY.findall(said):
        if library == short:
            return f"its library cannot be loaded: {reason.strip()}"
    for name, reason in _NOT_CREATED.findall(said):
        if name == provider:
            return f"it cannot be started: {reason.strip() or 'no reason was given'}"
    return f"it cannot be started: {cause or 'no reason was given'}"


@contextlib.contextmanager
def standard_error_read(said: list[str]) -> Iterator[None]:
    """Append what ONNX Runtime logs to standard error inside; what anybody else writes there is passed on at once."""
    with _listening:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            kept = os.dup(2)
        except OSError:  # it is closed: nobody can say anything there
            yield
            return
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        reader = threading.Thread(target=_pass_on, args=(reading, os.dup(kept), said), name="edge-stderr", daemon=True)
        reader.start()
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(kept, 2)  # the last end of the pipe to write to: the reader finds its end
            os.close(kept)
            reader.join(_PATIENCE_S)


def _pass_on(reading: int, standard_error: int, said: list[str]) -> None:
    """Read lines until nobody can write any more; then close both."""
    rest = b""
    while piece := os.read(reading, _PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            _sort(line + b"\n", standard_error, said)
    _sort(rest, standard_error, said)
    os.close(reading)
    os.close(standard_error)


def _sort(line: bytes, standard_error: int, said: list[str]) -> None:
    if _OF_RUNTIME.search(line.rstrip(b"\n")):
        said.append(line.decode("utf-8", "replace"))
        return
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(standard_error, line)
