"""Who talks to a broker by paho's own client, and its thread, as the tests' subscribers do."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

import paho.mqtt.client as mqtt

_Self = TypeVar("_Self", bound="PahoUser")


class PahoUser:
    """As a context manager it is gone at the end."""

    _client: mqtt.Client

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()
