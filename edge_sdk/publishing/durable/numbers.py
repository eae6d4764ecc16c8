"""Numbers: which number a camera's next event bears, over restarts.

Owns the rule that no two events that anybody saw bear the same one. A number is given at once; before an event that
bears it leaves or counts as acknowledged, the disk knows of a bound above it. After a kill the numbers go on from that
bound, or from the clock's microseconds where those are higher: a disk that went back in time, or was replaced, does not
repeat what it forgot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

_AHEAD = 4096  # numbers; more than are ever put while one commit lasts


class Numbers:
    """Of all cameras; not for several threads at once.

    Args:
        wall_s: seconds since 1970, however wrong.

    Attributes:
        following: the next number of each camera that has put something; whoever gives it away adds one.
    """

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self.following: dict[str, int] = {}
        self._bounds: dict[str, int] = {}  # on disk: no number from here on was given before
        self._first: dict[str, int] = {}  # of cameras that have put nothing yet

    def first(self, camera: str) -> int:
        """The number to begin with, of a camera that is not in `following`."""
        first = self._first.get(camera)
        return self._at_least(0) if first is None else first

    def restore(self, bounds: Mapping[str, int], *, is_orderly: bool) -> None:
        """Take what the disk knows, and nothing else.

        Args:
            bounds: by camera.
            is_orderly: whether the last process that wrote them had ended by itself, so that they are exact.
        """
        self._bounds = dict(bounds)
        for camera, bound in bounds.items():
            first = bound if is_orderly else self._at_least(bound)
            self._first[camera] = max(first, self._first.get(camera, 0))
            if camera in self.following:
                self.following[camera] = max(self.following[camera], bound)

    def due(self) -> dict[str, int]:
        """Bounds that the disk must know with the next commit, by camera."""
        return {
            camera: number + _AHEAD
            for camera, number in self.following.items()
            if number + _AHEAD // 2 > self._bounds.get(camera, 0)
        }

    def kept(self, bounds: Mapping[str, int]) -> None:
        """The disk knows these bounds."""
        self._bounds.update(bounds)

    def final(self) -> dict[str, int]:
        """The exact next numbers, for an orderly end."""
        return {**self._first, **self.following}

    def _at_least(self, bound: int) -> int:
        return max(bound, int(self._wall_s() * 1_000_000))
