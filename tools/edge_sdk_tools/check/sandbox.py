"""Run work on an untrusted file in a process with limits on memory, time and files.

A crash, a time-out or a lack of memory there becomes one error line here and does not harm the caller's process.
`Job` goes in and `Examined` comes out, as MessagePack.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.bundle.target import Target
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.inference.trial import TrialLimits
from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
from edge_sdk_tools.check.report import CheckReport, Finding, RefusedModelError


class Job(msgspec.Struct, frozen=True):
    """One model to examine, by its absolute path in the file system's own bytes, which may be no text.

    Without a target this machine must run it. With `wants_model` the checked model is wanted too, not only the report;
    with `adopts` the file's own size, layout and number of channels count more than those of `input`.
    """

    name: str
    model: bytes
    input: InputSpec
    target: Target | None
    wants_model: bool
    adopts: bool = False

    @property
    def onnxruntime(self) -> str:
        """The version of ONNX Runtime that must run the model."""
        return self.target.min_onnxruntime if self.target else onnxruntime_version()

    def report(self, *findings: Finding) -> CheckReport:
        """Return a report that holds these findings alone."""
        target = self.target.name if self.target else None
        return CheckReport(name=self.name, model="", target=target, onnxruntime=self.onnxruntime, findings=findings)


class Examined(msgspec.Struct, frozen=True):
    """The result of an examination, without the model's path, and without what labels and decoder add to the report.

    The skeleton is the model without its large weights; it is empty when it was not wanted or the model did not pass.
    """

    report: CheckReport
    skeleton: bytes = b""


ENVIRONMENT = {
    # Threads of the linear algebra library take memory by the core.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc: memory of large tensors goes back to the system at once.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
}
"""Set for the process, beside what the caller has."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of the process: MiB beside what its imports take, seconds of CPU, and seconds by the clock."""

    memory_mb: int
    cpu_s: int
    wall_s: int


def run_limited(module: str, request: bytes, limits: Limits) -> bytes:
    """Run `python -m module` on a request and return what it writes.

    The module reads the request with `read_request` and answers with `write_answer`. A RefusedModelError says that it
    crashed or took more than it may, a RuntimeError that it failed, which is a bug of edge-sdk.
    """
    path = os.pathsep.join(str(Path(entry or ".").absolute()) for entry in sys.path)
    # An empty folder, so that no file beside the model is found as a module or as data.
    with interrupted_by_sigterm(), tempfile.TemporaryDirectory(prefix="edge-sdk-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", module],
                input=msgspec.msgpack.encode((limits, request)),
                capture_output=True,
                check=False,
                timeout=limits.wall_s,
                cwd=folder,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path, "TMPDIR": folder},
            )
        except subprocess.TimeoutExpired:
            raise _died(f"it was not examined within {limits.wall_s} s") from None
    if done.returncode == 0:
        return done.stdout
    if done.returncode > 0:
        said = done.stderr.decode(errors="replace").strip()
        its_own = RuntimeError(f"in the process of {module}:\n{said}")  # so that a traceback shows it first
        raise RuntimeError(said.splitlines()[-1] if said else "") from its_own
    number = -done.returncode
    if number == signal.SIGXCPU:
        raise _died(f"examining it took more than {limits.cpu_s} s of CPU")
    if number == signal.SIGKILL:
        raise _died("the process that examined it was killed, perhaps for want of memory")
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    raise _died(f"the process that examined it crashed ({name})")


def read_request() -> bytes:
    """Take up the limits and return the request; the process itself calls this after all imports."""
    limits, request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[Limits, bytes])
    TrialLimits.here(limits.memory_mb, limits.wall_s).take_up()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # The signal of the soft limit comes a second earlier, and says what happened.
    highest = limits.cpu_s + 1 if hard == resource.RLIM_INFINITY else min(limits.cpu_s + 1, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (min(limits.cpu_s, highest), highest))
    return request


def write_answer(answer: bytes) -> None:
    """Write the answer to standard output."""
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def _died(what: str) -> RefusedModelError:
    return RefusedModelError(what, "the file is damaged, hostile or far too large: export it again")
