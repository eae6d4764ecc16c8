"""The unit of the examples under a real systemd: ready, watched, reloaded, ended, restarted or left alone.

It runs in a container with a Debian and a systemd of its own, in which this checkout is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from edge_sdk_tools.packages import cache_folder
from tests.support.absent import Cache, not_allowed, not_installed
from tests.support.broker import find_program, free_port, wait_until
from tests.support.configs import config_text
from tests.support.program import edge_sdk
from tests.support.streams import http_server

pytestmark = pytest.mark.system

CHECKOUT = Path(__file__).parents[2]

# DebianRoot: a folder with a minimal Debian of this machine's own release, from this machine's own mirror.

_PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "libstdc++6")
_APT = Path("/etc/apt")


def make_root() -> Path:
    """The folder, made once and kept in the cache; nobody may change it."""
    if os.geteuid() != 0:
        not_allowed("a container with a system of its own can be started by root alone")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not _APT.is_dir() or not release:
        not_allowed("this system is neither Debian nor made from it, and debootstrap makes one of those")
    for program in ("debootstrap", "systemd-nspawn", "nsenter"):
        if find_program(program) is None:
            not_installed(f"{program} is not installed; `apt-get install debootstrap systemd-container`")
    mirrors = _mirrors(release)
    if not mirrors:
        not_allowed(f"no server in {_APT} has {release}")
    recipe = (release.encode(), " ".join(_PACKAGES).encode())
    return Cache(cache_folder() / "systemd").folder_of("root", recipe, lambda fresh: _fill(fresh, release, mirrors[0]))


def _fill(folder: Path, release: str, mirror: str) -> None:
    # What it mounts goes with it, however it ends.
    command = ["unshare", "--mount", str(find_program("debootstrap")), "--variant=minbase"]
    command += [f"--include={','.join(_PACKAGES)}", release, str(folder), mirror]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        not_allowed(f"debootstrap could not make a system: {(done.stdout + done.stderr)[-500:]}")
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)


def _mirrors(release: str) -> list[str]:
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[0] for line in lines if line.split()[1:] == [release, "main"]]


# Container: a system with a systemd of its own as process 1, in which this checkout is installed.

PATIENCE_S = 300
"""Until something that takes a second is given up: only a guard."""

_BIN = "/opt/edge-sdk/bin"
_DOUBLES = "/opt/doubles"
_HANGING = """\
import signal, time
def hang(*_arguments):
    from edge_sdk.loop import Loop
    def step_that_never_ends(_loop, _timeout_s=0):
        time.sleep(1e6)
    Loop.step = step_that_never_ends
signal.signal(signal.SIGUSR1, hang)
"""
"""At SIGUSR1 a pipeline's next step never ends, while every other thread of the program goes on."""


class Container:
    def __init__(self, root: Path, shared: Path) -> None:
        self._root, self._shared = root, shared
        self._process: subprocess.Popen[str] | None = None
        self._leader = 0

    def __enter__(self) -> Container:
        probe = subprocess.run([*self._command(), "/bin/true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            not_allowed(f"systemd-nspawn cannot start a container here: {probe.stderr.strip()[-500:]}")
        self._process = subprocess.Popen(
            [*self._command(), "--console=pipe", "--boot"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            wait_until(self._is_up, "the container's systemd is up")
            self._install()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        """Run a program there as root; returns what it printed, on both streams."""
        done = subprocess.run(
            ["nsenter", "-t", str(self._leader), "-a", "--", *command], input=given, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def write(self, path: str, text: str, mode: str = "644") -> None:
        self.run("install", "-D", "-m", mode, "/dev/stdin", path, given=text)

    def _command(self) -> list[str]:
        bound = {CHECKOUT: "/opt/edge-sdk/checkout", self._shared: "/srv/test"}
        bound[Path(sysconfig.get_path("platlib"))] = "/opt/edge-sdk/packages"
        if sys.base_prefix != "/usr":  # that of Debian is there already, in the same release
            bound[Path(sys.base_prefix)] = "/opt/python"
        binds = [f"--bind-ro={here}:{there}" for here, there in bound.items()]
        options = ["--quiet", "--register=no", "--volatile=overlay", f"--machine=edge-sdk-{os.getpid()}"]
        # Where no systemd runs outside, nobody else can make a control group for it.
        keep = [] if Path("/run/systemd/system").is_dir() else ["--keep-unit"]
        return ["systemd-nspawn", f"--directory={self._root}", *options, *keep, *binds]

    def _install(self) -> None:
        """As docs/running-as-a-service.md has it, but that the program is this checkout's."""
        examples = "/opt/edge-sdk/checkout/examples/raspberry_pi"
        self.write(f"{_BIN}/python", _program('"$@"'), mode="755")
        self.write(f"{_BIN}/edge-sdk", _program('-m edge_sdk "$@"'), mode="755")
        self.write(f"{_DOUBLES}/sitecustomize.py", _HANGING)
        self.run("install", "-D", "-m", "644", f"{examples}/edge-sdk.sysusers", "/etc/sysusers.d/edge-sdk.conf")
        self.run("install", "-m", "644", f"{examples}/edge-sdk.service", "/etc/systemd/system/edge-sdk.service")
        self.run("systemd-sysusers")
        self.run("systemctl", "daemon-reload")

    def _is_up(self) -> bool:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise AssertionError(f"the container ended: {process.communicate()[1]}")
        if not self._leader:  # the container's first process, once it is systemd
            with contextlib.suppress(OSError):  # one of them may have ended
                started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                self._leader = next((int(p) for p in started if Path(f"/proc/{p}/comm").read_text() == "systemd\n"), 0)
            return False
        return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    def _end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if self._leader:
                os.kill(self._leader, signal.SIGRTMIN + 4)  # power off, systemd(1)
            self._process.communicate(timeout=PATIENCE_S)
        self._process.kill()
        self._process.wait()


def _program(arguments: str) -> str:
    """What would be installed: this Python with this checkout's packages, in the same process."""
    home = "/usr" if sys.base_prefix == "/usr" else "/opt/python"
    path = f"{_DOUBLES}:/opt/edge-sdk/checkout:/opt/edge-sdk/packages"
    python = f"{home}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    return f"""#!/bin/sh
export PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH={home}/lib
exec {python} {arguments}
"""


# Service: the unit of the examples in a container, with the command line that a test wants.

_UNIT = "edge-sdk.service"
_DROP_IN = f"/run/systemd/system/{_UNIT}.d/test.conf"


class Entry(NamedTuple):
    message: str
    priority: int
    identifier: str
    monotonic_us: int


class Service:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._since = ""

    def configure(self, arguments: str, settings: Sequence[str] = ()) -> None:
        """Stop it, and have it run `edge-sdk ARGUMENTS` from now on; all else is as in the examples."""
        self.control("stop")
        command = f"ExecStart=\nExecStart=/opt/edge-sdk/bin/edge-sdk {arguments}"
        self._container.write(_DROP_IN, "\n".join(["[Service]", command, *settings, ""]))
        self._container.run("systemctl", "daemon-reload")
        self._container.run("systemctl", "reset-failed", check=False)
        self._since = self._container.run("journalctl", "-n0", "--show-cursor", "-q").rpartition("cursor: ")[2]

    def control(self, verb: str, *options: str, check: bool = True) -> None:
        self._container.run("systemctl", *options, verb, _UNIT, check=check)

    def show(self, name: str) -> str:
        return self._container.run("systemctl", "show", "--value", f"--property={name}", _UNIT)

    def send(self, signal: str) -> None:
        self._container.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", _UNIT)

    def journal(self) -> list[Entry]:
        """What was said since it was configured, by the program and about it."""
        after = [f"--after-cursor={self._since}"] if self._since else []
        lines = self._container.run("journalctl", "-q", "-o", "json", "-u", _UNIT, *after).splitlines()
        return [
            Entry(e["MESSAGE"], int(e["PRIORITY"]), e["SYSLOG_IDENTIFIER"], int(e["__MONOTONIC_TIMESTAMP"]))
            for e in map(json.loads, lines)
        ]

    def said(self, words: str) -> list[Entry]:
        return [entry for entry in self.journal() if words in entry.message]

    def wait_until_said(self, words: str, times: int = 1) -> None:
        wait_until(lambda: len(self.said(words)) >= times, f"{words!r} in the journal: {self.journal()}")

    def wait_until(self, name: str, value: str) -> None:
        wait_until(lambda: self.show(name) == value, f"{name}={value}; {self.journal()}")


# What tests under a real systemd share: one system with edge-sdk in it, and its service.


@pytest.fixture(scope="session")
def systemd_container(
    cell_bundle: Path, long_video: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    shared = tmp_path_factory.mktemp("shared")
    shutil.copytree(cell_bundle, shared / "cells.edge")
    assert edge_sdk("keygen", shared / "fleet.key").returncode == 0
    assert edge_sdk("sign", shared / "cells.edge", "--key", shared / "fleet.key").returncode == 0
    shutil.copy(long_video, shared / "cells.avi")
    for path in (shared, *shared.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Container(make_root(), shared) as running:
        yield running


@pytest.fixture
def service(systemd_container: Container) -> Iterator[Service]:
    service = Service(systemd_container)
    yield service
    service.control("stop")


_EXAMPLES = CHECKOUT / "examples" / "raspberry_pi"
_RUN = "run /srv/test/cells.edge --source"
_NO_RESULTS = ["StandardOutput=null", "StandardError=journal"]
_VIDEO = f"{_RUN} /srv/test/cells.avi --no-tune --best-effort"


def _configure(container: Container, *cameras: str) -> None:
    pipelines = {name: {"source": "pattern:128x128@10"} for name in cameras}
    defaults = {"bundle": "/srv/test/cells.edge", "tune": False, "best_effort": True}
    container.write("/etc/edge-sdk/config.toml", "version = 1\n" + config_text(pipelines, defaults=defaults))


def test_it_is_ready_with_a_model_and_a_source_and_its_journal_has_priorities(service: Service) -> None:
    service.configure(_VIDEO, _NO_RESULTS)
    service.control("start")
    assert (service.show("ActiveState"), service.show("StatusText")) == ("active", "cells runs on /srv/test/cells.avi")
    service.wait_until_said("s after start")
    opened, *others = service.said("is open")
    assert not others
    assert int(service.show("ActiveEnterTimestampMonotonic")) >= opened.monotonic_us
    ours = [entry for entry in service.journal() if entry.identifier == "edge-sdk"]
    assert {entry.priority for entry in ours if entry.message.startswith("warning: no trusted key")} == {4}
    assert {entry.priority for entry in ours if "is open" in entry.message} == {6}
    assert not [entry for entry in ours if "edge-sdk:" in entry.message or entry.message.startswith("<")]
    service.control("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert service.said("stopped by signal")


def test_it_runs_with_no_rights_that_it_does_not_need(service: Service, systemd_container: Container) -> None:
    service.configure(_VIDEO)
    service.control("start")
    pid = service.show("MainPID")
    status = dict(re.findall(r"^(\w+):\t(.*)$", systemd_container.run("cat", f"/proc/{pid}/status"), re.M))
    assert status["Uid"].split()[0] == systemd_container.run("id", "-u", "edge-sdk") != "0"
    assert systemd_container.run("id", "-g", "edge-sdk") == status["Gid"].split()[0]
    assert systemd_container.run("getent", "group", "video").split(":")[2] in status["Groups"].split()
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapBnd"], 16)) == ("1", "2", 0)
    service.wait_until_said("s after start")
    assert systemd_container.run("ls", "/var/lib/edge-sdk") == "proved"
    assert "NOTIFY_SOCKET" in systemd_container.run("cat", f"/proc/{pid}/environ")  # as it was given


@pytest.mark.parametrize("signal", ["SIGUSR1", "SIGSTOP"])
def test_a_pipeline_that_hangs_is_ended_and_comes_back(signal: str, service: Service) -> None:
    service.configure(_VIDEO, ["WatchdogSec=3", "RestartSec=100ms"])
    service.control("start")
    service.wait_until_said("s after start")
    service.send(signal)
    service.wait_until("NRestarts", "1")
    assert service.said("Watchdog timeout")
    if signal == "SIGUSR1":
        service.wait_until_said("step_that_never_ends")
    service.wait_until_said("s after start", times=2)
    assert service.show("ActiveState") == "active"


def test_a_camera_that_is_lost_is_no_hang(service: Service) -> None:
    with http_server() as camera:
        service.configure(f"{_RUN} {camera.url()} --no-tune --best-effort", ["WatchdogSec=3"])
        service.control("start")
        service.wait_until_said("s after start")
        camera.pause()
        service.wait_until_said(": lost")
        lost = service.said(": lost")[0].monotonic_us
        wait_until(lambda: time.monotonic_ns() // 1000 > lost + 7_000_000, "twice what the watchdog allows is over")
        assert (service.show("ActiveState"), service.show("NRestarts")) == ("active", "0")
        camera.go_on()
        service.control("stop")


def test_a_check_by_hand_as_the_guide_has_it_leaves_nothing_of_root_s(systemd_container: Container) -> None:
    guide = (_EXAMPLES / "README.md").read_text(encoding="utf-8")
    [made], [line] = (re.findall(f"sudo {start}[^&\n]+", guide) for start in ("install -d ", "-u edge-sdk "))
    systemd_container.run(*made.split()[1:])
    _configure(systemd_container, "hall")
    as_sudo = ("runuser", "-u", "edge-sdk", "--", "env", "HOME=/var/lib/edge-sdk")  # sudo is not installed there
    assert "ready: 1 pipeline" in systemd_container.run(*as_sudo, *line.split()[3:])
    assert systemd_container.run("find", "/var/lib/edge-sdk", "!", "-user", "edge-sdk") == ""


def test_the_broker_s_password_is_a_credential(service: Service, systemd_container: Container) -> None:
    broker = f"--mqtt mqtt://user@127.0.0.1:{free_port()} --mqtt-password-file %d/mqtt --trust /srv/test/fleet.key.pub"
    service.configure(f"{_VIDEO} {broker}")
    service.control("start", check=False)
    service.wait_until("ExecMainStatus", "2")  # the unit starts without the file; the program says what is missing
    assert service.said("mqtt: the MQTT password cannot be read")
    systemd_container.write("/etc/credstore/mqtt", "secret\n", mode="600")
    service.configure(f"{_VIDEO} {broker}")
    service.control("start")
    service.wait_until_said("not reachable")
    assert not service.said("secret") + service.said("signature is checked")
    assert "secret" not in systemd_container.run("cat", f"/proc/{service.show('MainPID')}/environ")


def test_what_a_restart_cannot_mend_is_not_restarted(service: Service) -> None:
    service.configure(f"{_RUN} rtsp://user:password@127.0.0.1/live")
    service.control("start", check=False)
    service.wait_until("ActiveState", "failed")
    assert (service.show("ExecMainStatus"), service.show("NRestarts")) == ("2", "0")
    assert [entry.priority for entry in service.said("a password on the command line")] == [3]


def test_what_fails_again_and_again_is_left_alone(service: Service) -> None:
    service.configure(f"{_RUN} /srv/test/none.avi", ["RestartSec=100ms"])
    service.control("start", "--no-block")
    wait_until(lambda: bool(service.said("Start request repeated too quickly")), "the limit of starts is reached")
    service.wait_until("ActiveState", "failed")
    assert service.show("NRestarts") == "10"
    assert len(service.said("none.avi")) == 10


def test_a_reload_takes_a_new_camera_and_keeps_the_others(service: Service, systemd_container: Container) -> None:
    _configure(systemd_container, "front")
    service.configure("run", _NO_RESULTS)  # as it is installed: the file is where it belongs
    service.control("start")
    service.wait_until_said("s after start")
    pid = service.show("MainPID")
    _configure(systemd_container, "front", "yard")
    service.control("reload")
    service.wait_until("StatusText", "2 pipelines: cells runs on pattern:128x128@10, cells runs on pattern:128x128@10")
    service.wait_until("ActiveState", "active")
    assert service.said("configuration read again: new: yard; as before: front")
    assert (service.show("MainPID"), service.show("NRestarts")) == (pid, "0")
    service.control("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")
    assert service.said("yard: stopped by signal")
