"""Container: a system with a systemd of its own as process 1, in which this checkout is installed.

Its root is read from the cache and written to memory alone. The network is this machine's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from tests.system.systemd.debian_root import CannotRunError

PATIENCE_S = 60
"""Until something that takes a second is given up: only a guard."""

CHECKOUT = Path(__file__).parents[3]
_POWER_OFF = signal.SIGRTMIN + 4  # systemd(1)
_BIN = "/opt/edge-sdk/bin"
_DOUBLES = "/opt/doubles"


class Container:
    """A context in which the system runs.

    Args:
        root: of a system; it stays as it is.
        shared: a folder of this machine that is /srv/test there.
    """

    def __init__(self, root: Path, shared: Path) -> None:
        self._root, self._shared = root, shared
        self._process: subprocess.Popen[str] | None = None
        self._leader = 0

    def __enter__(self) -> Container:
        probe = subprocess.run([*self._command(), "/bin/true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            raise CannotRunError(f"systemd-nspawn cannot start a container here: {probe.stderr.strip()[-500:]}")
        self._process = subprocess.Popen(
            [*self._command(), "--console=pipe", "--boot"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for(self._is_up, "the container's systemd is up")
            self._install()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self.write(f"{_DOUBLES}/sitecustomize.py", (Path(__file__).parent / "hanging.py").read_text())
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


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so.

    Raises:
        AssertionError: it did not become so.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {PATIENCE_S} s: {what}")
        time.sleep(0.1)


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
