"""SelfTuning: what a run does about tuning: use what is remembered, or find it out while results go out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.errors import StoppedError
from edge_sdk.location import Kind, kind_of
from edge_sdk.session import SessionCache, SessionSettings, Shortfalls
from edge_sdk.stages import Stages
from edge_sdk.trial import prove_here
from edge_sdk.tuning import Candidate, Limits, LiveTuner, Tuned, Tuning

if TYPE_CHECKING:  # it brings OpenCV, which is loaded beside the model
    from edge_sdk.camera import OpenedSource

_BESIDE_TRIAL_S = 60.0  # half for a trial's process to start, half to load here what it found sound


class SelfTuning:
    """Tuning of one run.

    Args:
        settings: of the run.
        bundle: verified; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        limits: what has to be kept.
        say: takes one line for people.
        is_stopped: asked while a model is tried.
        cache: of models that other streams of this process have loaded.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        bundle: Bundle,
        session: SessionSettings,
        limits: Limits,
        say: Callable[[str], None],
        is_stopped: Callable[[], bool],
        cache: SessionCache | None = None,
    ) -> None:
        self._cache = cache
        self._bundle, self._session, self._say, self._is_stopped = bundle, session, say, is_stopped
        self._is_live = self._is_over = False
        self._tried: set[str] = set()
        self._is_fixed = settings.variant is not None
        self._trial_s = settings.trial_s
        self._shortfalls = Shortfalls(say)
        self._tuning: Tuning | None = None
        # Images have no pace, and their results must not depend on what else ran here.
        is_paced = kind_of(settings.source) is not Kind.IMAGES and not settings.every_frame
        if settings.tune and is_paced:
            self._tuning = Tuning(
                bundle,
                limits,
                camera=settings.camera,
                variant=settings.variant,
                say=say,
                open_stages=self._open_candidate,
            )

    @property
    def tuned(self) -> Tuned | None:
        """What is known of this bundle here."""
        return self._tuning.tuned if self._tuning else None

    def open(self) -> Stages:
        """What shall run first, loaded and proved.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        if self._tuning is not None:
            return self._tuning.open()
        return self._opened(self._bundle, self._session)

    def candidate_of(self, variant: str) -> Candidate:
        """One of the bundle's models with the settings that are best for it, as far as they are known."""
        if self._tuning is not None:
            return self._tuning.candidate_of(variant)
        return msgspec.structs.replace(Candidate.promised(self._bundle.manifest), variant=variant)

    def open_variant(self, variant: str, threads: int | None = None) -> Stages:
        """The stages of `candidate_of`.

        Args:
            variant: its name.
            threads: inside one operator, in place of the candidate's.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
            StoppedError: the run was told to stop first.
        """
        if threads is None and self._tuning is not None:
            return self._tuning.open_variant(variant)
        candidate = self.candidate_of(variant)
        if threads is not None:
            candidate = msgspec.structs.replace(candidate, intra_op_num_threads=threads)
        return self._open_candidate(self._bundle, candidate)

    def _open_candidate(self, bundle: Bundle, candidate: Candidate) -> Stages:
        return self._opened(bundle.led_by(candidate.variant), candidate.settings(self._session))

    def _opened(self, bundle: Bundle, settings: SessionSettings) -> Stages:
        stages = Stages.open(self._proved(bundle), settings, cache=self._cache, most_golden=1)
        self._shortfalls.tell(stages.variant, stages.session.providers)
        return stages

    def _proved(self, bundle: Bundle) -> Bundle:
        """Another variant than the first is tried in a process of its own too, once; threads change nothing there."""
        variant = bundle.manifest.variants[0]
        if variant != self._bundle.manifest.variants[0] and variant.name not in self._tried:
            is_proved = prove_here(
                bundle,
                settings=self._session,
                seconds=self._trial_s,
                say=self._say,
                is_stopped=lambda: self._is_over or self._is_stopped(),
                beside=self._is_live,
            )
            if not is_proved:
                raise StoppedError
            self._tried.add(variant.name)
        return bundle

    def prove(self, variant: str) -> None:
        """Try one of the bundle's models in a process of its own, if it needs to be; ends within the trial's limits.

        Raises:
            EdgeError: it must not be loaded here.
            StoppedError: the run was told to stop first.
        """
        self._proved(self._bundle.led_by(variant))

    def go_live(self) -> None:
        """Frames run from now on: what is tried gives way to them."""
        self._is_live = True

    def end(self) -> None:
        """The run is over: what is still tried is given up."""
        self._is_over = True

    def supervisor(
        self,
        home: Stages,
        source: OpenedSource,
        on_variant: Callable[[str], None] = lambda _variant: None,
    ) -> LiveTuner | None:
        """What tunes while it runs; None where that is known, or not wanted.

        Args:
            home: what `open` or `open_variant` gave.
            source: that the loop reads.
            on_variant: called with the variant of the next frames whenever the loop gets other stages.
        """
        tuning = self._tuning
        if tuning is None or self._is_fixed or not source.paced or tuning.holds_for(source.fps):
            return None
        why = _why_again(tuning.tuned)
        tuner = tuning.supervisor(
            home,
            source.fps,
            load_limit_s=self._trial_s + _BESIDE_TRIAL_S,
            on_tuned=self._tell,
            on_variant=on_variant,
        )
        self._say(
            f"tuning for {source.fps:.3g} frames a second{why}: what runs best is measured while results go out, for "
            f"about {tuner.plan.seconds:.0f} s (--no-tune leaves it)"
        )
        return tuner

    def _tell(self, tuned: Tuned, remark: str) -> None:
        self._say(f"tuned in {tuned.seconds:.0f} s: {tuned.line()}")
        if tuned.provisional:
            self._say(f"{tuned.doubt()}: the next start tunes again")
        if remark:
            self._say(f"warning: that is not remembered: {remark}")


def _why_again(before: Tuned | None) -> str:
    if before is None:
        return ""
    return f" again, because {before.doubt()}" if before.provisional else f", and not {before.fps:g}"
