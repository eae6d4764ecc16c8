"""Try a bundle's model in a limited process before it runs in this one, once per bundle and device.

A model that crashes ONNX Runtime, hangs or takes all memory does so in that process. `prove_here` starts `python -m
edge_sdk.inference.trial` and sends it a `TrialJob` on standard input; that process limits itself by `TrialLimits`,
loads the model and replays its golden inputs. It ends with the exit code of its error, and with the error's text as the
last line on standard error. The state folder keeps a `TrialRecord` of each successful trial.

It also keeps the newest version of each signed bundle that was proved here (`remember_version`), and `refuse_older`
refuses older ones: a signature stays valid for ever, so an attacker who can write to a device's disk could put back an
old bundle with a known fault. Only bundles with a verified signature count, because other manifests can state any
version. A state folder that cannot be read or written never stops a device.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import edge_sdk
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import (
    BundleError,
    EdgeError,
    IncompatibleError,
    MissingDependencyError,
    ModelError,
    OutputError,
    SessionError,
    is_out_of_memory,
    says_out_of_memory,
)
from edge_sdk.core.files import forget_oldest, read_record, read_regular, state_folder, write_record
from edge_sdk.core.machine import Cpu, free_bytes
from edge_sdk.core.threads import temporary_folder
from edge_sdk.inference.runtime import SessionSettings, check_device, onnxruntime_version, reduced_runtime
from edge_sdk.inference.session import Stages

if TYPE_CHECKING:
    import subprocess

_log = logging.getLogger(__name__)
_SPARE_SHARE = 0.8  # share of the free memory; the rest is for other processes


class TrialLimits(msgspec.Struct, frozen=True):
    """Limits of the process that tries a bundle: memory and wall-clock seconds in addition to those of its imports."""

    memory_bytes: int
    seconds: float

    @classmethod
    def here(cls, memory_mb: int, seconds: float) -> TrialLimits:
        """Return the limits of a trial on this machine now: `memory_mb` MiB, or less if less is free."""
        promised, free = memory_mb * 2**20, free_bytes()
        return cls(promised if free is None else min(promised, int(free * _SPARE_SHARE)), seconds)

    def take_up(self) -> None:
        """Limit this process for good; call it after all imports.

        If memory runs out in spite of the limits, the kernel shall end this process and no other.
        """
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        taken_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
        _lower(resource.RLIMIT_DATA, taken_kb * 1024 + self.memory_bytes)
        _lower(resource.RLIMIT_CORE, 0)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        # The default action ends the process at any point, even if its parent is gone.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


class TrialJob(msgspec.Struct, frozen=True):
    """The request to the process that tries a bundle."""

    bundle: bytes  # absolute path of its folder; a file name may be no valid text
    digest: str
    signed: bool
    variant: str
    settings: SessionSettings | None
    limits: TrialLimits


_MAX = 64  # number of records kept; each has less than a kilobyte


class TrialRecord(msgspec.Struct, frozen=True):
    """What was tried and where; if any value differs, the bundle is tried again."""

    bundle: str
    variant: str
    settings: SessionSettings
    edge_sdk: str
    onnxruntime: str
    cpu: str

    @classmethod
    def of(cls, bundle: Bundle, settings: SessionSettings | None) -> TrialRecord:
        """Describe a trial of the bundle's first variant here, by default with the bundle's settings."""
        variant = bundle.manifest.variants[0].name
        settings = settings or SessionSettings.of(bundle.manifest)
        return cls(bundle.digest, variant, settings, edge_sdk.__version__, onnxruntime_version(), Cpu.read().digest)

    def is_known(self) -> bool:
        """Tell whether the state folder contains this record, so that no trial is needed."""
        try:
            return read_regular(self._path()) == msgspec.json.encode(self)
        except (OSError, OutputError):  # the state folder may be missing
            return False

    def remember(self) -> None:
        """Write the record; keep only the newest 64."""
        path = self._path()
        write_record(path, msgspec.json.encode(self))
        forget_oldest(path.parent, _MAX)

    def _path(self) -> Path:
        name = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]
        return state_folder() / "proved" / f"{name}.json"


TRIAL_S = 60.0
_IMPORTS_S = 30.0  # time for the process to import from a slow card and set its own limit
_LOOK_S = 0.1  # delay until a signal is noticed
_NICENESS = 10  # a tenth of the normal weight, so that cameras keep their share of the processor
_KEPT_VARIABLES = frozenset(
    (
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),  # the stack of each thread counts against its memory
        *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "HOME", "TMPDIR"),
        *("STATE_DIRECTORY", "XDG_STATE_HOME"),  # folder of an accelerator's engines
        *("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING"),
        *("CUDA_CACHE_PATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE"),
    )
)
"""The only variables that a trial inherits, because any other one may contain a password."""
_IMPORT_PATH = tuple(sys.path)
"""The import path when this module was imported; OpenCV's import, in another thread, adds folders for a while."""


_SAID = "edge-sdk: "  # prefix of the line of an expected error
_SOUND = b"sound"  # the end of the output of a success, because an exit code of 0 proves nothing
_FAMILIES = {family.exit_code: family for family in (BundleError, ModelError, MissingDependencyError)}


_warn_once = functools.cache(_log.warning)


def prove_here(
    bundle: Bundle,
    *,
    settings: SessionSettings | None = None,
    seconds: float = TRIAL_S,
    is_stopped: Callable[[], bool] = lambda: False,
    beside: bool = False,
) -> bool:
    """Load a model and replay its golden inputs in a process of its own, unless that succeeded here before.

    Args:
        bundle: verified; its first variant is tried.
        settings: settings with which it will run; by default the bundle's.
        seconds: time limit of the trial; 0: skip it.
        is_stopped: called while waiting; the trial ends if it returns True.
        beside: whether this process runs frames meanwhile; the trial then gets a lower priority.

    Returns:
        True if the model may be loaded; False if `is_stopped` returned True first.

    Raises:
        IncompatibleError: this device or its ONNX Runtime cannot run the model.
        BundleError: the bundle was changed after it was opened, or its golden file is invalid.
        ModelError: the model's outputs do not fit its labels and decoder.
        MissingDependencyError: the model needs operators of a package that is not installed.
        SessionError: no process can be started at present.
    """
    if seconds == 0:
        return True
    proof = TrialRecord.of(bundle, settings)
    if proof.is_known():
        return True
    limits = TrialLimits.here(bundle.manifest.memory_mb, seconds)
    job = TrialJob(os.fsencode(bundle.path.absolute()), bundle.digest, bundle.signed, proof.variant, settings, limits)
    where = f"{bundle.path / bundle.manifest.variants[0].file}"
    if not _run(job, where, bundle.manifest.memory_mb, is_stopped, beside=beside):
        return False
    try:
        proof.remember()
    except OutputError as cause:
        _warn_once(f"the trial of the bundle cannot be recorded, so every start repeats it: {cause}")
    return True


def check_here(bundle: Bundle) -> None:
    """Raise EdgeError where a bundle does not run here; what a reduced runtime says of itself is tried as well."""
    check_device(bundle)
    if reduced_runtime() is not None:
        prove_here(bundle)


def _run(job: TrialJob, where: str, memory_mb: int, is_stopped: Callable[[], bool], *, beside: bool) -> bool:
    """Start the process and wait for its end; return False if `is_stopped` returned True first."""
    import subprocess  # imported here because most starts need no trial

    # A new process group, so that Ctrl-C reaches only this process; and the folder /, so that Python imports no file
    # from the user's folder.
    with contextlib.ExitStack() as stack:
        variables = _environment()
        with contextlib.suppress(OSError):  # without a writable disk; most bundles unpack nothing
            own = stack.enter_context(temporary_folder("edge-trial-"))
            variables["TMPDIR"] = own  # so that files which a crash leaves are removed
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "edge_sdk.inference.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=variables,
                start_new_session=True,
            )
        except OSError as cause:
            # A lack of files, processes or memory at present, which is no fault of the model.
            raise SessionError(
                f"{where}: cannot be tried, no process can be started: {cause.strerror}; --trial-seconds 0 loads it "
                "untried"
            ) from cause
        stack.enter_context(process)
        try:
            if beside:
                # Set by the parent, because the imports take the most time; later threads inherit it.
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
            return _is_sound(process, job, where, memory_mb, is_stopped)
        finally:
            with contextlib.suppress(OSError):
                process.kill()


def _is_sound(
    process: subprocess.Popen[bytes], job: TrialJob, where: str, memory_mb: int, is_stopped: Callable[[], bool]
) -> bool:
    from subprocess import TimeoutExpired

    request: bytes | None = msgspec.msgpack.encode(job)
    deadline = time.monotonic() + job.limits.seconds + _IMPORTS_S
    while True:
        try:
            answer, complaint = process.communicate(request, timeout=_LOOK_S)
            break
        except TimeoutExpired:
            request = None  # the request may be passed only once
            if is_stopped():
                return False
            if time.monotonic() >= deadline:
                raise _died(where, -signal.SIGALRM, job.limits) from None
    if process.returncode == 0 and answer.endswith(_SOUND):
        return True
    words = complaint.decode(errors="replace")
    if says_out_of_memory(words):
        raise _wants_memory(where, memory_mb, job.limits)
    if process.returncode < 0:
        raise _died(where, process.returncode, job.limits)
    last = (words.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    if last.startswith(_SAID):
        raise _FAMILIES.get(process.returncode, IncompatibleError)(last.removeprefix(_SAID))
    raise IncompatibleError(f"{where}: cannot be tried here: {last}")


def _environment() -> dict[str, str]:
    """Return the variables that a trial inherits, with this process's import path."""
    kept = {key: value for key, value in os.environ.items() if key in _KEPT_VARIABLES}
    return {**kept, "PYTHONPATH": os.pathsep.join(str(Path(entry or ".").absolute()) for entry in _IMPORT_PATH)}


def _died(where: str, exit_code: int, limits: TrialLimits) -> IncompatibleError:
    number = -exit_code
    if number == signal.SIGALRM:
        why = f"its golden inputs were not done after {limits.seconds:g} s in a process of its own"
        advice = "give a slow device more with --trial-seconds, or build a smaller model"
    elif number == signal.SIGKILL:
        why = "the process that tried it was killed, perhaps for want of memory"
        advice = "end other programs, or build a smaller model"
    else:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        why = f"ONNX Runtime {onnxruntime_version()} crashed on it ({name}) in a process of its own"
        advice = "install another ONNX Runtime that the bundle admits, or build the bundle again"
    return IncompatibleError(f"{where}: not loaded: {why}; {advice}")


def _wants_memory(where: str, memory_mb: int, limits: TrialLimits) -> IncompatibleError:
    allowed_mb = limits.memory_bytes // 2**20
    reason = f"its target has {memory_mb}" if allowed_mb >= memory_mb else "more is not free here"
    return IncompatibleError(
        f"{where}: not loaded: it needs more than {allowed_mb} MiB, and {reason}; end other programs, take a smaller "
        "variant, or build for a device with more memory"
    )


def main() -> None:
    """Run the trial process: load the model, replay its golden inputs, and report the outcome."""
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrialJob)
    job.limits.take_up()
    try:
        bundle = Bundle.open(os.fsdecode(job.bundle))
        if bundle.digest != job.digest:
            raise BundleError(f"{bundle.path}: was changed while it was opened")
        bundle.signed = job.signed  # its digest equals that of the verified bundle
        Stages.open(bundle.with_primary(job.variant), job.settings)
    except (EdgeError, MemoryError) as error:
        said = "out of memory" if is_out_of_memory(error) else f"{_SAID}{' '.join(str(error).splitlines())}"
        sys.stderr.buffer.write(f"\n{said}\n".encode(errors="surrogateescape"))
        sys.stderr.flush()
        os._exit(getattr(error, "exit_code", 1))
    sys.stdout.buffer.write(_SOUND)
    sys.stdout.buffer.flush()


_remembering = threading.Lock()  # two pipelines may prove two versions of one bundle at the same time


class _Newest(msgspec.Struct, frozen=True):
    """A record: the newest version of one bundle that was proved here."""

    version: int


def refuse_older(bundle: Bundle, *, allow_older: bool) -> str:
    """Raise BundleError if a newer version of a signed bundle ran here; where that is allowed, return a line for it."""
    version, name = bundle.manifest.version, bundle.manifest.name
    try:
        newest = _newest(bundle) if bundle.signed else 0
    except OutputError:  # `remember_version` reports it
        newest = 0
    if version >= newest:
        return ""
    if allow_older:
        return (
            f"{bundle.path}: version {version} of {name} is older than {newest}, which ran here; it is allowed to run"
        )
    raise BundleError(
        f"{bundle.path}: version {version} of {name}, expected {newest} or newer: {newest} ran here before; build it "
        "again, or allow older ones with --allow-older ([trust] allow_older = true)"
    )


def remember_version(bundle: Bundle) -> str:
    """Store the version of a signed bundle that was proved here, if it is the newest; return a line if that fails."""
    if not bundle.signed:
        return ""
    version, problem = bundle.manifest.version, ""
    with _remembering:
        try:
            newest = _newest(bundle)
        except OutputError as cause:
            newest, problem = 0, str(cause)
        if version > newest:
            try:
                write_record(_path(bundle), msgspec.json.encode(_Newest(version)))
            except OutputError as cause:
                problem = problem or str(cause)
    if not problem:
        return ""
    return f"the newest version of {bundle.manifest.name} is not known, so any version runs: {problem}"


def _newest(bundle: Bundle) -> int:
    """Read the newest version that was proved here; 0 where there is none; raise OutputError."""
    record = read_record(_path(bundle), _Newest)
    return 0 if record is None else record.version


def _path(bundle: Bundle) -> Path:
    return state_folder() / "versions" / f"{bundle.manifest.name}.json"


if __name__ == "__main__":
    main()
