"""Jobs on a real Dask cluster of two worker processes: as on this machine, and robust against what dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import edge_sdk
import edge_sdk_tools
from edge_sdk.core.errors import EdgeError, UsageError
from edge_sdk_tools.jobs.runner import JobRunner
from tests.support import jobs
from tests.support.absent import Lazy
from tests.support.broker import free_port
from tests.support.connections import until
from tests.support.jobs import Counted, Measured, local_cluster

if TYPE_CHECKING:
    from distributed import LocalCluster

dask, distributed = Lazy("dask"), Lazy("distributed")

# Dask closes some of its sockets and loops only when they are collected.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
    ),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # A result that died with its worker is asked for this long, 30 s by default.
    with dask.config.set({"distributed.comm.timeouts.connect": "3s"}), local_cluster(2) as cluster:
        yield cluster


def _pids(cluster: LocalCluster) -> list[int]:
    return [nanny.pid for nanny in cluster.workers.values()]


def test_as_on_this_machine(cluster: LocalCluster, tmp_path: Path) -> None:
    items = jobs.recipes(7, 0.05)
    answers: list[list[Measured]] = []
    for options in ({}, {"jobs": 2}, {"scheduler": cluster.scheduler_address, "store": tmp_path / "store"}):
        with JobRunner(**options) as job_runner:
            assert job_runner.threads_per_job >= 1
            answers.append(jobs.run(job_runner, jobs.measure, items, shared=b"some bytes"))
    assert answers[0] == answers[1] == answers[2] == [Measured(number, number / 3 + 10) for number in range(7)]
    # What the cluster computed is remembered here, where no cluster is asked any more.
    with JobRunner(store=tmp_path / "store") as job_runner:
        again = jobs.run(job_runner, jobs.measure, items, shared=b"some bytes")
    assert (again, job_runner.remembered) == (answers[0], 7)


def test_shared_is_sent_once(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "pickled", 0)
    with JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        before = jobs.run(job_runner, jobs.weigh, jobs.recipes(1), shared=Counted(b""))
        monkeypatch.setattr(Counted, "pickled", 0)
        results = jobs.run(job_runner, jobs.weigh, jobs.recipes(12, 0.05), shared=Counted(bytes(5_000_000)))
    # By this process; a worker that hands it on to the other pickles it again, there.
    assert Counted.pickled == 1
    assert {measured.value for measured in results} == {5_000_000}
    assert {measured.pid for measured in results} == set(_pids(cluster))
    assert before[0].value == 0
    for pid in _pids(cluster):
        assert len({measured.unpickled for measured in results if measured.pid == pid}) == 1


def test_a_worker_that_is_killed_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    def on_done(done: int, _total: int) -> None:
        if done == 3:
            os.kill(_pids(cluster)[0], signal.SIGKILL)

    with JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        results = jobs.run(job_runner, jobs.measure, jobs.recipes(12, 0.2, tmp_path), shared=b"1234", on_done=on_done)
    assert results == [Measured(number, number / 3 + 4) for number in range(12)]


def test_an_interruption_cancels_what_waits(cluster: LocalCluster, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        jobs.run(job_runner, jobs.measure, jobs.recipes(30, 0.2, tmp_path), shared=b"", on_done=interrupt)
    until(lambda: not cluster.scheduler.tasks)  # without a cancellation: until all of them are done
    assert len(list(tmp_path.iterdir())) < 15


def test_a_job_that_always_kills_its_worker_is_given_up() -> None:
    with local_cluster(1) as small, JobRunner(scheduler=small.scheduler_address) as job_runner:
        small.scheduler.allowed_failures = 1
        with pytest.raises(EdgeError, match=r"^recipe-2: the workers that ran it died"):
            jobs.run(job_runner, jobs.die, jobs.recipes(3)[2:])


@contextlib.contextmanager
def _program(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env={**os.environ, **environment},
        cwd="/",  # where `-m` finds no other modules first
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()  # asked politely, a worker whose scheduler is gone looks for it first
        process.wait(timeout=60)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _path(*first: Path) -> str:
    """Where a worker finds its modules: as this process, after `first`."""
    return os.pathsep.join([*map(str, first), *sys.path])


def _worker(address: str, **environment: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
    return _program("distributed.cli.dask_worker", address, *options, **environment)


def test_a_scheduler_that_goes_away_is_named() -> None:
    port = str(free_port())
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    with _program(*scheduler) as process, _worker(address, PYTHONPATH=_path()):
        until(lambda: _listens(int(port)))
        lost = pytest.raises(EdgeError, match=rf"^scheduler {address}: lost: ")
        with JobRunner(scheduler=address) as job_runner, lost:
            jobs.run(
                job_runner,
                jobs.measure,
                jobs.recipes(50, 0.1),
                shared=b"",
                on_done=lambda done, _: process.kill() if done == 3 else None,
            )


def _other_numpy(folder: Path) -> None:
    (folder / "numpy-1.99.0.dist-info").mkdir()
    (folder / "numpy-1.99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99.0\n")


def _other_sources(folder: Path) -> None:
    for package in (edge_sdk, edge_sdk_tools):
        root = Path(package.__path__[0])
        shutil.copytree(root, folder / root.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "edge_sdk" / "errors.py").open("a") as file:
        file.write("# another commit\n")


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (_other_numpy, r"worker tcp://127\.0\.0\.1:\d+ has numpy 1\.99\.0, this machine [0-9.]+; install the same"),
        (_other_sources, r"worker tcp://.* has edge-sdk's sources [0-9a-f]{20}, this machine [0-9a-f]{20};"),
    ],
)
def test_workers_of_other_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Any, expected: str
) -> None:
    monkeypatch.setattr("edge_sdk_tools.jobs.cluster._PATIENCE_S", 100.0)  # the worker starts beside other tests
    prepare(tmp_path)
    with (
        local_cluster(0) as empty,
        _worker(empty.scheduler_address, PYTHONPATH=_path(tmp_path)),
        pytest.raises(UsageError, match=expected),
    ):
        JobRunner(scheduler=empty.scheduler_address).__enter__()


def test_a_worker_with_other_versions_that_joins_later(tmp_path: Path) -> None:
    _other_numpy(tmp_path)
    with (
        local_cluster(1) as small,
        JobRunner(scheduler=small.scheduler_address) as job_runner,
        _worker(small.scheduler_address, PYTHONPATH=_path(tmp_path)),
    ):
        with distributed.Client(small.scheduler_address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        with pytest.raises(UsageError, match="joined with other versions"):
            jobs.run(job_runner, jobs.measure, jobs.recipes(10, 0.3))


def test_nobody_at_the_address(capfd: pytest.CaptureFixture[str]) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(UsageError, match=rf"^scheduler {address}: nobody answers within 10 s"):
        JobRunner(scheduler=address).__enter__()
    assert capfd.readouterr() == ("", "")


def test_somebody_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.jobs.cluster._PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(UsageError, match="nobody answers within 1 s"):
            JobRunner(scheduler=address).__enter__()


def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.jobs.cluster._PATIENCE_S", 1.0)
    with local_cluster(0) as empty, pytest.raises(UsageError, match="no worker within 1 s; start some"):
        JobRunner(scheduler=empty.scheduler_address).__enter__()


def test_addresses_that_are_refused() -> None:
    for address in ("host:8786", "http://host:8786", "tcp://host", "tcp://a:b@host:1", "tcp://host:1\n", ""):
        with pytest.raises(UsageError, match=r"expected tcp://HOST:PORT or tls://HOST:PORT"):
            JobRunner(scheduler=address).__enter__()


def test_tls_without_certificates() -> None:
    with pytest.raises(
        UsageError, match=r"^scheduler tls://a:1: .* names no certificates for TLS, see docs/cluster\.md$"
    ):
        JobRunner(scheduler="tls://a:1").__enter__()
    files = dict.fromkeys(("ca-file", "client.cert", "client.key"), "/nowhere.pem")
    with (
        dask.config.set({f"distributed.comm.tls.{name}": path for name, path in files.items()}),
        pytest.raises(UsageError, match="Dask's configuration of TLS: FileNotFoundError"),
    ):
        JobRunner(scheduler="tls://a:1").__enter__()
