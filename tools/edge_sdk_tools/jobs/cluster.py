"""Run jobs on a Dask cluster that was started by others.

The module connects, compares versions, sends shared data once, and survives the death of workers. It uses futures of
Dask's client instead of joblib's "dask" backend, which waits for ever when a job kills its workers or the scheduler
goes away. docs/adr/0016 has what was tried.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
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

# A new worker loads several jobs at once, and importing OpenCV is not safe in two threads. Because this module imports
# it, the first job does so while the others wait for this module.
import cv2  # noqa: F401
import joblib
from distributed import Client, Future, KilledWorker
from distributed.security import Security

from edge_sdk.core.errors import EdgeError, UsageError, typed_line
from edge_sdk_tools.jobs.results import Executor, Outcome, Outcomes, outcome_of, package_versions, source_digest

T = TypeVar("T")
S = TypeVar("S")
_ADDRESS = re.compile(r"(tcp|tls)://([\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}")
_PATIENCE_S = 10.0
_POLL_S = 0.5
# Errors that Dask raises when the other side is gone; before Python 3.11 asyncio's are no OSError.
_GONE = (OSError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError, concurrent.futures.CancelledError)


class Cluster(Executor):
    """A connection to a scheduler whose workers have the same versions as this machine.

    `address` is "tcp://host:port", or "tls://host:port" with Dask's own configuration of certificates. A UsageError
    says that it is invalid, that no scheduler or worker answers, or that a worker has other versions.
    """

    def __init__(self, address: str) -> None:
        self._address, self._where = address, f"scheduler {address}"
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"{self._where}: expected tcp://HOST:PORT or tls://HOST:PORT")
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
        """Run the jobs on the cluster, and yield their outcomes; the scheduler gives jobs of a dead worker to another.

        An EdgeError says that a job kills its workers, or that the scheduler is gone.
        """
        if not items:
            return
        environment = _environment()
        # A queue, because Dask's own threads call the callbacks.
        done: queue.SimpleQueue[Future] = queue.SimpleQueue()
        waiting: dict[str, tuple[str, Future]] = {}
        try:
            self._wait_for_workers()
            sent = self._send(shared)
            for key, item in items.items():
                # Each future has a unique name, because two hosts may send the same key to one cluster.
                name = f"edge-sdk-{key}-{uuid.uuid4().hex}"
                future = self._client.submit(_on_worker, function, item, sent, key, environment, key=name, pure=False)
                waiting[name] = key, future
                future.add_done_callback(done.put)
            while waiting:
                finished = self._next(done)
                key, _ = waiting.pop(finished.key)
                yield key, _outcome(finished, key)
        except _GONE as cause:
            raise self._lost(typed_line(cause)) from cause
        finally:
            if waiting and self._client.status == "running":
                with contextlib.suppress(*_GONE):
                    self._client.cancel([future for _, future in waiting.values()], force=True)

    def close(self, *, interrupted: bool) -> None:
        """Disconnect; the workers go on, because this process did not start them."""
        self._cleanup.close()

    def _send(self, shared: object) -> Future | None:
        """Send what all jobs share, as a result that they depend on; the scheduler remakes it if its worker dies."""
        # `scatter` would wait for ever for a worker that has just died.
        if shared is None:
            return None
        with warnings.catch_warnings():
            # Dask recommends that workers read large data themselves, but they cannot read this machine's files.
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            packed = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
            return self._client.submit(pickle.loads, packed, key=f"edge-sdk-shared-{uuid.uuid4().hex}", pure=False)

    def _next(self, done: queue.SimpleQueue[Future]) -> Future:
        """Wait until a job ends and return its future; raise EdgeError where the connection is lost."""
        while self._client.status == "running":
            with contextlib.suppress(queue.Empty):
                return done.get(timeout=_POLL_S)
        raise self._lost("the connection is closed")

    def _connect(self) -> Client:
        security = self._security()
        try:
            self._knock()
            return Client(self._address, security=security, timeout=_PATIENCE_S, set_as_default=False)
        except _GONE as cause:
            what = f"nobody answers within {_PATIENCE_S:.0f} s"
            raise UsageError(
                f"{self._where}: {what}; is `dask scheduler` running there, with this protocol?"
            ) from cause

    def _security(self) -> Security:
        """Check Dask's TLS configuration before connecting; a client that fails on it later takes 20 s to close."""
        try:
            security = Security()
            certified = security.get_connection_args("client").get("ssl_context") is not None
        except (OSError, TypeError, ValueError) as cause:
            raise UsageError(f"{self._where}: Dask's configuration of TLS: {typed_line(cause)}") from cause
        if self._address.startswith("tls:") and not certified:
            raise UsageError(f"{self._where}: Dask's configuration names no certificates for TLS, see docs/cluster.md")
        return security

    def _knock(self) -> None:
        """Check that a scheduler sends the first byte; Dask's client would wait for ever for a silent server."""
        url = urlsplit(self._address)
        with socket.create_connection((url.hostname or "", url.port or 0), timeout=_PATIENCE_S) as connection:
            if url.scheme == "tcp" and not connection.recv(1):
                raise ConnectionError("hung up")

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except _GONE as cause:
            what = f"no worker within {_PATIENCE_S:.0f} s"
            raise UsageError(f"{self._where}: {what}; start some, see docs/cluster.md") from cause

    def _compare(self) -> None:
        """Compare the workers' versions with this machine's; an exception is the answer of one without edge-sdk."""
        expected = _environment()
        for worker, answer in self._client.run(_environment, on_error="return").items():
            found = answer if isinstance(answer, dict) else {}
            what = next((name for name, version in expected.items() if found.get(name) != version), None)
            if what is not None:
                has = f"worker {worker} has {what} {found.get(what, 'none')[:20]}, this machine {expected[what][:20]}"
                raise UsageError(f"{self._where}: {has}; install the same environment there")

    def _threads_per_job(self) -> int:
        threads: Counter[str | None] = Counter()
        cores = {urlsplit(worker).hostname: count for worker, count in self._client.run(joblib.cpu_count).items()}
        for worker, count in self._client.ncores().items():
            threads[urlsplit(worker).hostname] += count
        return max(1, min((cores[host] // threads[host] for host in cores if threads[host]), default=1))

    def _lost(self, why: str) -> EdgeError:
        return EdgeError(f"{self._where}: lost: {why}; run again when it is back")


def _close(client: Client) -> None:
    """Disconnect, and ignore it if Dask on a busy machine does not do so in time."""
    with contextlib.suppress(*_GONE):
        client.close(timeout=_POLL_S)


def _environment() -> dict[str, str]:
    return {**package_versions(), "edge-sdk's sources": source_digest(), "processor": platform.machine()}


def _on_worker(
    function: Callable[[T, S], object], item: T, shared: S, key: str, environment: dict[str, str]
) -> Outcome:
    def job(item: T, shared: S) -> object:
        # A worker may join after the versions were compared.
        if environment != _environment():
            raise UsageError(f"worker process {os.getpid()}: joined with other versions than the host's")
        return function(item, shared)

    return outcome_of(job, item, shared, key)


def _outcome(future: Future, key: str) -> Outcome:
    try:
        outcome: Outcome = future.result()
    except KilledWorker as cause:
        why = "killed, perhaps for want of memory"
        raise EdgeError(f"{key}: the workers that ran it died, one after another: {why}") from cause
    except _GONE:
        raise
    except Exception as cause:  # anything that Dask could not transfer
        raise EdgeError(f"{key}: {typed_line(cause)}") from cause
    future.release()
    return outcome


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silence Dask's loggers, which write a traceback for every lost connection, within the context."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith("distributed")]
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
