"""What a run writes, to whom, how it ends, and what it tells a service manager."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from tests.support.absent import not_installed
from tests.support.broker import Broker, Subscriber, find_program, wait_until
from tests.support.bundles import cell_picture, endless_of_hostile, write_graded
from tests.support.configs import HEALTHY, write_at_ease
from tests.support.device import MOMENTS, Device, Moment, Scene, broker_is_frozen, loading, own_folders, running, tuning
from tests.support.pictures import write_video
from tests.support.program import PATIENCE_S, edge_sdk, started
from tests.support.service import Manager
from tests.support.streams import StreamServer, rtsp_server
from tests.support.subscribers import documents, statuses

pytestmark = pytest.mark.system


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end for writing of a pipe that nobody reads, and that takes no more."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"\n" * 4096):
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def test_sigterm_ends_a_run_whose_results_nobody_reads(cell_bundle: Path, long_video: Path, full_pipe: int) -> None:
    patient = ("--latency-ms", 5000, "--no-tune")  # for a machine that does other things too
    with started("run", cell_bundle, "--source", long_video, *patient, stdout=full_pipe) as process:
        assert process.stderr
        assert any("first result" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in rest, "Fatal" in rest) == (0, False, False)


def test_nobody_waits_for_a_reader_of_standard_error(cell_bundle: Path, full_pipe: int) -> None:
    with started("run", cell_bundle, "--source", "pattern:128x128@20", "--no-tune", stderr=full_pipe) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline().startswith('{"task"')
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_a_reader_that_goes_away_ends_the_run_quietly(cell_bundle: Path, video: Path) -> None:
    with started("run", cell_bundle, "--source", video, "--quiet") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        wait_until(lambda: process.poll() is not None, "its end")
        assert (process.returncode, process.stderr.read()) == (1, "")


def test_what_a_library_writes_about_a_damaged_picture_is_no_line(cell_bundle: Path, tmp_path: Path) -> None:
    """A JPEG that decodes, and of which libjpeg has something to say."""
    data = cv2.imencode(".jpg", cell_picture(0))[1].tobytes()
    (tmp_path / "0.jpg").write_bytes(data[:-2] + b"\x12\x34\x56" + data[-2:])
    read = [sys.executable, "-c", "import cv2, sys; cv2.imread(sys.argv[1])", str(tmp_path / "0.jpg")]
    assert "Corrupt JPEG data" in subprocess.run(read, capture_output=True, text=True, check=True).stderr
    done = edge_sdk("run", cell_bundle, "--source", tmp_path, "--no-tune", "--json")
    assert (done.returncode, '"results":1' in done.stdout, "JPEG data" in done.stderr) == (0, True, False), done.stderr
    assert "source" in done.stderr


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_a_stopped_run_finishes_its_video(cell_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an encoder that is as slow as on a small board."""
    slow = tmp_path / "ffmpeg"
    slow.write_text(f'#!/bin/sh\n"{shutil.which("ffmpeg")}" "$@"\ncode=$?\nsleep 3\nexit $code\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    video = tmp_path / "a.mp4"
    with started("run", cell_bundle, "--source", HEALTHY["source"], "--annotate", video, "--no-tune") as process:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert cv2.VideoCapture(str(video)).read()[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "ffmpeg"]


# A terminal: SIGHUP that somebody sends is a reload, and one because the terminal closed is the end.

_LEADER = "import os, sys; os.setsid(); os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"
# A shell with job control, of which the run is the job in the foreground.
_SHELL = """import os, signal, sys
os.setsid()
tty = os.open(sys.argv[1], os.O_RDWR)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    os.tcsetpgrp(tty, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
for number in (signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda *_: os.kill(child, signal.SIGHUP))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("session", "reload"), [(_LEADER, signal.SIGHUP), (_SHELL, signal.SIGUSR1)])
def test_closing_its_terminal_ends_it(cell_bundle: Path, tmp_path: Path, session: str, reload: signal.Signals) -> None:
    master, slave = os.openpty()
    before = [sys.executable, "-c", session, os.ttyname(slave)]
    config = write_at_ease(tmp_path, cell_bundle, {"gate": HEALTHY})
    with Device(config, before=before, environment=own_folders(tmp_path)) as device:
        device.run_on("gate")
        os.close(slave)
        device.process.send_signal(reload)
        device.hear("configuration read again: as before: gate")
        device.run_on("gate")
        os.close(master)
        assert device.end() == 0
        assert device.lines_with("stopped by signal")
        assert len(device.lines_with("configuration read again")) == 1


# SIGTERM and SIGINT at many moments.


_UNANSWERED = ("broker_is_frozen", "broker_is_frozen_and_another_name_comes", "no_broker")


@pytest.fixture(scope="module")
def door() -> Iterator[StreamServer]:
    with rtsp_server() as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path, cell_bundle: Path, door: StreamServer, broker: Broker) -> Iterator[Scene]:
    yield Scene(tmp_path, cell_bundle, door, broker)
    broker.thaw()
    door.go_on()


def _check(scene: Scene, device: Device, listener: Subscriber, *, answers: bool = True) -> None:
    assert not device.lines_with("Traceback")
    assert not [str(path) for path in (scene.folder / "scratch").rglob("*")], "temporary files"
    assert not [str(path) for path in (scene.folder / "state").rglob(".*")], "halves of records"
    if not device.lines_with("online"):
        return
    wait_until(lambda: "offline" in [one[0] for one in statuses(listener)[-1:]], "the offline message")
    name = documents(listener.messages("/status"))[-1]["device"]
    with Subscriber(scene.broker, f"edge/v1/default/{name}/status") as late:
        late.wait_for(lambda messages: len(messages) == 1, "the retained status")
        [(status, reason, is_retained)] = statuses(late)
    assert (status, is_retained, reason == "shutdown" or not answers) == ("offline", True, True)


@pytest.mark.parametrize(
    ("moment", "number"),
    [*((moment, signal.SIGTERM) for moment in MOMENTS), *((moment, signal.SIGINT) for moment in (loading, running))],
    ids=lambda value: getattr(value, "__name__", None) or value.name,
)
def test_a_signal_at_any_moment(scene: Scene, moment: Moment, number: signal.Signals) -> None:
    scene.defaults["tune"] = moment is tuning
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        assert device.stop(number) == 0, device.said
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment.__name__ not in _UNANSWERED)


@pytest.mark.parametrize("moment", [running, broker_is_frozen])
def test_a_second_signal_changes_nothing(scene: Scene, moment: Moment) -> None:
    with Subscriber(scene.broker) as listener, moment(scene) as device:
        device.process.send_signal(signal.SIGTERM)
        assert device.stop() == 0, device.said
        scene.broker.thaw()
        _check(scene, device, listener, answers=moment is running)


_KILLED_BY_AN_IMPORT = """
import os, sys
class Killer:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), int(sys.argv.pop()))
sys.meta_path.insert(0, Killer())
import edge_sdk.cli
"""


@pytest.mark.parametrize(("arguments", "is_heard"), [(["run"], True), (["run", "--check"], False), (["watch"], False)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_hears_a_signal_from_the_start(arguments: list[str], is_heard: bool, number: signal.Signals) -> None:
    """Other commands have no connection to end, and their exit code is an answer."""
    command = [sys.executable, "-c", _KILLED_BY_AN_IMPORT, *arguments, str(number.value)]
    process = subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    assert process.returncode == (0 if is_heard else -number)


# A run or a tuning that ends while a model is tried.


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose second variant hangs, on a board that tried nothing yet and has its own folder for scratch."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return write_graded(tmp_path / "graded.edge", hostile=endless_of_hostile(side=8))


def _is_trying(scratch: Path) -> bool:
    """Whether there is a process that tries a model, and was started with this folder for scratch."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            is_trial = b"edge_sdk.inference.trial" in (folder / "cmdline").read_bytes()
            if is_trial and str(scratch).encode() in (folder / "environ").read_bytes():
                return True
    return False


@pytest.mark.parametrize(
    ("verb", "number", "code", "last"),
    [
        ("run", None, 0, '"ended_by":"end of source"'),
        ("run", signal.SIGTERM, 0, '"ended_by":"signal"'),
        ("tune", signal.SIGINT, 130, "edge-sdk: interrupted"),
        ("tune", signal.SIGTERM, 130, "edge-sdk: interrupted"),
    ],
)
def test_no_trial_of_another_variant_goes_on_behind(
    tmp_path: Path, hanging: Path, verb: str, number: signal.Signals | None, code: int, last: str
) -> None:
    scratch, arguments = tmp_path / "scratch", list[object]()
    if verb == "run":
        video = write_video(tmp_path / "v.avi", range(1000 if number is None else 5000), fps=50, size_wh=(64, 48))
        arguments = ["--source", video, "--trial-seconds", 200, "--json"]
    with started(verb, hanging, "--latency-ms", 1000, *arguments) as process:
        wait_until(lambda: any((tmp_path / "state").rglob("*.json")), "the trial of the first variant")
        wait_until(lambda: _is_trying(scratch), "that of the second, which hangs")
        if number is not None:
            process.send_signal(number)
        output, complaint = process.communicate(timeout=PATIENCE_S)
    found = (process.returncode, last in output + complaint, "left out" in complaint)
    assert found == (code, True, False), complaint
    wait_until(lambda: not _is_trying(scratch), "the end of the trial, which was killed")
    assert not list(scratch.iterdir())


def test_a_signal_while_another_model_hangs_beside_the_stream_ends_the_run(tmp_path: Path, hanging: Path) -> None:
    """The tuner's thread hangs while it loads a model that had no trial."""
    video = write_video(tmp_path / "v.avi", range(5000), fps=50, size_wh=(64, 48))
    command = ("run", hanging, "--source", video, "--latency-ms", 1000, "--trial-seconds", 0, "-q")
    with started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: _busiest_s(process.pid) > 1, "the model that hangs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def _busiest_s(pid: int) -> float:
    """CPU time of the busiest thread beside the main one, in seconds."""
    ticks = [0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it may have ended
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks.append(int(fields[11]) + int(fields[12]) if task.name != str(pid) else 0)
    return max(ticks) / os.sysconf("SC_CLK_TCK")


# What `edge-sdk run` tells a service manager, and what systemd's own tools say of the unit; without a systemd.


def _hear_until(manager: Manager, word: str) -> list[str]:
    """Signs of life, and starts that ask for time, up to a message that begins with the word."""
    while not (message := manager.hear())[0].startswith(word):
        assert message == ["WATCHDOG=1"] or message[0].startswith("EXTEND_TIMEOUT_USEC=")
    return message


def test_a_run_from_its_start_to_its_end(cell_bundle: Path, long_video: Path, tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    environment = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    command = ("run", cell_bundle, "--source", long_video, "--no-tune")
    with started(*command, stdout=subprocess.DEVNULL, env=environment) as process:
        assert manager.hear() == ["EXTEND_TIMEOUT_USEC=330000000"]  # its turn to start
        assert _hear_until(manager, "READY=1") == ["READY=1", f"STATUS=cells runs on {long_video}"]
        for _ in range(3):
            assert manager.hear() == ["WATCHDOG=1"]
        process.send_signal(signal.SIGHUP)
        assert _hear_until(manager, "RELOADING=1")[1].startswith("MONOTONIC_USEC=")
        assert _hear_until(manager, "READY=1")
        assert _hear_until(manager, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        assert _hear_until(manager, "STOPPING=1")
        _, said = process.communicate(timeout=PATIENCE_S)
    manager.close()
    assert (process.returncode, said.count("s after start (interpreter and command")) == (0, 1)


# The unit of the examples.

_UNIT = Path(__file__).parents[2] / "examples/raspberry_pi/edge-sdk.service"


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_program("systemd-analyze")
    if program is None:
        not_installed("systemd-analyze is not installed; `apt-get install systemd`")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    """systemd-analyze only warns of an unknown line: its output counts, not its exit code."""
    installed = tmp_path / _UNIT.name
    installed.write_text(_UNIT.read_text().replace("/opt/edge-sdk/bin/edge-sdk", "/bin/true"))
    done = _analyze("verify", "--man=no", str(installed))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_exposed_as_little_as_promised() -> None:
    done = _analyze("security", "--offline=true", "--threshold=20", "--no-pager", str(_UNIT))
    assert done.returncode == 0, done.stdout + done.stderr
