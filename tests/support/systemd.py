"""A Debian with a systemd of its own in a container, edge-sdk installed there, and its service."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from edge_sdk_tools.packages import cache_folder
from tests.support.absent import not_allowed, not_installed
from tests.support.broker import find_program, wait_until
from tests.support.cache import Cache
from tests.support.program import edge_sdk

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
    mirror = next(_mirrors(release), None)
    if mirror is None:
        not_allowed(f"no server in {_APT} has {release}")
    recipe = (release.encode(), " ".join(_PACKAGES).encode(), Path(__file__).read_bytes())
    return Cache(cache_folder() / "systemd").folder_of("root", recipe, lambda fresh: _fill(fresh, release, mirror))


def _fill(folder: Path, release: str, mirror: str) -> None:
    program = find_program("debootstrap")
    # What it mounts goes with it, however it ends.
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            str(program),
            "--variant=minbase",
            f"--include={','.join(_PACKAGES)}",
            release,
            str(folder),
            mirror,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        not_allowed(f"debootstrap could not make a system: {(done.stdout + done.stderr)[-500:]}")
    shutil.rmtree(folder / "var/cache/apt/archives", ignore_errors=True)


def _mirrors(release: str) -> Iterator[str]:
    """Servers of the release, as apt has them, in both of its formats."""
    for path in sorted(_APT.glob("sources.list.d/*.sources")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            fields = dict(line.split(":", 1) for line in paragraph.splitlines() if ":" in line and line[:1] not in " #")
            if release in fields.get("Suites", "").split() and "main" in fields.get("Components", "").split():
                yield fields["URIs"].split()[0]
    for path in (_APT / "sources.list", *sorted(_APT.glob("sources.list.d/*.list"))):
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            kind, *words = line.partition("]")[2].split() if "[" in line else line.split() or [""]
            words = words if "[" not in line else [kind, *words]
            if line.startswith("deb ") and len(words) > 2 and words[1] == release and "main" in words[2:]:
                yield words[0]


# Container: a system with a systemd of its own as process 1, in which this checkout is installed.

PATIENCE_S = 60
"""Until something that takes a second is given up: only a guard."""

CHECKOUT = Path(__file__).parents[2]
_POWER_OFF = signal.SIGRTMIN + 4  # systemd(1)
_BIN = "/opt/edge-sdk/bin"
_DOUBLES = "/opt/doubles"
_HANGING = """\
import signal
import time


def _hang(*_arguments: object) -> None:
    from edge_sdk.loop import Loop

    def step_that_never_ends(_loop: Loop, _timeout_s: float = 0) -> None:
        time.sleep(1e6)

    Loop.step = step_that_never_ends  # type: ignore[assignment, method-assign]


signal.signal(signal.SIGUSR1, _hang)
"""
"""At SIGUSR1 a pipeline's next step never ends, while every other thread of the program goes on."""


class Container:
    """A context in which the system runs."""

    def __init__(self, root: Path, shared: Path) -> None:
        self._root, self._shared = root, shared
        self._process: subprocess.Popen[str] | None = None
        self._leader = 0

    def __enter__(self) -> Container:
        probe = subprocess.run([*self._command(), "/bin/true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            not_allowed(f"systemd-nspawn cannot start a container here: {probe.stderr.strip()[-500:]}")
        self._process = subprocess.Popen(
            [*self._command(), "--console=pipe", "--boot"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
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
            ["nsenter", "-t", str(self._leader), "-a", "--", *command],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file there; its folder is made."""
        self.run("install", "-D", "-m", mode, "/dev/stdin", path, given=text)

    def _command(self) -> list[str]:
        bound = {CHECKOUT: "/opt/edge-sdk/checkout", self._shared: "/srv/test", **_python_folders()}
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
        if process is None or process.poll() is not None:
            raise AssertionError(f"the container ended: {process.communicate()[1] if process else ''}")
        self._leader = self._leader or _child_of(process.pid)
        if not self._leader:
            return False
        return self.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._leader:
                os.kill(self._leader, _POWER_OFF)
        try:
            process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _child_of(parent: int) -> int:
    """The container's first process, once it is systemd; 0 until then."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            if name == "systemd" and int(rest.split()[1]) == parent:
                return int(path.parent.name)
    return 0


def _python_folders() -> Mapping[Path, str]:
    """This Python and its packages; that of Debian is there already, in the same release."""
    packages = {Path(sysconfig.get_path("platlib")): "/opt/edge-sdk/packages"}
    return packages if sys.base_prefix == "/usr" else {Path(sys.base_prefix): "/opt/python", **packages}


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
    """One line of the journal."""

    message: str
    priority: int
    identifier: str
    monotonic_us: int


class Service:
    """The unit."""

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
        """`systemctl VERB`."""
        self._container.run("systemctl", *options, verb, _UNIT, check=check)

    def show(self, name: str) -> str:
        """One of its properties."""
        return self._container.run("systemctl", "show", "--value", f"--property={name}", _UNIT)

    def send(self, signal: str) -> None:
        """A signal to its main process."""
        self._container.run("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", _UNIT)

    def journal(self) -> list[Entry]:
        """What was said since it was configured, by the program and about it."""
        after = [f"--after-cursor={self._since}"] if self._since else []
        lines = self._container.run("journalctl", "-q", "-o", "json", "-u", _UNIT, *after).splitlines()
        return [
            Entry(
                str(entry["MESSAGE"]),
                int(entry["PRIORITY"]),
                entry["SYSLOG_IDENTIFIER"],
                int(entry["__MONOTONIC_TIMESTAMP"]),
            )
            for entry in map(json.loads, lines)
        ]

    def said(self, words: str) -> list[Entry]:
        """The lines with these words."""
        return [entry for entry in self.journal() if words in entry.message]

    def wait_until_said(self, words: str, times: int = 1) -> None:
        """Wait for lines with these words."""
        wait_until(lambda: len(self.said(words)) >= times, f"{words!r} in the journal: {self.journal()}")

    def wait_until(self, name: str, value: str) -> None:
        """Wait for a property."""
        wait_until(lambda: self.show(name) == value, f"{name}={value}; {self.journal()}")


# What tests under a real systemd share: one system with edge-sdk in it, and its service.


@pytest.fixture(scope="session")
def systemd_container(
    cell_bundle: Path, long_video: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """One system for all tests here."""
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
    """The unit, which no test leaves running."""
    service = Service(systemd_container)
    yield service
    service.control("stop")
