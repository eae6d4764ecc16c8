"""A Dask cluster that somebody else started: connecting, comparing, sending once, and surviving what dies there.

Jobs are futures of Dask's client and not of joblib's "dask" backend: that one waits for ever when a job kills its
workers or the scheduler goes away, because it is told of results only. docs/adr/0016 has what was tried.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.metadata
import logging
import os
import pickle
import platform
import queue
import re
import socket
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

# A new worker reads several jobs at once, and OpenCV's own import does not bear two threads: here the first brings it,
# while the others wait for this module.
import cv2  # noqa: F401
import joblib
from distributed import Client, Future, KilledWorker
from distributed.security import Security

from edge_sdk.core.errors import EdgeError, UsageError, typed_line
from edge_sdk_tools.jobs.outcome import Outcome, Outcomes, outcome_of
from edge_sdk_tools.jobs.store import package_versions, source_digest

T = TypeVar("T")
S = TypeVar("S")

_ADDRESS = re.compile(r"(tcp|tls)://([\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")
_PATIENCE_S = 10.0
_POLL_S = 0.5
_ROUNDS = 3  # for jobs that went down with everything they needed
# What Dask raises when the other side is gone: asyncio's is no OSError before Python 3.11.
_GONE = (OSError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError)


class Cluster:
    """A connection to a scheduler, whose workers are like this machine.

    Args:
        address: "tcp://host:port", or "tls://host:port" with Dask's own configuration of certificates.

    Raises:
        UsageError: the address, what answers there, or a worker's versions.
    """

    def __init__(self, address: str) -> None:
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"scheduler {address}: expected tcp://HOST:PORT or tls://HOST:PORT")
        self._address = address
        self._cleanup = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(_silence())
            self._client = self._connect()
            undo.callback(_close, self._client)
            self._wait_for_workers()
            self._compare()
            self.threads_per_job = self._threads_per_job()
            self.at_once = max(1, sum(self._client.ncores().values()))
            self._cleanup = undo.pop_all()

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do the jobs on the cluster. The scheduler gives those of a dead worker to another.

        Raises:
            EdgeError: a job kills its workers, or the scheduler went away.
        """
        left = dict(items)
        for _ in range(_ROUNDS):
            if not left:
                return
            try:
                with contextlib.closing(self._round(function, dict(left), shared)) as outcomes:
                    for key, outcome in outcomes:
                        del left[key]
                        yield key, outcome
            except _GONE as cause:
                # Sending fails as well when a worker has just died; the scheduler is there all the same.
                if self._client.status != "running":
                    raise self._lost(typed_line(cause)) from cause
        if left:
            raise self._lost(f"the workers of {len(left)} jobs died, with all that they needed, {_ROUNDS} times")

    def close(self, *, interrupted: bool) -> None:
        """Disconnect; the workers are not this process's to end."""
        self._cleanup.close()

    def _round(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Yield what was finished; what was cancelled because its data is gone is left for another round."""
        self._wait_for_workers()
        sent = self._send(shared)
        environment = (package_versions(), source_digest())
        # A queue, because the callbacks come in Dask's own threads.
        done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        waiting: dict[str, str] = {}
        futures: list[Future] = []
        try:
            for key, item in items.items():
                # A name of its own for each: two hosts may ask one cluster for the same key.
                name = f"edge-sdk-{key}-{uuid.uuid4().hex}"
                future = self._client.submit(_on_worker, function, item, sent, key, environment, key=name, pure=False)
                waiting[name] = key
                futures.append(future)
                future.add_done_callback(done.put)
            while waiting:
                finished = self._next(done)
                key = waiting.pop(finished.key)
                outcome = _outcome(finished, key)
                if outcome is not None:
                    yield key, outcome
        finally:
            self._cancel([future for future in futures if future.key in waiting])

    def _send(self, shared: object) -> Future | None:
        """What all jobs share, as a result that they depend on: made again by the scheduler when it dies with a worker.

        `scatter` would do less: sending to a worker that has just died waits for ever.
        """
        if shared is None:
            return None
        with warnings.catch_warnings():
            # Dask would rather have large things read by the workers, who cannot read this machine's files.
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            packed = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
            return self._client.submit(_unpacked, packed, key=f"edge-sdk-shared-{uuid.uuid4().hex}", pure=False)

    def _next(self, done: queue.SimpleQueue[Future]) -> Future:
        """Wait for a job, and for the connection to be lost, which not every job is told of."""
        while True:
            with contextlib.suppress(queue.Empty):
                future = done.get(timeout=_POLL_S)
                if future.status != "cancelled":
                    return future
                if self._client.status == "running":
                    return future
            if self._client.status != "running":
                raise self._lost("the connection is closed")

    def _cancel(self, futures: list[Future]) -> None:
        if futures and self._client.status == "running":
            with contextlib.suppress(*_GONE):
                self._client.cancel(futures, force=True)

    def _connect(self) -> Client:
        security = self._security()
        try:
            self._knock()
            return Client(self._address, security=security, timeout=_PATIENCE_S, set_as_default=False)
        except _GONE as cause:
            raise UsageError(
                f"scheduler {self._address}: nobody answers within {_PATIENCE_S:.0f} s; is `dask scheduler` running "
                "there, with this protocol?"
            ) from cause

    def _security(self) -> Security:
        """Looked at first: a client that finds out only while it connects takes 20 s to close, and complains."""
        try:
            security = Security()
            certified = security.get_connection_args("client").get("ssl_context") is not None
        except (OSError, TypeError, ValueError) as cause:
            raise UsageError(f"scheduler {self._address}: Dask's configuration of TLS: {typed_line(cause)}") from cause
        if self._address.startswith("tls:") and not certified:
            raise UsageError(
                f"scheduler {self._address}: Dask's configuration names no certificates for TLS, see docs/cluster.md"
            )
        return security

    def _knock(self) -> None:
        """Dask's client waits for ever for one who accepts a connection and says nothing; a scheduler speaks first."""
        url = urlsplit(self._address)
        with socket.create_connection((url.hostname or "", url.port or 0), timeout=_PATIENCE_S) as connection:
            if url.scheme == "tcp" and not connection.recv(1):
                raise ConnectionError("hung up")

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except _GONE as cause:
            raise UsageError(
                f"scheduler {self._address}: no worker within {_PATIENCE_S:.0f} s; start some, see docs/cluster.md"
            ) from cause

    def _compare(self) -> None:
        """Compare versions by functions of the standard library first: others a worker may not know."""
        for package, version in package_versions().items():
            self._refuse_others(package, version, importlib.metadata.version, package)
        self._refuse_others("edge-sdk's sources", source_digest(), source_digest)
        self._refuse_others("processor", platform.machine(), platform.machine)

    def _refuse_others(self, what: str, expected: str, function: Callable[..., str], *arguments: str) -> None:
        for worker, answer in self._client.run(function, *arguments, on_error="return").items():
            got = "none" if isinstance(answer, BaseException) else answer
            if got != expected:
                raise UsageError(
                    f"scheduler {self._address}: worker {worker} has {what} {got[:20]}, this machine {expected[:20]}; "
                    "install the same environment there"
                )

    def _threads_per_job(self) -> int:
        threads: Counter[str | None] = Counter()
        cores: dict[str | None, int] = {}
        for worker, count in self._client.run(joblib.cpu_count).items():
            cores[urlsplit(worker).hostname] = count
        for worker, count in self._client.ncores().items():
            threads[urlsplit(worker).hostname] += count
        return max(1, min((cores[host] // threads[host] for host in cores if threads[host]), default=1))

    def _lost(self, why: str) -> EdgeError:
        return EdgeError(f"scheduler {self._address}: lost: {why}; run again when it is back")


def _close(client: Client) -> None:
    """Disconnect; on a busy machine Dask does not manage that in time, which is no reason to fail."""
    with contextlib.suppress(*_GONE):
        client.close(timeout=_POLL_S)


def _unpacked(packed: bytes) -> object:
    return pickle.loads(packed)  # noqa: S301 - from the process whose functions run here anyway


def _on_worker(
    function: Callable[[T, S], object],
    item: T,
    shared: S,
    key: str,
    environment: tuple[dict[str, str], str],
) -> Outcome:
    def job(item: T, shared: S) -> object:
        # Workers may join after all were compared.
        if environment != (package_versions(), source_digest()):
            raise UsageError(f"worker process {os.getpid()}: joined with other versions than the host's")
        return function(item, shared)

    return outcome_of(job, item, shared, key)


def _outcome(future: Future, key: str) -> Outcome | None:
    """None for a job that was lost with its worker and with what it would be done again from."""
    try:
        outcome: Outcome = future.result()
    except KilledWorker as cause:
        raise EdgeError(
            f"{key}: the workers that ran it died, one after another: killed, perhaps for want of memory"
        ) from cause
    except concurrent.futures.CancelledError:
        return None
    except _GONE:
        raise
    except Exception as cause:  # whatever Dask could not carry
        raise EdgeError(f"{key}: {typed_line(cause)}") from cause
    future.release()
    return outcome


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Dask writes every lost connection with its traceback to standard error, beside the one line that says it."""
    loggers = [
        logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("distributed")
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
