"""Plan: what is measured here for one bundle, for how long, and what is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edge_sdk.bundle import Bundle
from edge_sdk.cores import Cores
from edge_sdk.quality import Rating, ratings
from edge_sdk.tuning.candidate import Candidate, Measurement
from edge_sdk.tuning.choice import Limits
from edge_sdk.tuning.search import Search, Space, chain_tails, thread_counts
from edge_sdk.tuning.tuned import Tuned
from edge_sdk.tuning.window import Pace

SECONDS = 20.0
"""How long a run tunes by default."""

_CANDIDATES = 12  # about so many fit into the time; the window gets longer when there is more of it


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan.

    Attributes:
        promised: what the bundle runs by default, on the providers that are here.
        metric: what quality is.
        ratings: of the variants that may run, by name.
        providers: the promised ones that this ONNX Runtime has.
        limits: what has to be kept.
        cores: the cores here.
        pace: how long one candidate is looked at.
        seconds: for all of them.
    """

    promised: Candidate
    metric: str
    ratings: dict[str, Rating]
    providers: tuple[str, ...]
    limits: Limits
    cores: Cores
    pace: Pace
    seconds: float

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        limits: Limits,
        *,
        only_first: bool,
        providers: Sequence[str],
        fps: float,
        seconds: float | None,
        cores: Cores,
    ) -> Plan:
        """Plan for a bundle.

        Args:
            bundle: as it was opened; its first variant is the promised one.
            limits: what has to be kept.
            only_first: whether no other variant than the promised one may run.
            providers: those that a session got here, in order of preference.
            fps: of the camera.
            seconds: for all candidates; choosing and loading the chosen one comes on top. None: 20, and more for a
                camera that is so slow that not every variant could be looked at in them.
            cores: the cores here.
        """
        metric, by_name = ratings(bundle.manifest)
        promised = msgspec.structs.replace(Candidate.promised(bundle.manifest), providers=tuple(providers))
        rated = {promised.variant: by_name[promised.variant]} if only_first else by_name
        pace = Pace(budget_ms=limits.budget_ms, fps=fps, window_s=(seconds or SECONDS) / _CANDIDATES)
        return cls(
            promised=promised,
            metric=metric,
            ratings=rated,
            providers=promised.providers,
            limits=limits,
            cores=cores,
            pace=pace,
            seconds=seconds or max(SECONDS, (len(rated) + len(thread_counts(cores))) * pace.expected_s),
        )

    @property
    def promise(self) -> Candidate:
        """What runs without tuning; a core is left to camera and broker."""
        return self.promised.within(self.cores)

    def search(self) -> Search:
        """What is tried after what."""
        return Search(
            Space(self.promise, self.ratings, thread_counts(self.cores), chain_tails(self.providers)), self.limits
        )

    def on(self, cores: Cores) -> Plan:
        """The same with other cores."""
        return msgspec.structs.replace(self, cores=cores)

    def conclude(
        self, measured: Sequence[Measurement], seconds: float, others: float | None, untried: Sequence[str]
    ) -> Tuned:
        """What one or more measurements come to.

        Args:
            measured: in that order.
            seconds: that they took.
            others: the share of the processors' time that other programs took meanwhile.
            untried: variants that may be better and for which there was no time.
        """
        return Tuned.of(
            measured,
            self.promise,
            self.limits,
            metric=self.metric,
            providers=self.providers,
            fps=self.pace.fps,
            seconds=seconds,
            others=others,
            untried=untried,
        )
