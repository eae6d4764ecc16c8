"""Run jobs through one interface, `Executor`, and carry their outcomes between processes.

The module turns a result or an error into bytes where the job ran, and back on the host. Paths are bytes, because file
names may not be valid text.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

import edge_sdk.core.errors
from edge_sdk.core.errors import EdgeError, typed_line

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")


class RemoteError(Exception):
    """Stands as the cause of an error from another process, whose traceback it holds as text."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one job.

    Attributes:
        result: as MessagePack; None after an error.
        error: class, arguments and attributes of an EdgeError, pickled; None where the job gave a result.
        trace: the error's traceback.
    """

    result: bytes | None
    error: bytes | None = None
    trace: str = ""

    def unwrap(self) -> bytes:
        """The result as MessagePack.

        Raises:
            EdgeError: the job's own, or one line about any other exception.
        """
        if self.error is not None:
            kind, arguments, attributes = pickle.loads(self.error)  # noqa: S301 - of workers, whose results are believed too
            # Not through the constructor: an error's text is made of its arguments only there, once.
            error: EdgeError = kind.__new__(kind)
            error.args = arguments
            error.__dict__.update(attributes)
            raise error from RemoteError(self.trace)
        assert self.result is not None
        return self.result


def outcome_of(function: Callable[[T, S], object], item: T, shared: S, key: str) -> Outcome:
    """Do one job. Only what is meant to end the process (KeyboardInterrupt, SystemExit) leaves this as an exception."""
    try:
        return Outcome(encoded(function(item, shared)))
    except EdgeError as error:
        return _failed(error, error)
    except Exception as error:  # noqa: BLE001 - a job may do anything, and one line has to name its item
        return _failed(EdgeError(f"{key}: {typed_line(error)}"), error)


def encoded(result: object) -> bytes:
    """A result, or what decides one, as MessagePack; arrays only go in."""
    return msgspec.msgpack.encode(result, enc_hook=_encode)


def decoded(data: bytes, kind: type[R]) -> R:
    """Decode what `encoded` made."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_path)


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return os.fsencode(value)
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), value.tobytes()]
    raise NotImplementedError(f"{type(value).__name__} is no result of a job")


def _decode_path(kind: type, value: object) -> object:
    if issubclass(kind, Path) and isinstance(value, bytes):
        return Path(os.fsdecode(value))
    raise NotImplementedError(f"{kind.__name__} is no result of a job")


def _failed(error: EdgeError, cause: Exception) -> Outcome:
    return Outcome(None, _packed(error), "".join(traceback.format_exception(cause)))


def _packed(error: EdgeError) -> bytes:
    attributes = {name: value for name, value in vars(error).items() if not name.startswith("__")}
    try:
        packed = pickle.dumps((type(error), error.args, attributes))
        pickle.loads(packed)  # noqa: S301 - what was just written: some classes only fail on the way back
    except Exception:  # noqa: BLE001 - pickling runs whatever the attributes define
        family = next(kind for kind in type(error).__mro__ if kind.__module__ == edge_sdk.core.errors.__name__)
        return pickle.dumps((family, (str(error),), {}))
    return packed


Outcomes: TypeAlias = Generator[tuple[str, Outcome], None, None]
"""Outcomes under their keys, as they come; closing it cancels the rest."""


class Executor(Protocol):
    """Does jobs, and knows how many threads each may take."""

    @property
    def threads_per_job(self) -> int:
        """How many threads a job may take so that all that run at once share the cores."""
        ...

    @property
    def at_once(self) -> int:
        """The number of jobs that run at once."""
        ...

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do a job an item and yield the outcomes under their keys, as they come; closing it cancels the rest."""
        ...

    def close(self, *, interrupted: bool) -> None:
        """Let the workers go, at once where something went wrong."""
        ...


class SerialExecutor:
    """This process, one job after another."""

    def __init__(self, cores: int) -> None:
        self.threads_per_job = cores
        self.at_once = 1

    def perform(self, function: Callable[[T, S], object], items: Mapping[str, T], shared: S) -> Outcomes:
        """Do the jobs in the items' order."""
        for key, item in items.items():
            yield key, outcome_of(function, item, shared, key)

    def close(self, *, interrupted: bool) -> None:
        """Nothing to let go."""
