"""A device: `edge-sdk run` by a configuration file, whose words are heard while it runs.

What a test takes away from it, descriptors for instance, it takes away from this process alone.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from tests.device.configs import write_config
from tests.system.broker import wait_until
from tests.system.program import PATIENCE_S

STOP_S = 30.0
"""Until a program that was told to end is given up: only a guard."""
_ROOT = Path(__file__).parents[2]
_ANSWERS = ("configuration read again", "the configuration is not taken")


def own_folders(folder: Path) -> dict[str, Path]:
    """Variables with which it has its state in `state` and its temporary files in `scratch` of a folder."""
    folders = {"STATE_DIRECTORY": folder / "state", "TMPDIR": folder / "scratch"}
    folders["TMPDIR"].mkdir(exist_ok=True)
    return folders


class Device:
    """A running program; as a context manager it is gone at the end, and where a test fails its words are printed.

    Args:
        config: its configuration file.
        arguments: further ones.
        before: a command that runs it, such as `unshare`.
        environment: further variables.
        stdout: where results go; they are heard by default.
        stderr: where lines for people go; they are heard by default.
    """

    def __init__(
        self,
        config: Path,
        *arguments: str,
        before: Sequence[str] = (),
        environment: Mapping[str, object] | None = None,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self._config = config
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "edge_sdk", "run", "--config", str(config), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **{name: str(value) for name, value in (environment or {}).items()}},
            cwd=_ROOT,
        )
        self._said: list[str] = []
        self._printed: list[str] = []
        self._ears = [
            _ear(file, lines)
            for file, lines in ((self.process.stdout, self._printed), (self.process.stderr, self._said))
            if file is not None
        ]

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not self.is_over:
            self.process.kill()
        self._listen_to_the_end()
        if error is not None:
            sys.stdout.write("".join(f"{line}\n" for line in self.said))

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    @property
    def said(self) -> list[str]:
        """Lines for people so far."""
        return list(self._said)

    @property
    def printed(self) -> list[str]:
        """Lines on standard output so far."""
        return list(self._printed)

    def lines_with(self, *words: str) -> list[str]:
        """Lines for people that hold all of these words."""
        return [line for line in self.said if all(word in line for word in words)]

    def results(self, camera: str) -> list[dict[str, Any]]:
        """Of one stream on standard output so far."""
        decoded = [msgspec.json.decode(line) for line in self.printed]
        return [each for each in decoded if each.get("stream") == "result" and each["camera"] == camera]

    def hear(self, *words: str, count: int = 1) -> str:
        """Wait for so many lines for people that hold all of these words: the last of them."""
        self._wait(lambda: len(self.lines_with(*words)) >= count, f"{count} lines with {' and '.join(words)}")
        return self.lines_with(*words)[count - 1]

    def run_on(self, camera: str, count: int = 5) -> None:
        """Wait for so many more results of a stream on standard output."""
        mark = f'"camera":"{camera}"'  # looked for often: decoding all of them takes the device's processor

        def results() -> int:
            return sum(mark in line for line in self.printed)

        wanted = results() + count
        self._wait(lambda: results() >= wanted, f"{count} more results of {camera}")

    def ask_to_reload(self, text: str | None = None) -> None:
        """Have it read its configuration again, another one where that is given; its answer is not waited for."""
        if text is not None:
            assert write_config(self._config.parent, text) == self._config
        self.process.send_signal(signal.SIGHUP)

    def reload(self, text: str | None = None) -> str:
        """Have it read its configuration again, another one where that is given: the line in which it answers."""
        before = len(self.said)
        self.ask_to_reload(text)

        def answers() -> list[str]:
            return [line for line in self.said[before:] if any(words in line for words in _ANSWERS)]

        self._wait(lambda: bool(answers()), "what it says of reading its configuration again")
        return answers()[0]

    def limit_files(self, soft: int) -> None:
        """How many descriptors it may have; it keeps those that it has."""
        hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (min(soft, hard), hard))

    def threads(self) -> int:
        """How many it has."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/task").iterdir())

    def descriptors(self) -> int:
        """How many files it has open."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for it to end by itself: its exit code."""
        code = self.process.wait(timeout_s)
        self._listen_to_the_end()
        assert not any(ear.is_alive() for ear in self._ears), "a process that it left behind holds its output"
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it as a service manager does: its exit code."""
        self.process.send_signal(number)
        return self.end(STOP_S)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or self.is_over, what)
        if not condition():
            self._listen_to_the_end()
            assert condition(), f"it ended instead of {what}: {self.said}"

    def _listen_to_the_end(self) -> None:
        self.process.wait(STOP_S)
        for ear in self._ears:
            ear.join(STOP_S)


def _ear(file: IO[bytes], lines: list[str]) -> threading.Thread:
    """A thread that puts each whole line into a list."""

    def listen() -> None:
        with file:
            lines.extend(line.decode().rstrip() for line in file)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return thread
