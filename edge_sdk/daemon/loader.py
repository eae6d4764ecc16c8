"""Loader: another variant's stages, opened in a thread of its own while the loop goes on.

Owns that thread, and another one where a model hangs it. ONNX Runtime lets other threads run while it loads a model;
what a model held is given back here too, because that takes milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

import msgspec

from edge_sdk.errors import NoRoomError, StoppedError
from edge_sdk.failure import failure_line
from edge_sdk.left_behind import join_or_leave
from edge_sdk.stages import Stages
from edge_sdk.want_of_memory import is_want_of_memory

LIMIT_S = 20.0
"""A board thirty times as slow as a busy workstation loads and proves YOLOv8n in that; a stream waits for it."""

_LONGEST_LOOK_S = 1.0  # between two looks: more is a process that was stopped, and no load hangs for that

_Job: TypeAlias = Callable[[], None]


class Loaded(msgspec.Struct, frozen=True):
    """What came of a request.

    Attributes:
        variant: which was asked for.
        stages: ready to run; None when it does not load.
        problem: why not, for people.
        is_for_now: whether it may load later, when memory is free.
    """

    variant: str
    stages: Stages | None
    problem: str = ""
    is_for_now: bool = False


class _Worker:
    """A thread that does one job after the other.

    Attributes:
        done: what was loaded.
        is_loading: whether a model is.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.done: SimpleQueue[Loaded] = SimpleQueue()
        self.is_loading = False
        # A daemon thread: a model that hangs while it loads must not keep the process from ending.
        self._thread = Thread(target=self._run, name="edge-loader", daemon=True)
        self._thread.start()

    def put(self, job: _Job | None) -> None:
        """Do this last; None: end there."""
        self._jobs.put(job)

    def waiting(self) -> list[_Job]:
        """What was not begun, which is not done any more."""
        jobs = list[_Job]()
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return jobs
            if job is not None:
                jobs.append(job)

    def join(self, timeout_s: float) -> None:
        join_or_leave(self._thread, timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class Loader:
    """Opens one variant at a time.

    Args:
        open_stages: the name of a variant -> its stages, loaded and proved.
        prepare: what comes before it and ends by itself, as a trial does; its time does not count.
        limit_s: seconds after which a load is given up.
    """

    def __init__(
        self,
        open_stages: Callable[[str], Stages],
        prepare: Callable[[str], None] = lambda _variant: None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._open_stages, self._prepare, self._limit_s = open_stages, prepare, limit_s
        self._worker = _Worker()
        self._asked = ""
        self._looked_s = self._busy_s = 0.0

    def ask(self, variant: str) -> None:
        """Open this variant; `take` has it later."""
        self._asked, self._busy_s = variant, 0.0
        worker = self._worker
        worker.put(lambda: self._open(worker, variant))

    def take(self) -> Loaded | None:
        """What was asked for and is done, or None; to be asked after every frame, as long as it is under way."""
        worker = self._worker
        if not worker.done.empty():
            return worker.done.get()
        now_s = time.monotonic()
        if worker.is_loading:
            self._busy_s += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._abandon() if self._busy_s >= self._limit_s else None

    def give_up(self, stages: list[Stages]) -> None:
        """Give back what these hold, before anything else is opened.

        Args:
            stages: emptied; who calls must keep none of them.
        """
        self._worker.put(stages.clear)

    def close(self, timeout_s: float) -> None:
        """End the thread once it is done with what it does; one that hangs is left behind."""
        self._worker.put(None)
        self._worker.join(timeout_s)

    def _abandon(self) -> Loaded:
        """Leave the thread to its model; nobody takes what it may still come to."""
        hung, self._worker, self._busy_s = self._worker, _Worker(), 0.0
        for job in hung.waiting():
            self._worker.put(job)
        hung.put(None)
        hung.join(0)
        return Loaded(self._asked, None, f"its model was not loaded after {self._limit_s:g} s and is given up")

    def _open(self, worker: _Worker, variant: str) -> None:
        try:
            worker.done.put(self._loaded(worker, variant))
        except StoppedError:
            return  # nothing is wrong, and nobody takes a model any more
        finally:
            worker.is_loading = False

    def _loaded(self, worker: _Worker, variant: str) -> Loaded:
        try:
            self._prepare(variant)
            worker.is_loading = True
            return Loaded(variant, self._open_stages(variant))
        except StoppedError:
            raise
        except Exception as cause:  # noqa: BLE001 - the stream goes on with what it has
            is_for_now = isinstance(cause, NoRoomError) or is_want_of_memory(cause)
            return Loaded(variant, None, failure_line(cause), is_for_now=is_for_now)
