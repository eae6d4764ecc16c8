"""Jobs on this machine: results are the same however many run at once, and are kept on disk; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import edge_sdk
import edge_sdk_tools
from edge_sdk.core.errors import EdgeError, ModelError, OutputError, UsageError
from edge_sdk_tools.jobs.results import Store, decoded, encoded
from edge_sdk_tools.jobs.runner import JobRunner
from tests.support import jobs
from tests.support.absent import Lazy
from tests.support.broker import free_port
from tests.support.connections import until
from tests.support.jobs import Counted, Measured, Recipe, local_cluster
from tests.support.logs import refusal


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.long)], ids=["sequential", "processes"])
def job_runner(request: pytest.FixtureRequest) -> Iterator[JobRunner]:
    with JobRunner(jobs=request.param) as job_runner:
        yield job_runner


def test_results_in_the_items_order_and_progress_as_they_come(job_runner: JobRunner) -> None:
    # The first one takes longest, and is done last if two run at once.
    items = [Recipe(0, 0.4), *jobs.recipes(6)[1:]]
    seen: list[tuple[int, int]] = []
    results = jobs.run(job_runner, jobs.measure, items, shared=b"abc", on_done=lambda *done: seen.append(done))
    assert results == [Measured(number, number / 3 + 3) for number in range(6)]
    assert seen == [(number, 6) for number in range(1, 7)]


def test_temporary_files_of_a_job(job_runner: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (place,) = job_runner.run(jobs.temporary_files, jobs.recipes(1), shared=None, key=jobs.key, result=jobs.Place)
    assert place.folder == str(tmp_path)


def test_items_of_one_key_are_done_once(job_runner: JobRunner, tmp_path: Path) -> None:
    results = jobs.run(job_runner, jobs.measure, jobs.recipes(3, folder=tmp_path) * 2)
    assert [measured.number for measured in results] == [0, 1, 2, 0, 1, 2]
    assert (len(list(tmp_path.iterdir())), jobs.run(job_runner, jobs.measure, [])) == (3, [])


def test_an_error_of_ours_arrives_as_it_is(job_runner: JobRunner) -> None:
    with pytest.raises(ModelError, match=r"^model\.onnx: no such model; export it again$"):
        jobs.run(job_runner, jobs.fail, jobs.recipes(3), shared="ours")
    unpicklable = refusal(EdgeError, jobs.run, job_runner, jobs.fail, jobs.recipes(3), shared="unpicklable")
    assert unpicklable == "holds a lock"


def test_any_other_error_is_one_line_that_names_the_item(job_runner: JobRunner) -> None:
    with pytest.raises(EdgeError, match=r"^recipe-7: ZeroDivisionError: once$") as caught:
        jobs.run(job_runner, jobs.fail, [Recipe(7)], shared="foreign")
    assert 'raise ZeroDivisionError("once' in str(caught.value.__cause__)


@pytest.mark.long
def test_shared_is_pickled_once_and_unpickled_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "pickled", 0)
    with JobRunner(jobs=2) as job_runner:
        results = jobs.run(job_runner, jobs.weigh, jobs.recipes(12, 0.05), shared=Counted(bytes(5_000_000)))
        assert Counted.pickled == 1
        assert {(measured.value, measured.unpickled) for measured in results} == {(5_000_000, 1)}
        assert os.getpid() not in {measured.pid for measured in results}
        # Another run has another shared object.
        assert jobs.run(job_runner, jobs.weigh, jobs.recipes(1), shared=Counted(b"12"))[0].value == 2


@pytest.mark.long
def test_a_worker_that_dies_loses_nothing_that_is_finished(tmp_path: Path) -> None:
    def run() -> list[Measured]:
        with JobRunner(jobs=2, store=tmp_path / "store") as job_runner:
            return jobs.run(job_runner, jobs.die_once, jobs.recipes(8, 0.05, tmp_path))

    with pytest.raises(EdgeError, match=r"^a worker process died at one of .*recipe-2.*fewer than 2 jobs"):
        run()
    kept = [path.stem.removeprefix("recipe-") for path in (tmp_path / "store").glob("*.msgpack")]
    assert len(kept) >= 2
    assert [measured.number for measured in run()] == list(range(8))
    starts = [path.name.split(".")[0] for path in tmp_path.glob("*.*.*")]
    assert all(starts.count(number) == 1 for number in kept)


def test_arguments_that_make_no_sense() -> None:
    assert "jobs: expected at least 1, got 0" in refusal(UsageError, JobRunner, jobs=0)
    assert "the cluster decides how many" in refusal(UsageError, JobRunner, jobs=2, scheduler="tcp://a:1")


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(8)))
    with JobRunner() as alone, JobRunner(jobs=3) as three:
        assert (alone.executor.threads_per_job, three.executor.threads_per_job) == (8, 2)


_PROGRAM = """
import sys
from pathlib import Path
from edge_sdk_tools.jobs.runner import JobRunner
from tests.support import jobs
if __name__ == "__main__":
    folder, many = Path(sys.argv[1]), int(sys.argv[2])
    with JobRunner(jobs=many, store=folder / "store") as job_runner:
        jobs.run(job_runner, jobs.measure, jobs.recipes(8, 0.2, folder / "starts"), shared=bytes(3_000_000),
            on_done=lambda done, _total: print(done, job_runner.remembered, flush=True))
"""


@pytest.mark.long
@pytest.mark.parametrize(("many", "whole_group"), [(1, False), (2, True)])
def test_an_interrupted_run_resumes_and_leaves_no_process(tmp_path: Path, many: int, whole_group: bool) -> None:
    for name in ("starts", "maps"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(many)]
    environment = {**os.environ, "PYTHONPATH": _path(), "JOBLIB_TEMP_FOLDER": str(tmp_path / "maps")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
    for _ in range(3):
        first.stdout.readline()
    # A terminal sends SIGINT to every process, `kill` to one.
    (os.killpg if whole_group else os.kill)(first.pid, signal.SIGINT)
    _, errors = first.communicate(timeout=120)
    assert (first.returncode, errors.count("Traceback") <= 1) == (-signal.SIGINT, True), errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    # All processes belong to its session; the last one to end is the tracker that removes the maps.
    until(lambda: not _session(first.pid))
    assert list((tmp_path / "maps").iterdir()) == []
    kept = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert all(name.endswith(".msgpack") for name in kept)  # none half written
    assert len(kept) >= 3

    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert again.stdout.splitlines()[-1] == f"8 {len(kept)}"
    assert again.stderr == ""
    starts = [path.name.split(".")[0] for path in (tmp_path / "starts").iterdir()]
    assert all(starts.count(name.removeprefix("recipe-").removesuffix(".msgpack")) == 1 for name in kept)


def _session(leader: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(leader) and fields[0] != "Z":
            found.append(path.parent.name)
    return found


def _run(store: Path, items: list[Recipe]) -> int:
    with JobRunner(store=store) as job_runner:
        results = jobs.run(job_runner, jobs.measure, items)
    assert results == [Measured(item.number, item.number / 3) for item in items]
    return job_runner.remembered


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    items = jobs.recipes(6)
    _run(tmp_path, items)
    files = [tmp_path / f"recipe-{number}.msgpack" for number in range(4)]
    whole, flipped = files[0].read_bytes(), bytearray(files[2].read_bytes())
    flipped[-12] ^= 1  # inside a float: still a result, and a wrong one
    for file, data in zip(files, (whole[:-3], b"", flipped, whole), strict=True):  # the last has another item's result
        file.write_bytes(data)
    Store(tmp_path).put("recipe-4", b"\x81\xa6number\x00")  # a result of an older form
    assert _run(tmp_path, items) == 1
    assert _run(tmp_path, items) == 6


def test_prune_removes_what_was_not_used_for_longest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for age, key in enumerate("dcba"):
        store.put(key, bytes(1000))
        os.utime(tmp_path / f"{key}.msgpack", (age, age))
    size = (tmp_path / "a.msgpack").stat().st_size
    (tmp_path / ".e.1.partial").write_bytes(bytes(9))  # of a process that was killed
    os.utime(tmp_path / ".e.1.partial", (0, 0))
    assert store.get("d") == bytes(1000)  # used, so it is the newest now
    for most, left in ((4 * size, "abcd"), (2 * size + 1, "ad"), (0, "")):
        store.prune(most)
        assert sorted(path.stem for path in tmp_path.iterdir()) == list(left)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file/store: results cannot be kept: Not a directory$"):
        Store(tmp_path / "file" / "store")
    store = Store(tmp_path / "store")
    (tmp_path / "store" / "a.msgpack").mkdir()
    assert "results cannot be kept" in refusal(OutputError, store.put, "a", b"")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a.msgpack"]


def test_a_path_whose_name_is_no_text_stays_as_it_is() -> None:
    path = Path("\udcff\n.png")
    assert decoded(encoded([path]), list[Path]) == [path]


# Jobs on a real Dask cluster of two worker processes: the same results, even if a worker or the scheduler dies.


if TYPE_CHECKING:
    from distributed import LocalCluster

distributed = Lazy("distributed")

# Dask closes some of its sockets and loops only when they are collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    # Dask asks this long for a result that died with its worker, 30 s by default. Its settings are reached through
    # `distributed`, which first adds its own: otherwise they would be removed together with these.
    with distributed.dask.config.set({"distributed.comm.timeouts.connect": "3s"}), local_cluster(2) as cluster:
        yield cluster


def _pids(cluster: LocalCluster) -> list[int]:
    return [nanny.pid for nanny in cluster.workers.values()]


@pytest.mark.long
def test_as_on_this_machine(cluster: LocalCluster, tmp_path: Path) -> None:
    items = jobs.recipes(7, 0.05)
    answers: list[list[Measured]] = []
    for options in ({}, {"jobs": 2}, {"scheduler": cluster.scheduler_address, "store": tmp_path / "store"}):
        with JobRunner(**options) as job_runner:
            assert job_runner.executor.threads_per_job >= 1
            answers.append(jobs.run(job_runner, jobs.measure, items, shared=b"some bytes"))
    assert answers[0] == answers[1] == answers[2] == [Measured(number, number / 3 + 10) for number in range(7)]
    # What the cluster computed is remembered here, where no cluster is asked any more.
    with JobRunner(store=tmp_path / "store") as job_runner:
        again = jobs.run(job_runner, jobs.measure, items, shared=b"some bytes")
    assert (again, job_runner.remembered) == (answers[0], 7)


@pytest.mark.long
def test_shared_is_sent_once(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "pickled", 0)
    with JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        before = jobs.run(job_runner, jobs.weigh, jobs.recipes(1), shared=Counted(b""))
        monkeypatch.setattr(Counted, "pickled", 0)
        results = jobs.run(job_runner, jobs.weigh, jobs.recipes(12, 0.05), shared=Counted(bytes(5_000_000)))
    # Pickled once by this process; a worker that hands it on to the other one pickles it again.
    assert (Counted.pickled, before[0].value) == (1, 0)
    assert {measured.value for measured in results} == {5_000_000}
    pids = sorted({(measured.pid, measured.unpickled) for measured in results})
    assert [pid for pid, _unpickled in pids] == sorted(_pids(cluster))


@pytest.mark.long
def test_a_worker_that_is_killed_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    def on_done(done: int, _total: int) -> None:
        if done == 3:
            os.kill(_pids(cluster)[0], signal.SIGKILL)

    with JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        results = jobs.run(job_runner, jobs.measure, jobs.recipes(12, 0.2, tmp_path), shared=b"1234", on_done=on_done)
    assert results == [Measured(number, number / 3 + 4) for number in range(12)]


@pytest.mark.long
def test_an_interruption_cancels_what_waits(cluster: LocalCluster, tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), JobRunner(scheduler=cluster.scheduler_address) as job_runner:
        jobs.run(job_runner, jobs.measure, jobs.recipes(30, 0.2, tmp_path), shared=b"", on_done=interrupt)
    until(lambda: not cluster.scheduler.tasks)  # without a cancellation this would wait until all of them are done
    assert len(list(tmp_path.iterdir())) < 15


@pytest.mark.long
def test_a_job_that_always_kills_its_worker_is_given_up() -> None:
    with local_cluster(1) as small, JobRunner(scheduler=small.scheduler_address) as job_runner:
        small.scheduler.allowed_failures = 1
        with pytest.raises(EdgeError, match=r"^recipe-2: the workers that ran it died"):
            jobs.run(job_runner, jobs.die, jobs.recipes(3)[2:])


@contextlib.contextmanager
def _program(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], env={**os.environ, **environment}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, cwd="/",  # where `-m` finds no other modules first
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()  # after SIGTERM a worker whose scheduler is gone would first look for it
        process.wait(timeout=60)


def _path(*first: Path) -> str:
    """Return the import path of a worker: `first`, then that of this process."""
    return os.pathsep.join([*map(str, first), *sys.path])


def _worker(address: str, **environment: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
    return _program("distributed.cli.dask_worker", address, *options, **environment)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
def test_a_scheduler_that_goes_away_is_named() -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    with _program(*scheduler) as process, _worker(address, PYTHONPATH=_path()):
        until(lambda: _listens(port))
        lost = pytest.raises(EdgeError, match=rf"^scheduler {address}: lost: ")
        with JobRunner(scheduler=address) as job_runner, lost:
            jobs.run(
                job_runner, jobs.measure, jobs.recipes(50, 0.1), shared=b"",
                on_done=lambda done, _: process.kill() if done == 3 else None,
            )  # fmt: skip


def _other_numpy(folder: Path) -> None:
    (folder / "numpy-1.99.0.dist-info").mkdir()
    (folder / "numpy-1.99.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99.0\n")


def _other_sources(folder: Path) -> None:
    for package in (edge_sdk, edge_sdk_tools):
        root = Path(package.__path__[0])
        shutil.copytree(root, folder / root.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "edge_sdk" / "core" / "errors.py").open("a") as file:
        file.write("# another commit\n")


@pytest.mark.long
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


@pytest.mark.long
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
    said = refusal(UsageError, JobRunner(scheduler=address).__enter__)
    assert said.startswith(f"scheduler {address}: nobody answers within 10 s")
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_somebody_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.jobs.cluster._PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute_runner = JobRunner(scheduler=f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        assert "nobody answers within 1 s" in refusal(UsageError, mute_runner.__enter__)


@pytest.mark.long
def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sdk_tools.jobs.cluster._PATIENCE_S", 1.0)
    with local_cluster(0) as empty, pytest.raises(UsageError, match="no worker within 1 s; start some"):
        JobRunner(scheduler=empty.scheduler_address).__enter__()


def test_addresses_that_are_refused() -> None:
    for address in ("host:8786", "http://host:8786", "tcp://host", "tcp://a:b@host:1", "tcp://host:1\n", ""):
        said = refusal(UsageError, JobRunner(scheduler=address).__enter__)
        assert "expected tcp://HOST:PORT or tls://HOST:PORT" in said


def test_tls_without_certificates() -> None:
    enter = JobRunner(scheduler="tls://a:1").__enter__
    assert refusal(UsageError, enter).endswith("names no certificates for TLS, see docs/cluster.md")
    files = {f"distributed.comm.tls.{name}": "/nowhere.pem" for name in ("ca-file", "client.cert", "client.key")}
    with distributed.dask.config.set(files):
        assert "Dask's configuration of TLS: FileNotFoundError" in refusal(UsageError, enter)
