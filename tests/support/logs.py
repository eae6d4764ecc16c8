"""What people see: lines that the device's modules log, but for the program's name, and refusals.

Each test begins with no lines.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from edge_sdk.core.logs import line_of, name_cameras

SAID: list[str] = []


class _Recorder(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        SAID.append(line_of(record))
        return True


def begin_recording() -> None:
    log = logging.getLogger("edge_sdk")
    log.setLevel(logging.INFO)
    if not any(isinstance(handler, _Recorder) for handler in log.handlers):
        log.addHandler(_Recorder())


def forget() -> None:
    SAID.clear()
    name_cameras(wanted=False)


def refusal(kind: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """The one line in which a call is refused."""
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)
