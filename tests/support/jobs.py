"""Jobs that the tests of candidates run in other processes."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edge_sdk.core.errors import EdgeError
from edge_sdk_tools.check.report import RefusedModelError
from edge_sdk_tools.jobs.runner import JobRunner

if TYPE_CHECKING:
    from distributed import LocalCluster


class Recipe(msgspec.Struct, frozen=True):
    number: int
    seconds: float = 0.0
    folder: str = ""


def recipes(count: int, seconds: float = 0.0, folder: Path | str = "") -> list[Recipe]:
    return [Recipe(number, seconds, str(folder)) for number in range(count)]


class Measured(msgspec.Struct, frozen=True):
    number: int
    value: float
    pid: int = 0
    unpickled: int = 0


class Place(msgspec.Struct, frozen=True):
    folder: str


def temporary_files(_recipe: Recipe, _shared: object) -> Place:
    return Place(tempfile.gettempdir())


class Counted:
    """Large, and counts how often it was pickled and, in each process, unpickled."""

    pickled = 0
    unpickled = 0

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __getstate__(self) -> bytes:
        Counted.pickled += 1
        return self.data

    def __setstate__(self, data: bytes) -> None:
        Counted.unpickled += 1
        self.data = data


def key(recipe: Recipe) -> str:
    return f"recipe-{recipe.number}"


def measure(recipe: Recipe, shared: bytes | None) -> Measured:
    """Leaves a file a start in recipe.folder, so that a test sees how often a job ran and where."""
    if recipe.folder:
        (Path(recipe.folder) / f"{recipe.number}.{os.getpid()}.{time.monotonic_ns()}").touch()
    time.sleep(recipe.seconds)
    return Measured(recipe.number, recipe.number / 3 + len(shared or b""))


def weigh(recipe: Recipe, shared: Counted) -> Measured:
    time.sleep(recipe.seconds)
    return Measured(recipe.number, len(shared.data), os.getpid(), Counted.unpickled)


def fail(recipe: Recipe, shared: str) -> Measured:
    if shared == "ours":
        raise RefusedModelError("model.onnx: no such model", "export it again")
    if shared == "unpicklable":
        error = EdgeError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]  # what no error has: it makes this one unpicklable
        raise error
    if shared == "foreign":
        raise ZeroDivisionError("once\nand again")
    return Measured(recipe.number, 0)


def die(recipe: Recipe, shared: None) -> Measured:
    if recipe.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return Measured(recipe.number, 0)


def die_once(recipe: Recipe, shared: None) -> Measured:
    """The third job kills its process, the first time only, when two results are kept in the folder `store`."""
    before, store = Path(recipe.folder) / "died", Path(recipe.folder) / "store"
    if recipe.number == 2 and not before.exists():
        before.touch()
        while len(list(store.glob("*.msgpack"))) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(recipe, None)


def local_cluster(workers: int) -> LocalCluster:
    """Worker processes with one thread each, and their scheduler, on this machine."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False}, silence_logs=50,
    )  # fmt: skip


def run(
    job_runner: JobRunner, function: Callable[..., Any], items: Sequence[Recipe], *, shared: object = None,
    **options: Any,
) -> list[Measured]:  # fmt: skip
    return job_runner.run(function, items, shared=shared, key=key, result=Measured, **options)
