"""Jobs on this machine: the same results however many at once, remembered, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_sdk.errors import EdgeError, ModelError, UsageError
from edge_sdk_tools.candidates import Finished, Workshop
from tests.host import candidate_jobs as jobs
from tests.host.candidate_jobs import Counted, Measured, Recipe


def recipes(count: int, seconds: float = 0.0, folder: Path | str = "") -> list[Recipe]:
    return [Recipe(number, seconds, str(folder)) for number in range(count)]


@pytest.fixture(params=[1, 2], ids=["sequential", "processes"])
def workshop(request: pytest.FixtureRequest) -> Iterator[Workshop]:
    with Workshop(jobs=request.param) as workshop:
        yield workshop


def test_results_in_the_items_order_and_progress_as_they_come(workshop: Workshop) -> None:
    # The first takes longest: it is done last where two run at once.
    items = [Recipe(0, 0.4), *recipes(6)[1:]]
    seen: list[Finished[Measured]] = []
    results = workshop.run(jobs.measure, items, shared=b"abc", key=jobs.key, result=Measured, on_done=seen.append)
    assert results == [Measured(number, number / 3 + 3) for number in range(6)]
    assert sorted(finished.key for finished in seen) == [f"recipe-{number}" for number in range(6)]
    assert [(finished.done, finished.total) for finished in seen] == [(number, 6) for number in range(1, 7)]


def test_temporary_files_of_a_job_go_where_the_hosts_go(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (place,) = workshop.run(jobs.temporary_files, recipes(1), shared=None, key=jobs.key, result=jobs.Place)
    assert place.folder == str(tmp_path)


def test_items_of_one_key_are_done_once(workshop: Workshop, tmp_path: Path) -> None:
    items = recipes(3, folder=tmp_path) * 2
    results = workshop.run(jobs.measure, items, shared=None, key=jobs.key, result=Measured)
    assert [measured.number for measured in results] == [0, 1, 2, 0, 1, 2]
    assert len(list(tmp_path.iterdir())) == 3


def test_no_items(workshop: Workshop) -> None:
    assert workshop.run(jobs.measure, [], shared=None, key=jobs.key, result=Measured) == []


def test_an_error_of_ours_arrives_as_it_is(workshop: Workshop) -> None:
    with pytest.raises(ModelError, match=r"^model\.onnx: no such model; export it again$") as caught:
        workshop.run(jobs.fail, recipes(3), shared="ours", key=jobs.key, result=Measured)
    assert vars(caught.value)["next_step"] == "export it again"
    with pytest.raises(EdgeError, match=r"^holds a lock$"):
        workshop.run(jobs.fail, recipes(3), shared="unpicklable", key=jobs.key, result=Measured)


def test_any_other_error_is_one_line_that_names_the_item(workshop: Workshop) -> None:
    with pytest.raises(EdgeError, match=r"^recipe-7: ZeroDivisionError: once$") as caught:
        workshop.run(jobs.fail, [Recipe(7)], shared="foreign", key=jobs.key, result=Measured)
    assert 'raise ZeroDivisionError("once' in str(caught.value.__cause__)
    with pytest.raises(EdgeError, match=r"^recipe-0: what the job returned is no Measured: Expected `object`"):
        workshop.run(jobs.lie, recipes(1), shared=None, key=jobs.key, result=Measured)


def test_shared_is_pickled_once_and_unpickled_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "pickled", 0)
    with Workshop(jobs=2) as workshop:
        shared = Counted(bytes(5_000_000))
        results = workshop.run(jobs.weigh, recipes(12, 0.05), shared=shared, key=jobs.key, result=Measured)
        assert Counted.pickled == 1
        assert {measured.value for measured in results} == {5_000_000}
        assert {measured.unpickled for measured in results} == {1}
        assert len({measured.pid for measured in results} - {os.getpid()}) == 2
        # Another run has another one.
        assert workshop.run(jobs.weigh, recipes(1), shared=Counted(b"12"), key=jobs.key, result=Measured)[0].value == 2


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    seen: list[str] = []
    with Workshop(jobs=2) as workshop:
        results = workshop.run(
            jobs.die_once,
            recipes(8, 0.05, tmp_path),
            shared=None,
            key=jobs.key,
            result=Measured,
            on_done=lambda finished: seen.append(finished.key),
        )
    assert [measured.number for measured in results] == list(range(8))
    assert sorted(seen) == [f"recipe-{number}" for number in range(8)]


def test_a_job_that_always_kills_its_worker_is_given_up() -> None:
    with Workshop(jobs=2) as workshop, pytest.raises(EdgeError, match=r"^worker processes died 4 times, .*recipe-2"):
        workshop.run(jobs.die, recipes(4), shared=None, key=jobs.key, result=Measured)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Workshop(jobs=0), "jobs: expected at least 1, got 0"),
        (lambda: Workshop(jobs=2, scheduler="tcp://a:1"), "the cluster decides how many"),
    ],
)
def test_arguments_that_make_no_sense(make: Callable[[], Workshop], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        make()


def test_threads_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(8)))
    with Workshop() as alone, Workshop(jobs=3) as three:
        assert (alone.threads_per_job, three.threads_per_job) == (8, 2)


_PROGRAM = """
import sys
from pathlib import Path
from edge_sdk_tools.candidates import Workshop
from tests.host import candidate_jobs as jobs
if __name__ == "__main__":
    folder, many = Path(sys.argv[1]), int(sys.argv[2])
    items = [jobs.Recipe(number, 0.2, str(folder / "starts")) for number in range(8)]
    with Workshop(jobs=many, store=folder / "store") as workshop:
        print(workshop.run(jobs.measure, items, shared=bytes(3_000_000), key=jobs.key, result=jobs.Measured,
            on_done=lambda finished: print(finished.key, finished.remembered, flush=True)))
"""


@pytest.mark.parametrize(("many", "whole_group"), [(1, False), (2, False), (2, True)])
def test_an_interrupted_run_resumes_and_leaves_no_process(tmp_path: Path, many: int, whole_group: bool) -> None:
    (tmp_path / "starts").mkdir()
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), str(many)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JOBLIB_TEMP_FOLDER": str(tmp_path / "maps")}
    (tmp_path / "maps").mkdir()
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert first.stdout is not None
    done = [first.stdout.readline().split()[0] for _ in range(3)]
    # A terminal sends it to every process, `kill` to one.
    (os.killpg if whole_group else os.kill)(first.pid, signal.SIGINT)
    out, errors = first.communicate(timeout=120)
    done += [line.split()[0] for line in out.splitlines()]
    assert first.returncode == -signal.SIGINT
    assert errors.count("Traceback") <= 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    # Whoever was started belongs to its session; the last to go is the tracker that removes the maps.
    deadline = time.monotonic() + 60
    while left := _session(first.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert list((tmp_path / "maps").iterdir()) == []
    kept = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert all(name.endswith(".msgpack") for name in kept)  # none half written
    assert {f"{key}.msgpack" for key in done} <= set(kept)

    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    remembered = [line.split()[0] for line in again.stdout.splitlines() if line.endswith(" True")]
    assert sorted(f"{key}.msgpack" for key in remembered) == kept
    assert again.stderr == ""
    starts = [path.name.split(".")[0] for path in (tmp_path / "starts").iterdir()]
    assert all(starts.count(key.removeprefix("recipe-")) == 1 for key in remembered)


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
