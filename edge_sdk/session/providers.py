"""Providers: what was asked to compute, what does, and why not.

Owns where an execution provider keeps what it builds, and the reading of what ONNX Runtime says of one that does not
start: it says so on standard error alone, and goes on with the CPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
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
_OURS = re.compile(r"onnxruntime|^\x1b\[m$")


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
    """Append what is written to standard error inside, by libraries too; what is not ONNX Runtime's is passed on."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode("utf-8", "replace")
            said.append(text)
            sys.stderr.write("".join(line for line in text.splitlines(keepends=True) if not _OURS.search(line)))
