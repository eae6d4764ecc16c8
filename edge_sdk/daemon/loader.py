"""Loader: another variant's stages, opened in a thread of its own while the loop goes on.

Owns that thread. ONNX Runtime lets other threads run while it loads a model; what a model held is given back here too,
because that takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

import msgspec

from edge_sdk.errors import EdgeError
from edge_sdk.stages import Stages


class Loaded(msgspec.Struct, frozen=True):
    """What came of a request.

    Attributes:
        variant: which was asked for.
        stages: ready to run; None when it does not load.
        problem: why not, for people.
    """

    variant: str
    stages: Stages | None
    problem: str = ""


class Loader:
    """Opens one variant at a time.

    Args:
        open_stages: the name of a variant -> its stages, loaded and proved.
    """

    def __init__(self, open_stages: Callable[[str], Stages]) -> None:
        self._open_stages = open_stages
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: SimpleQueue[Loaded] = SimpleQueue()
        # A daemon thread: a model that hangs while it loads must not keep the process from ending.
        self._thread = Thread(target=self._run, name="edge-loader", daemon=True)
        self._thread.start()

    def ask(self, variant: str) -> None:
        """Open this variant; `take` has it later."""
        self._jobs.put(lambda: self._done.put(self._open(variant)))

    def take(self) -> Loaded | None:
        """What was asked for and is done, or None."""
        return None if self._done.empty() else self._done.get()

    def give_up(self, stages: list[Stages]) -> None:
        """Give back what these hold, before anything else is opened.

        Args:
            stages: emptied; who calls must keep none of them.
        """
        self._jobs.put(stages.clear)

    def close(self, timeout_s: float) -> None:
        """End the thread once it is done with what it does; one that hangs is left behind."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _open(self, variant: str) -> Loaded:
        try:
            return Loaded(variant, self._open_stages(variant))
        except EdgeError as cause:
            return Loaded(variant, None, str(cause))
        except Exception as cause:  # noqa: BLE001 - out of memory, say: the stream goes on with what it has
            return Loaded(variant, None, f"{type(cause).__name__}: {cause}".splitlines()[0])
