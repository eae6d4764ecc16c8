"""A new bundle is tried in a process of its own: what crashes, hangs or takes all memory does it there."""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import BundleError, IncompatibleError
from edge_sdk.core.threads import Stop
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.trial import TrialLimits, prove_here
from tests.support.bundles import deep, edit_manifest, endless_of_hostile, sound, wants, write_hostile
from tests.support.logs import SAID, refusal
from tests.support.program import Cli

Found = TypeVar("Found")
HARM = {
    "memory": (lambda: wants(5), 200, "needs more than 512 MiB, and its target has 512"),
    "hang": (endless_of_hostile, 2, "were not done after 2 s"),
    "crash": (deep, 200, r"crashed on it \(SIGSEGV\)"),
}
"""A model, the seconds that it gets, and what is said of it."""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device on which nothing was tried yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "edge-sdk" / "proved"


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle.open(write_hostile(tmp_path / "tiny.edge", sound()))


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_one_line_and_nothing_is_remembered(state: Path, tmp_path: Path, harm: str) -> None:
    make, seconds, expected = HARM[harm]
    hostile = Bundle.open(write_hostile(tmp_path / "hostile.edge", make()))
    said = refusal(IncompatibleError, prove_here, hostile, seconds=seconds)
    assert re.search(expected, said)
    assert said.startswith(f"{tmp_path}/hostile.edge/model.int8.ort: not loaded: ")
    assert not state.exists()


def test_an_end_without_an_answer_proves_nothing(state: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code may end the process with 0 before its golden inputs were replayed."""
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert "cannot be tried here: exit code 0" in refusal(IncompatibleError, prove_here, bundle)
    assert not state.exists()


@pytest.mark.sandbox
def test_the_daemon_never_loads_it(state: Path, tmp_path: Path, cli: Cli) -> None:
    hostile = write_hostile(tmp_path / "hostile.edge", deep())
    assert cli(6, "run", hostile, "--source", tmp_path, "-q").err.count("\n") == 1


def test_a_sound_one_is_tried_once_whatever_its_name_and_the_newest_are_kept(state: Path, tmp_path: Path) -> None:
    state.mkdir(parents=True)
    for number in range(80):
        (state / f"{number}.json").touch()
    bundle = Bundle.open(write_hostile(tmp_path / f"{os.fsdecode(bytes([255]))}.edge", sound()))
    assert prove_here(bundle)
    assert len(list(state.iterdir())) == 64
    [record] = [path for path in state.iterdir() if path.stat().st_size]
    (bundle.path / "model.int8.ort").unlink()  # a second trial would miss it
    assert prove_here(bundle)
    assert prove_here(bundle, settings=SessionSettings.of(bundle.manifest))  # which are those it was tried with
    assert "missing" in refusal(BundleError, prove_here, bundle, settings=SessionSettings(intra_op_num_threads=2))
    record.write_bytes(record.read_bytes()[:-2])
    assert "missing" in refusal(BundleError, prove_here, bundle)


def test_another_bundle_in_its_place_is_refused(state: Path, bundle: Bundle) -> None:
    edit_manifest(bundle.path, version=2)
    assert "was changed while it was opened" in refusal(BundleError, prove_here, bundle)


def test_a_state_folder_that_cannot_be_written_is_said_and_nothing_more(state: Path, bundle: Bundle) -> None:
    state.parent.write_text("in the way")
    for _ in range(2):
        assert prove_here(bundle)
    [line] = SAID
    assert "every start repeats it" in line


@pytest.fixture
def hostile(state: Path, tmp_path: Path) -> Bundle:
    return Bundle.open(write_hostile(tmp_path / "hostile.edge", endless_of_hostile()))


def test_passwords_do_not_reach_it_and_who_is_told_to_stop_does_not_wait(
    hostile: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process is given, read where the kernel shows it."""
    for name in ("EDGE_SDK_MQTT_PASSWORD", "GATE_WORD", "CREDENTIALS_DIRECTORY", "CUDA_WORD"):  # password_env = any
        monkeypatch.setenv(name, "hush-hush")
    monkeypatch.syspath_prepend("/put-in-front-meanwhile")  # as OpenCV does while it is imported in another thread
    stop = Stop()
    with ThreadPoolExecutor(1) as beside:
        tried = beside.submit(prove_here, hostile, seconds=200, is_stopped=stop.is_asked)
        child = _wait_for(_the_trial)
        shown = (child / "cmdline").read_bytes() + (child / "environ").read_bytes()
        stop.ask()
        assert not tried.result(100)
    assert all(there in shown for there in (b"edge_sdk.inference.trial", b"PATH=", b"PYTHONPATH="))
    assert not any(hidden in shown for hidden in (b"/put-in-front-meanwhile", b"hush-hush"))
    # What it unpacks and cannot remove where it crashes is removed here.
    folder = Path(re.search(rb"TMPDIR=([^\0]+edge-trial-[^\0]+)", shown)[1].decode())  # type: ignore[index]
    assert (folder.parent, folder.exists()) == (Path(tempfile.gettempdir()), False)


@pytest.mark.parametrize("beside", [False, True])
def test_beside_a_camera_it_gives_way_and_at_a_start_it_does_not(hostile: Bundle, beside: bool) -> None:
    stop, own = Stop(), os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as other:
        other.submit(prove_here, hostile, is_stopped=stop.is_asked, beside=beside)
        child = int(_wait_for(_the_trial).name)
        _wait_for(lambda: True if os.getpriority(os.PRIO_PROCESS, child) > own or not beside else None)
        niceness = os.getpriority(os.PRIO_PROCESS, child) - own
        stop.ask()
    assert niceness == (min(10, 19 - own) if beside else 0)


def _the_trial() -> Path | None:
    """The folder in /proc of this process's child."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that just ended
            for child in (task / "children").read_text().split():
                folder = Path("/proc") / child
                if b"edge_sdk.inference.trial" in (folder / "cmdline").read_bytes():
                    return folder
    return None


def _wait_for(look: Callable[[], Found | None]) -> Found:
    while (found := look()) is None:
        time.sleep(0.01)
    return found


def test_what_is_free_limits_it_too() -> None:
    assert TrialLimits.here(64, 1.0).memory_bytes == 64 * 2**20
    assert 0 < TrialLimits.here(10**9, 1.0).memory_bytes < 10**9 * 2**20
