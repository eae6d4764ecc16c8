"""Board: runs Python programs as a device would, on an emulated core or, on an arm64 machine, on its own."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_sdk_tools.arm_cost.core import Core
from tests.system.arm64.sysroot import MissingPartError

_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
_WHO = "import json, platform; print(json.dumps([platform.python_version(), platform.machine()]))"


def is_native() -> bool:
    """Whether this machine is an arm64 one and needs no emulator."""
    return platform.machine() == "aarch64"


def find_emulator() -> str:
    """The path of qemu's user emulator.

    Raises:
        MissingPartError: it is not installed.
    """
    found = next((path for name in _EMULATORS if (path := shutil.which(name))), None)
    if found is None:
        raise MissingPartError("no qemu-aarch64-static, expected Debian's package qemu-user-static")
    return found


@dataclass(frozen=True)
class Board:
    """A Python interpreter on arm64.

    Attributes:
        name: what to call it in reports.
        interpreter: the command that starts Python.
        environment: all of the environment its programs see.
    """

    name: str
    interpreter: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})

    @classmethod
    def emulated(cls, core: Core, root: Path) -> Board:
        """A board whose CPU is `core` and whose system lies in `root`."""
        emulator = (find_emulator(), "-cpu", core.model, "-L", str(root))
        return cls(core.model, (*emulator, str(root / "usr/bin/python3")))

    @classmethod
    def native(cls) -> Board:
        """This machine, without what the tests' own Python has installed."""
        return cls(platform.machine(), (sys.executable, "-S"))

    def with_install(self, site: Path) -> Board:
        """The same board with the packages of `site`; their bytecode is kept beside it, being slow to make."""
        paths = {"PYTHONPATH": str(site), "PYTHONPYCACHEPREFIX": str(site.parent / "compiled")}
        return replace(self, environment={**self.environment, **paths})

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run Python with `arguments` to its end, in `/`: in the checkout, `-m` would take the packages from there."""
        return subprocess.run(
            [*self.interpreter, *arguments],
            env=dict(self.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def identify(self) -> tuple[str, str]:
        """Its Python's version and its machine, as programs there see them: ("3.11.2", "aarch64")."""
        done = self.run("-c", _WHO)
        if done.returncode:
            raise RuntimeError(f"Python does not start on {self.name}: {done.stderr.strip()}")
        version, machine = json.loads(done.stdout)
        return version, machine
