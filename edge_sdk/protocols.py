"""What a camera, a stage and a publisher must be able to do; bring your own by having these methods."""

from __future__ import annotations

from typing import Protocol, TypeVar

from edge_sdk.event import Event
from edge_sdk.frame import Frame, Result

Value = TypeVar("Value", contravariant=True)
NextValue = TypeVar("NextValue", covariant=True)


class Source(Protocol):
    """Delivers the freshest frame."""

    @property
    def ended(self) -> bool:
        """True once no frame will come any more (end of a file). A camera never ends."""
        ...

    def latest(self, timeout_s: float) -> Frame | None:
        """The newest frame not delivered yet, or None when none came within `timeout_s` seconds."""
        ...

    def close(self) -> None:
        """Give everything back; may be called twice."""
        ...


class Stage(Protocol[Value, NextValue]):
    """One step of the loop: prepare, session, task."""

    def __call__(self, value: Value, /) -> NextValue:
        """Turn one value into the next."""
        ...


class Sink(Protocol):
    """Takes results."""

    def put(self, result: Result, /) -> None:
        """Take one result. Never blocks, never raises for a network's sake."""
        ...


class EventSink(Protocol):
    """Takes events; what takes results too is a `Sink` as well."""

    def put(self, event: Event, /) -> None:
        """Take one event. Never blocks, never raises for a network's sake."""
        ...
