"""Run jobs in this process, in other processes or on a cluster, and remember their results."""

from __future__ import annotations

import contextlib
import pickle
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import EdgeError, MissingDependencyError, OutputError, UsageError
from edge_sdk_tools.jobs.results import Executor, Outcome, Outcomes, Store, decoded, encoded, outcome_of

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
        self.executor = Executor()
        self._store: Store | None = None
        self.unkept: str | None = None
        self.remembered = 0
        try:
            self._store = None if store is None else Store(store)
        except OutputError as cause:
            self.unkept = str(cause)

    def __enter__(self) -> JobRunner:
        """Connect to the cluster, if one is wanted; a UsageError says why that cannot be."""
        self.executor = _executor(self._jobs, self._scheduler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon(interrupted=kind is not None)
        if self._store is not None:
            with contextlib.suppress(OutputError):
                self._store.prune(_MOST_KEPT)

    def abandon(self, *, interrupted: bool = True) -> None:
        """Kill this machine's processes now, so that the files that they write can be removed."""
        self.executor.close(interrupted=interrupted)
        self.executor = Executor()  # of what has no workers any more

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
        with contextlib.closing(self.executor.perform(function, left, shared)) as outcomes:
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


def _executor(jobs: int, scheduler: str | None) -> Executor:
    if jobs == 1 and scheduler is None:
        return Executor()
    try:
        import joblib  # where it is used: that takes longer than one job in this process may

        if scheduler is None:
            return _Processes(jobs, joblib.cpu_count())
        from edge_sdk_tools.jobs.cluster import Cluster

        return Cluster(scheduler)
    except ModuleNotFoundError as cause:
        extra = "host" if scheduler is None else "cluster"
        raise MissingDependencyError(f"{cause.name} is not installed: pip install 'edge-sdk[{extra}]'") from cause


_unpacked: dict[str, object] = {}
"""In a worker: the shared object of the run that it works for."""


class _Processes(Executor):
    """Processes of this machine, by joblib and its loky workers: a pool that is kept from run to run."""

    def __init__(self, jobs: int, cores: int) -> None:
        self.at_once, self.threads_per_job = jobs, max(1, cores // jobs)

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Run the jobs in processes; one that dies ends the run; another run takes what is finished from the store."""
        import joblib

        # joblib maps arrays into the workers' memory, and bytes it would send with every item.
        packed = np.frombuffer(pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        token, left = uuid.uuid4().hex, dict(items)
        pool = joblib.parallel_config(
            "loky",
            n_jobs=self.at_once,
            inner_max_num_threads=self.threads_per_job,
            initializer=_begin,
            initargs=(tempfile.gettempdir(),),
        )
        try:
            with warnings.catch_warnings(), pool:
                # joblib warns about results that were not taken, which cancelling intends.
                warnings.simplefilter("ignore", UserWarning)
                # One job at a time to each: they are slow, and a batch would be lost as a whole.
                parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
                job = joblib.delayed(_in_worker)
                jobs = parallel(job(function, item, key, packed, token) for key, item in items.items())
                with contextlib.closing(jobs) as outcomes:
                    for key, outcome in outcomes:
                        del left[key]
                        yield key, outcome
        except BrokenProcessPool as cause:
            some = ", ".join(list(left)[:3]) + (" …" if len(left) > 3 else "")
            raise EdgeError(
                f"a worker process died at one of {some}: killed, perhaps for want of memory; run again with "
                f"fewer than {self.at_once} jobs at once, what is finished is remembered"
            ) from cause

    def close(self, *, interrupted: bool) -> None:
        """End the workers by their handles; after an interruption without waiting for what they do."""
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=interrupted)


def _begin(temporary: str) -> None:
    """Make this process a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches every process of a terminal; the host ends its workers
    tempfile.tempdir = temporary  # where the host cleans up what a killed worker leaves


def _in_worker(
    function: Callable[[T, S], object], item: T, key: str, packed: NDArray[np.uint8], token: str
) -> tuple[str, Outcome]:
    def job(item: T, _nothing: None) -> object:
        if token not in _unpacked:
            _unpacked.clear()
            _unpacked[token] = pickle.loads(packed.data)  # noqa: S301 - from the process that started this one
        shared: S = _unpacked[token]  # type: ignore[assignment] # of whatever type the run has
        return function(item, shared)

    return key, outcome_of(job, item, None, key)
