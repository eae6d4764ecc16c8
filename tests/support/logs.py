"""Lines that the device's modules log, as people see them but for the program's name; each test begins with none."""

from __future__ import annotations

import logging

from edge_sdk.core.logs import line_of, name_cameras

SAID: list[str] = []


class _Recorder(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        SAID.append(line_of(record))
        return True


def begin_recording() -> None:
    """Record from now on, once a process."""
    log = logging.getLogger("edge_sdk")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _Recorder) for handler in log.handlers):
        log.addHandler(_Recorder())


def forget() -> None:
    SAID.clear()
    name_cameras(wanted=False)
