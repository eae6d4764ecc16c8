"""RunSummary: what a run came to."""

from __future__ import annotations

import msgspec

from edge_sdk.camera import SourceStats
from edge_sdk.percentiles import Percentiles
from edge_sdk.publishing import LinesStats, PublisherStats, StreamStats


class RunSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="stream", tag="summary"):
    """What a run came to; as JSON its `stream` is `summary`, where results have `result`.

    Attributes:
        camera: of which stream.
        results: delivered to the outbox, in time or late.
        late: of them, beyond the budget.
        stale: frames dropped before inference because they could not make it any more.
        hung: frames whose run came to no end and was ended.
        not_finite: of the results, those of outputs that were NaN or infinite.
        skipped: frames left out on purpose, where only every n-th runs.
        budget_ms: capture to outbox; None where it was stopped before there was a model, and no budget was given.
        age, serial, inference: of the last 4096 results; None without a result. Capture to outbox; of that what the
            loop took, from taking the frame; of that the bare run.
        fps: results a second, from the first to the last.
        source: its own counts.
        delivery: what became of this stream's results; None where it never ran.
        publisher: what became of those of all streams; None without a broker.
        lines: the same of standard output; None with a broker.
        ended_by: `end of source`, `signal`, `frames`, `duration` or, of a stream beside others, `failure`.
    """

    camera: str
    results: int
    late: int
    stale: int
    hung: int
    not_finite: int
    skipped: int
    budget_ms: float | None
    age: Percentiles | None
    serial: Percentiles | None
    inference: Percentiles | None
    fps: float
    source: SourceStats
    delivery: StreamStats | None
    publisher: PublisherStats | None
    lines: LinesStats | None
    ended_by: str

    @classmethod
    def of_nothing(
        cls,
        camera: str,
        ended_by: str,
        budget_ms: float | None,
        of_all: PublisherStats | LinesStats | None = None,
    ) -> RunSummary:
        """That of a run which ended before there was a model.

        Args:
            camera: of which stream.
            ended_by: why.
            budget_ms: that was given.
            of_all: what became of the results of all streams.
        """
        return cls(
            camera=camera,
            results=0,
            late=0,
            stale=0,
            hung=0,
            not_finite=0,
            skipped=0,
            budget_ms=budget_ms,
            age=None,
            serial=None,
            inference=None,
            fps=0.0,
            source=SourceStats(),
            delivery=None,
            publisher=of_all if isinstance(of_all, PublisherStats) else None,
            lines=of_all if isinstance(of_all, LinesStats) else None,
            ended_by=ended_by,
        )
