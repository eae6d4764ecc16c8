"""Progress: whether every pipeline moves, so that a watchdog is told of work and not of a thread that sleeps well."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import TracebackType


class Beat:
    """One pipeline's count of steps; a context, after which the pipeline is no longer waited for.

    Attributes:
        steps: how many there were; only the pipeline's own thread writes it, so it needs no lock.
    """

    __slots__ = ("_forget", "steps")

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget
        self.steps = 0

    def after_step(self) -> None:
        """One more; a step that no frame came to counts, one that never returns does not."""
        self.steps += 1

    def end(self) -> None:
        """The pipeline is over."""
        self._forget()

    def __enter__(self) -> Beat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


class Progress:
    """Of all pipelines of a process.

    Pipelines begin and end in threads of their own; `is_due` is called from one thread, a few times an interval.

    Args:
        interval_s: seconds between two messages to the watchdog.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._beats: dict[int, Beat] = {}  # one call changes it, and `dict.copy` is one too: neither can be interrupted
        self._numbers = itertools.count()
        self._seen: dict[int, int] = {}
        self._told_s: float | None = None

    def begin(self) -> Beat:
        """A pipeline steps from now on."""
        number = next(self._numbers)
        beat = self._beats[number] = Beat(lambda: self._beats.pop(number, None))
        return beat

    @property
    def is_any(self) -> bool:
        """Whether a pipeline steps."""
        return bool(self._beats)

    def is_due(self, now_s: float) -> bool:
        """Whether the watchdog is to be told now: an interval is over, and in it every pipeline moved.

        Asked again soon after it was not, it says so as soon as the slowest has moved: a machine that was paused, where
        nobody moved, is no hang. Where no pipeline steps there is none that hangs.

        Args:
            now_s: monotonic, seconds.
        """
        if self._told_s is not None and now_s - self._told_s < self._interval_s:
            return False
        beats = self._beats.copy()
        steps = {key: beat.steps for key, beat in beats.items()}
        # One that began since is not compared: it may load its model for as long as the start may take.
        if any(steps[key] == self._seen[key] for key in steps.keys() & self._seen.keys()):
            return False
        self._told_s, self._seen = now_s, steps
        return True
