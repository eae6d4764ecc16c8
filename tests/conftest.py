"""What all tests share: how they are spread over workers, and what is made once for all of them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edge_sdk.cli.root import run
from edge_sdk.core.errors import MissingDependencyError
from tests.support.absent import Cache, locked
from tests.support.broker import Broker
from tests.support.logs import begin_recording, forget
from tests.support.pictures import write_frames
from tests.support.program import Cli, Printed

if TYPE_CHECKING:
    from edge_sdk_tools.arm_cost.counter import Counter

begin_recording()
_CHECKOUT = Path(__file__).parents[1]
_LONG, _SYSTEM = Path(__file__).parent / "long", Path(__file__).parent / "system"
_LONG_TIMEOUT_S = 900  # of one test with what its file has set up for it; only a guard


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Say how many workers `-n auto` is: twice the cores, because many tests wait; each takes some 600 MB."""
    return min(8, 2 * len(os.sched_getaffinity(0)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by where they stand. Files that mostly wait and files that compute take turns, the longest first."""
    for item in items:
        if _LONG in item.path.parents:
            item.add_marker(pytest.mark.long)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S))
        if _LONG in item.path.parents or _SYSTEM in item.path.parents:
            item.add_marker(pytest.mark.system)
    files = dict.fromkeys(item.path for item in items)
    waiting = [path for folder in (_LONG, _SYSTEM) for path in files if folder in path.parents]
    computing = [path for path in files if path not in waiting]
    places = {path: (n + 0.5) / len(kind) for kind in (waiting, computing) for n, path in enumerate(kind)}
    items.sort(key=lambda item: places[item.path])


# In place of a signal that whoever started the tests ignores. A program inherits what is ignored, and no handler; those
# who started the tests with nohup still have them go on when their terminal is closed.
_HEARD = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: lambda _number, _frame: None,
}


@pytest.fixture(scope="session", autouse=True)
def _signals() -> Iterator[None]:
    """Programs that tests start hear SIGINT, SIGTERM and SIGHUP, in the background and under nohup too."""
    ignored = [number for number in _HEARD if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _HEARD[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def _no_lines() -> None:
    """Forget the lines that earlier tests logged."""
    forget()


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One state folder for all tests, as on a device, instead of that of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("STATE_DIRECTORY", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Folders that one worker makes for all, and no test changes."""
    base = tmp_path_factory.getbasetemp()
    return Cache((base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "made-once")


@pytest.fixture(scope="session")
def cell_bundle(made_once: Cache) -> Path:
    """A bundle for this machine; tests that change it work on a copy."""
    from tests.support.bundles import NATIVE_TARGET, build_cell_detector

    return made_once.folder_of("cells", [], build_cell_detector) / f"cells-{NATIVE_TARGET}.edge"


@pytest.fixture(scope="session")
def cell_pictures(made_once: Cache) -> Path:
    """Four pictures with a red and a blue cell each."""
    from tests.support.bundles import write_cell_pictures

    return made_once.folder_of("pictures", [], lambda fresh: write_cell_pictures(fresh / "cells")) / "cells"


@pytest.fixture(scope="session")
def counter() -> Counter:
    """What counts and emulates Cortex-A72 and A76; set up once, in the checkout."""
    from edge_sdk_tools.arm_cost.installation import set_up

    missing = [name for name in ("apt-get", "dpkg-deb", "cc") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed, and counting needs it")
    try:
        with locked(_CHECKOUT / ".cache" / "counter.lock"):
            return set_up(_CHECKOUT / ".cache")
    except MissingDependencyError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run_here(code: int, *arguments: object) -> Printed:
        capsys.readouterr()
        ended = run([str(argument) for argument in arguments])
        printed = Printed(*capsys.readouterr())
        assert ended == code, printed
        return printed

    return run_here


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A Mosquitto of this test's own, open to everybody on this machine."""
    with Broker(tmp_path) as running:
        yield running


@pytest.fixture
def video(made_once: Cache, tmp_path: Path) -> Path:
    """Ten seconds of cells at 20 frames a second."""
    kept = made_once.folder_of("video", [b"short"], lambda fresh: _write_cells(fresh, 200))
    return Path(shutil.copy(kept / "cells.avi", tmp_path))


@pytest.fixture(scope="session")
def long_video(made_once: Cache) -> Path:
    """Two minutes of them, for what has to happen before a video ends."""
    kept = made_once.folder_of("video", [b"long"], lambda fresh: _write_cells(fresh, 2400))
    return kept / "cells.avi"


@pytest.fixture(scope="session")
def blinking_video(made_once: Cache) -> Path:
    """Two minutes in which cells come and go all the time."""
    from tests.support.device import write_blinking_video

    return made_once.folder_of("blinking", [], lambda fresh: write_blinking_video(fresh / "cells.avi")) / "cells.avi"


def _write_cells(folder: Path, frames: int) -> None:
    from tests.support.bundles import cell_picture

    write_frames(folder / "cells.avi", map(cell_picture, range(frames)), 20)
