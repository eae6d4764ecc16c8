"""SelfTuning: what a run does about tuning: use what is remembered, or find it out while results go out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edge_sdk.bundle import Bundle
from edge_sdk.daemon.settings import RunSettings
from edge_sdk.location import Kind, kind_of
from edge_sdk.session import SessionSettings
from edge_sdk.stages import Stages
from edge_sdk.trial import prove_here
from edge_sdk.tuning import SECONDS, Candidate, Limits, LiveTuner, Tuned, Tuning

if TYPE_CHECKING:  # it brings OpenCV, which is loaded beside the model
    from edge_sdk.camera import OpenedSource


class SelfTuning:
    """Tuning of one run.

    Args:
        settings: of the run.
        bundle: verified; the variant that was asked for in front.
        session: how a model is run, but for what tuning finds.
        limits: what has to be kept.
        say: takes one line for people.
    """

    def __init__(
        self,
        settings: RunSettings,
        bundle: Bundle,
        session: SessionSettings,
        limits: Limits,
        say: Callable[[str], None],
    ) -> None:
        self._bundle, self._session, self._say = bundle, session, say
        self._is_fixed = settings.variant is not None
        self._trial_s = settings.trial_s
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

    def open(self) -> tuple[Candidate, Stages]:
        """What shall run first, loaded and proved.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
        """
        if self._tuning is not None:
            return self._tuning.open()
        return Candidate.promised(self._bundle.manifest), Stages.open(self._bundle, self._session, most_golden=1)

    def open_variant(self, variant: str) -> Stages:
        """One of the bundle's models with the settings that are best for it, as far as they are known.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
        """
        if self._tuning is not None:
            return self._tuning.open_variant(variant)
        return Stages.open(self._proved(self._bundle.led_by(variant)), self._session, most_golden=1)

    def _open_candidate(self, bundle: Bundle, candidate: Candidate) -> Stages:
        led = self._proved(bundle.led_by(candidate.variant))
        return Stages.open(led, candidate.settings(self._session), most_golden=1)

    def _proved(self, bundle: Bundle) -> Bundle:
        """Another variant than the first is tried in a process of its own too, once; threads change nothing there."""
        if bundle.manifest.variants[0] != self._bundle.manifest.variants[0]:
            prove_here(bundle, settings=self._session, seconds=self._trial_s, say=self._say)
        return bundle

    def supervisor(
        self,
        home: tuple[Candidate, Stages],
        source: OpenedSource,
        on_variant: Callable[[str], None] = lambda _variant: None,
    ) -> LiveTuner | None:
        """What tunes while it runs; None where that is known, or not wanted.

        Args:
            home: what `open` gave.
            source: that the loop reads.
            on_variant: called with the variant of the next frames whenever the loop gets other stages.
        """
        tuning = self._tuning
        if tuning is None or self._is_fixed or not source.paced or tuning.holds_for(source.fps):
            return None
        before = f", and not {tuning.tuned.fps:g}" if tuning.tuned else ""
        self._say(
            f"tuning for {source.fps:g} frames a second{before}: what runs best is measured while results go out, for "
            f"{SECONDS:g} s at most (--no-tune leaves it)"
        )
        return tuning.supervisor(home, source.fps, on_tuned=self._tell, on_variant=on_variant)

    def _tell(self, tuned: Tuned, remark: str) -> None:
        self._say(f"tuned in {tuned.seconds:.0f} s: {tuned.line()}")
        if remark:
            self._say(f"warning: that is not remembered: {remark}")
