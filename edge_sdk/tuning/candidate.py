"""Candidate: one model of a bundle with one way of running it, and the measurement that tells it from others."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edge_sdk.cores import Cores
from edge_sdk.manifest import Manifest
from edge_sdk.quality import Rating
from edge_sdk.session import SessionSettings

_Threads = Annotated[int, Meta(ge=1, le=256)]
_NonNegative = Annotated[float, Meta(ge=0)]


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may run.

    Only what makes a difference in speed: a record of it is read from a disk, and must not name files to write.

    Attributes:
        variant: name of the bundle's model.
        providers: execution providers in order of preference.
        intra_op_num_threads: threads inside one operator.
        inter_op_num_threads: parts of the graph that run at once, where providers share it.
        allow_spinning: whether threads spin while they wait for each other within a run.
        arena: whether freed memory of tensors is kept for the next ones.
    """

    variant: str
    providers: tuple[str, ...]
    intra_op_num_threads: _Threads
    inter_op_num_threads: _Threads = 1
    allow_spinning: bool = False
    arena: bool = True

    @classmethod
    def promised(cls, manifest: Manifest) -> Candidate:
        """What the bundle promises by default: its first variant, run as its target likes it."""
        return cls(
            variant=manifest.variants[0].name,
            providers=manifest.providers,
            intra_op_num_threads=manifest.intra_op_num_threads,
            allow_spinning=manifest.allow_spinning,
        )

    def within(self, cores: Cores) -> Candidate:
        """The same, but with no more threads than are for the model where there are more than two cores."""
        if cores.usable <= 2:
            return self
        return msgspec.structs.replace(self, intra_op_num_threads=min(self.intra_op_num_threads, cores.for_model))

    def settings(self, base: SessionSettings) -> SessionSettings:
        """How the session is opened; what a candidate does not say is as in `base`."""
        return msgspec.structs.replace(
            base,
            providers=self.providers,
            intra_op_num_threads=self.intra_op_num_threads,
            allow_spinning=self.allow_spinning,
            inter_op_num_threads=self.inter_op_num_threads,
            arena=self.arena,
        )

    def __str__(self) -> str:
        """For people: `int8, 2 threads, spinning`."""
        threads = self.intra_op_num_threads
        words = [self.variant, f"{threads} thread{'s' if threads > 1 else ''}"]
        if self.allow_spinning and threads > 1:
            words.append("spinning")
        if self.inter_op_num_threads > 1:
            words.append(f"{self.inter_op_num_threads} branches at once")
        if not self.arena:
            words.append("no arena")
        if self.providers and self.providers[0] != "CPUExecutionProvider":
            words.append(self.providers[0].removesuffix("ExecutionProvider"))
        return ", ".join(words)


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a candidate did, on frames that came at the camera's pace.

    Attributes:
        candidate: what ran.
        quality: as the bundle promises it, 0-1; None where nobody measured it.
        like_reference: whether the build's images do not tell that apart from the reference's.
        p50_ms, p99_ms: prepare + run + decode. Of some fifty frames the p99 is all but the slowest.
        cpu_share: the process's CPU time over the time that passed: 1 is one core.
        frames: how many were measured.
        given_up: whether it was left early, because it could not keep the budget any more.
    """

    candidate: Candidate
    quality: float | None
    p50_ms: _NonNegative
    p99_ms: _NonNegative
    cpu_share: _NonNegative
    frames: Annotated[int, Meta(ge=1)]
    given_up: bool = False
    like_reference: bool = False

    @property
    def rating(self) -> Rating:
        """What the bundle says of the variant."""
        return Rating(self.quality, self.like_reference)
