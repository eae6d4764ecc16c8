"""The wall clock of one program, put forward and back while it runs; its monotonic clocks are the machine's.

A library that is loaded before the others does it: the machine's own clock is everybody's. libfaketime would be that
library, but as Debian has it (0.9.10) a monotonic sleep fails under it.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from tests.system.broker import require_program


class WallClock:
    """Of the programs that get its `environment`.

    Args:
        folder: for the library, and the file that says what time it is.
        off: by which it begins to be wrong.
    """

    def __init__(self, folder: Path, off: timedelta) -> None:
        self._library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([require_program("cc"), "-shared", "-fPIC", "-o", self._library, source], check=True)
        self._file.write_bytes(bytes(8))
        self.leap(off)

    @property
    def environment(self) -> Mapping[str, object]:
        """Variables of a program that has this clock."""
        return {"LD_PRELOAD": self._library, "WALL_CLOCK_FILE": self._file}

    def leap(self, off: timedelta) -> None:
        """From now on it is wrong by so much."""
        with self._file.open("r+b") as file:  # in place: the programs have it mapped
            file.write(struct.pack("=q", round(off.total_seconds())))
