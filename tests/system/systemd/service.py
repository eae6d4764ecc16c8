"""Service: the unit of the examples in a container, with the command line that a test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from tests.system.systemd.container import Container, wait_for

_UNIT = "edge-sdk.service"
_DROP_IN = f"/run/systemd/system/{_UNIT}.d/test.conf"


class Entry(NamedTuple):
    """One line of the journal."""

    message: str
    priority: int
    identifier: str
    monotonic_us: int


class Service:
    """The unit.

    Args:
        container: in which it is installed.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._since = ""

    def configure(self, arguments: str, settings: Sequence[str] = ()) -> None:
        """Stop it, and have it run `edge-sdk ARGUMENTS` from now on; all else is as in the examples.

        Args:
            arguments: of the program.
            settings: further lines of [Service].
        """
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
        wait_for(lambda: len(self.said(words)) >= times, f"{words!r} in the journal: {self.journal()}")

    def wait_until(self, name: str, value: str) -> None:
        """Wait for a property."""
        wait_for(lambda: self.show(name) == value, f"{name}={value}; {self.journal()}")
