"""What a source says of itself: its status and its counts, as values that the daemon logs and publishes."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import msgspec

from edge_sdk.protocols import Source


class SourceStatus(Enum):
    """Where a source stands.

    OPENING is a camera that was waited for and never came yet, LOST one that delivered before.
    """

    OPENING = "opening"
    OPENED = "opened"
    LOST = "lost"
    REOPENED = "reopened"
    ENDED = "ended"

    @property
    def is_there(self) -> bool:
        """Whether frames come."""
        return self in (SourceStatus.OPENED, SourceStatus.REOPENED)


class SourceStats(msgspec.Struct, frozen=True, gc=False):
    """Counts since the source was opened.

    Attributes:
        delivered: frames that `latest()` handed out.
        dropped: frames that nobody took before a newer one came, that a late video file skipped, or that a stream had
            kept while it opened.
        reopenings: how often a lost camera delivered again.
        unreadable: images, or frames of a camera, that could not be decoded; for a video file the frames that its
            header promises and that are not there.
    """

    delivered: int = 0
    dropped: int = 0
    reopenings: int = 0
    unreadable: int = 0


class OpenedSource(Source, Protocol):
    """A `Source` that counts and says where it stands; what `open_source` returns."""

    @property
    def fps(self) -> float:
        """Frames a second that the source promises; 25 where it says nothing sensible, 1 for images.

        Of a camera that gives clearly more or fewer it is what fifty frames came to, once they did.
        """
        ...

    @property
    def paced(self) -> bool:
        """Whether frames come at their own pace, so that a slow reader misses some; False: in turn, when asked for."""
        ...

    @property
    def stats(self) -> SourceStats:
        """Counts so far."""
        ...

    @property
    def status(self) -> SourceStatus:
        """Where it stands now; a short loss shows in `stats.reopenings` even when nobody looked in time."""
        ...

    @property
    def trouble(self) -> str:
        """Why it is lost, or not there yet: a few words without a secret; empty when all is well."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was asked of a camera and not got, a line each."""
        ...
