"""Processes of this machine, by joblib and its loky workers."""

from __future__ import annotations

import contextlib
import pickle
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import joblib
import numpy as np
from joblib.externals.loky import get_reusable_executor
from numpy.typing import NDArray

from edge_sdk.core.errors import EdgeError
from edge_sdk_tools.jobs.results import Outcome, Outcomes, outcome_of

T = TypeVar("T")
S = TypeVar("S")
_unpacked: dict[str, object] = {}
"""In a worker: the shared object of the run that it works for."""


class Processes:
    """A pool that is kept from run to run."""

    def __init__(self, jobs: int, cores: int) -> None:
        self._jobs = jobs
        self.threads_per_job = max(1, cores // jobs)
        self.at_once = jobs

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Run the jobs in processes; one that dies ends the run; another run takes what is finished from the store."""
        # joblib maps arrays into the workers' memory, and bytes it would send with every item.
        packed = np.frombuffer(pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        token, left = uuid.uuid4().hex, dict(items)
        pool = joblib.parallel_config(
            "loky",
            n_jobs=self._jobs,
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
                f"fewer than {self._jobs} jobs at once, what is finished is remembered"
            ) from cause

    def close(self, *, interrupted: bool) -> None:
        """End the workers by their handles; after an interruption without waiting for what they do."""
        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=interrupted)


def _begin(temporary: str) -> None:
    """Make this process a worker.

    Ctrl-C reaches every process of a terminal; the host decides what becomes of its workers. One that is killed leaves
    the temporary files of its libraries, so they go where the host's own go, which are cleaned up.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = temporary


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
