"""Tuning: of one run: what is remembered is used at once, what is not is found out while it runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edge_sdk.bundle import Bundle
from edge_sdk.cores import Cores
from edge_sdk.errors import EdgeError
from edge_sdk.room import check_room
from edge_sdk.session import SessionSettings
from edge_sdk.stages import Stages
from edge_sdk.state_folder import state_folder
from edge_sdk.tuning.candidate import Candidate
from edge_sdk.tuning.choice import Limits
from edge_sdk.tuning.live import LiveTuner
from edge_sdk.tuning.machine import Machine
from edge_sdk.tuning.plan import Plan
from edge_sdk.tuning.record import Record, Records, Request
from edge_sdk.tuning.tuned import Tuned, figures

SECONDS = 20.0
"""How long a run tunes by default."""

_SAME_RATE = 0.1  # a camera that promises 25 FPS and a file of 23.976 are not worth measuring twice

Open = Callable[[Bundle, Candidate], Stages]
"""Loads a candidate of a bundle and proves it."""


def open_candidate(bundle: Bundle, candidate: Candidate) -> Stages:
    """Load a candidate and replay its golden inputs.

    Raises:
        EdgeError: when it cannot be loaded, read or trusted here.
    """
    return Stages.open(bundle.led_by(candidate.variant), candidate.settings(SessionSettings.of(bundle.manifest)))


class Tuning:
    """Tuning of one bundle on one camera.

    Args:
        bundle: verified.
        limits: what has to be kept.
        camera: the stream's name.
        variant: the only one that may run; None for any.
        say: takes one line for people.
        open_stages: loads a candidate.

    Raises:
        UsageError: the bundle has no such variant.

    Attributes:
        tuned: what is remembered, or what was found out last; None where nothing is known.
    """

    def __init__(
        self,
        bundle: Bundle,
        limits: Limits,
        *,
        camera: str,
        variant: str | None,
        say: Callable[[str], None],
        open_stages: Open = open_candidate,
    ) -> None:
        self._bundle = bundle if variant is None else bundle.led_by(variant)
        self._variant = None if variant is None else self._bundle.manifest.variants[0].name
        self._limits, self._say, self._open = limits, say, open_stages
        self._request = Request(digest=bundle.digest, camera=camera, variant=self._variant, limits=limits)
        self._records: Records | None = None
        self.tuned: Tuned | None = None
        try:
            self._records = Records(state_folder() / "tuning")
        except EdgeError as cause:
            say(f"tuning is not remembered: {cause}")

    def open(self) -> tuple[Candidate, Stages]:
        """What is remembered, or what the bundle promises, loaded and proved.

        Raises:
            EdgeError: when what is promised cannot be loaded, read or trusted here.
        """
        record = self._recall()
        if record is None:
            return self.open_promised()
        chosen = record.tuned.chosen
        try:
            stages = self._open(self._bundle, chosen.candidate)
        except EdgeError as cause:
            self._say(f"what was tuned at {record.at} cannot be loaded any more: {cause}")
            return self.open_promised()
        self.tuned = record.tuned
        self._say(f"tuned at {record.at}: {chosen.candidate} ({figures(chosen)}); {record.tuned.reason}")
        return chosen.candidate, stages

    def open_promised(self) -> tuple[Candidate, Stages]:
        """What the bundle promises by default, loaded and proved.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
        """
        promised = Candidate.promised(self._bundle.manifest)
        return promised, self._open(self._bundle, promised)

    def open_variant(self, variant: str) -> Stages:
        """One of the bundle's models with the settings that served it best here, or else those that were chosen.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
        """
        promised = msgspec.structs.replace(Candidate.promised(self._bundle.manifest), variant=variant)
        return self._open(self._bundle, self.tuned.for_variant(variant) if self.tuned else promised)

    def holds_for(self, fps: float) -> bool:
        """Whether what is remembered was measured at about so many frames a second."""
        return self.tuned is not None and abs(self.tuned.fps - fps) <= _SAME_RATE * fps

    def supervisor(
        self,
        home: tuple[Candidate, Stages],
        fps: float,
        *,
        seconds: float = SECONDS,
        on_tuned: Callable[[Tuned, str], None],
        on_trying: Callable[[Candidate], None] = lambda _candidate: None,
        on_variant: Callable[[str], None] = lambda _variant: None,
    ) -> LiveTuner:
        """What tunes while it runs, whatever is remembered.

        Args:
            home: what `open` or `open_promised` gave.
            fps: of the camera.
            seconds: for all candidates.
            on_tuned: called with what came out, and why it is not remembered; empty where it is.
            on_trying: called with every candidate before it is loaded or measured.
            on_variant: called with the variant of the next frames whenever the loop gets other stages.
        """
        candidate, stages = home
        # What ONNX Runtime gave the session, so that no chain is tried whose first provider is not here.
        got = stages.session.inference.get_providers()
        providers = tuple(p for p in candidate.providers if p in got) or candidate.providers
        plan = Plan.of(
            self._bundle,
            self._limits,
            only_first=self._variant is not None,
            providers=providers,
            fps=fps,
            seconds=seconds,
            cores=Cores.read(),
        )
        return LiveTuner(
            plan,
            (_as_opened(candidate, stages, providers), stages),
            self._open_beside,
            remember=self._remember,
            say=self._say,
            on_tuned=on_tuned,
            on_trying=on_trying,
            on_variant=on_variant,
        )

    def _open_beside(self, candidate: Candidate) -> Stages:
        """Load a candidate while another one runs."""
        check_room(self._bundle, candidate.variant)
        return self._open(self._bundle, candidate)

    def _recall(self) -> Record | None:
        if self._records is None:
            return None
        found = self._records.recall(self._bundle, self._request, Machine.here())
        if isinstance(found, str):
            self._say(f"tuning anew: {found}")
            return None
        return found

    def _remember(self, tuned: Tuned) -> None:
        self.tuned = tuned
        if self._records is not None:
            self._records.remember(self._request, Machine.here(), tuned)


def _as_opened(candidate: Candidate, stages: Stages, providers: tuple[str, ...]) -> Candidate:
    """What a start made of a candidate: it may have found another variant, or other threads."""
    return msgspec.structs.replace(
        candidate, variant=stages.variant, providers=providers, intra_op_num_threads=stages.threads
    )
