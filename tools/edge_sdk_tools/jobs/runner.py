"""Run jobs in this process, in other processes or on a cluster, and remember their results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar

import msgspec

from edge_sdk.core.errors import MissingDependencyError, OutputError, UsageError
from edge_sdk_tools.jobs.results import Executor, SerialExecutor, Store, decoded, encoded

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
_MOST_KEPT = 2_000_000_000  # bytes
OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with a step's name, how much is done, and how much there is."""


def silent(_step: str, _done: int, _total: int) -> None:
    """Show no progress."""


@contextlib.contextmanager
def one_step(on_progress: OnProgress, name: str) -> Iterator[None]:
    """Show a step that is begun, and done where no error ends it."""
    on_progress(name, 0, 1)
    yield
    on_progress(name, 1, 1)


class JobRunner:
    """Does jobs: one after another, in processes of this machine, or on a Dask cluster that runs already.

    A context manager. Leaving it by an exception (KeyboardInterrupt too) kills the processes of this machine. On a
    cluster what has not begun is cancelled, and what has begun runs to its end for nothing: workers are threads there.

    Several `jobs` run at once on this machine; 1 means in this process. A `scheduler`, "tcp://host:8786" or
    "tls://host:8786" of a cluster, decides that itself. Up to 2 GB of results are remembered in the folder `store`;
    `remembered` counts those that came out of it, `unkept` says why none are remembered although they should be.
    """

    def __init__(self, *, jobs: int = 1, scheduler: str | None = None, store: Path | None = None) -> None:
        if jobs < 1:
            raise UsageError(f"jobs: expected at least 1, got {jobs}")
        if scheduler is not None and jobs != 1:
            raise UsageError(f"scheduler {scheduler}: the cluster decides how many jobs run at once; leave out jobs")
        self._jobs, self._scheduler = jobs, scheduler
        self._executor: Executor | None = None
        self._store: Store | None = None
        self.unkept: str | None = None
        self.remembered = 0
        try:
            self._store = None if store is None else Store(store)
        except OutputError as cause:
            self.unkept = str(cause)

    def __enter__(self) -> JobRunner:
        """Connect to the cluster, if one is wanted; a UsageError says why that cannot be."""
        self._executor = _executor(self._jobs, self._scheduler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(interrupted=kind is not None)
        if self._store is not None:
            with contextlib.suppress(OutputError):
                self._store.prune(_MOST_KEPT)

    def abandon(self) -> None:
        """Kill this machine's processes now, so that the files that they write can be removed."""
        self._close(interrupted=True)

    def _close(self, *, interrupted: bool) -> None:
        if self._executor is not None:
            self._executor.close(interrupted=interrupted)
            self._executor = None

    @property
    def threads_per_job(self) -> int:
        """How many threads a job may take (OpenMP's are limited to it, ONNX Runtime's are the job's business)."""
        return self._open().threads_per_job

    @property
    def at_once(self) -> int:
        """How many jobs are done at once; what is asked in one go need not be more."""
        return self._open().at_once

    @property
    def is_elsewhere(self) -> bool:
        """Whether jobs may run on machines that cannot read this one's files."""
        return self._scheduler is not None

    def run(
        self,
        function: Callable[[T, S], R],
        items: Sequence[T],
        *,
        shared: S,
        key: Callable[[T], str],
        result: type[R],
        on_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[R]:
        """Do one job an item.

        The function is of a module (no lambda), and pure: what it needs is in its two arguments, pickled, as bytes or,
        on this machine only, as paths. An item is sent to the worker that does it, `shared` once to every worker. What
        it returns is written as MessagePack and read as `result`. `key` names an item by everything that decides its
        result (shared and the function's version too); items of one key are done once. `on_done` is called in this
        thread with how many are done, and of how many. Results are in the items' order. A job's EdgeError passes, any
        other exception becomes one line that names its key; what was done until then is remembered.
        """
        wanted = {key(item): item for item in items}
        done: dict[str, R] = {}
        for name in wanted:
            kept = self._remembered(name, result)
            if kept is not None:
                done[name] = kept
                on_done(len(done), len(wanted))
        left = {name: item for name, item in wanted.items() if name not in done}
        with contextlib.closing(self._open().perform(function, left, shared)) as outcomes:
            for name, outcome in outcomes:
                data = outcome.unwrap()
                done[name] = decoded(data, result)
                self._keep(name, data)
                on_done(len(done), len(wanted))
        return [done[key(item)] for item in items]

    def once(self, function: Callable[[], R], *, key: str, result: type[R]) -> R:
        """Call a function in this process and keep its result, unless the store has it already."""
        kept = self._remembered(key, result)
        if kept is None:
            kept = function()
            self._keep(key, encoded(kept))
        return kept

    def _keep(self, name: str, data: bytes) -> None:
        """Store a result; ignore a failure to write, because the result itself is not lost."""
        try:
            if self._store is not None:
                self._store.put(name, data)
        except OutputError as cause:
            self.unkept, self._store = str(cause), None

    def _remembered(self, name: str, result: type[R]) -> R | None:
        data = self._store.get(name) if self._store is not None else None
        found = None
        if data is not None:
            with contextlib.suppress(msgspec.DecodeError):  # of an older form of the result
                found = decoded(data, result)
                self.remembered += 1
        return found

    def _open(self) -> Executor:
        if self._executor is None:
            raise RuntimeError("a JobRunner is used inside `with`")
        return self._executor


def _executor(jobs: int, scheduler: str | None) -> Executor:
    if jobs == 1 and scheduler is None:
        return SerialExecutor(len(os.sched_getaffinity(0)))
    # joblib and Dask are imported where they are used: they take longer to import than one job in this process may.
    try:
        import joblib

        if scheduler is not None:
            from edge_sdk_tools.jobs.cluster import Cluster

            return Cluster(scheduler)
    except ModuleNotFoundError as cause:
        extra = "host" if scheduler is None else "cluster"
        raise MissingDependencyError(f"{cause.name} is not installed: pip install 'edge-sdk[{extra}]'") from cause
    from edge_sdk_tools.jobs.processes import Processes

    return Processes(jobs, joblib.cpu_count())
