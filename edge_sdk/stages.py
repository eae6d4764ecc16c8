"""Stages: prepare, session and task of one variant, ready to run.

Owns the order in which they are made and proved: load, check the outputs, replay golden, which is the warm-up too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.bundle import Bundle
from edge_sdk.frame import Frame, Result
from edge_sdk.heap import give_back_freed
from edge_sdk.session import Session, SessionCache, SessionSettings

if TYPE_CHECKING:
    from edge_sdk.prepare import Prepare
    from edge_sdk.tasks import Task


class Stages:
    """From a frame to a result; not for several threads at once.

    Args:
        variant: name of the bundle's model that runs.
        prepare: Frame -> Prepared.
        session: Prepared -> Inferred.
        task: Inferred -> Result.
    """

    def __init__(self, variant: str, prepare: Prepare, session: Session, task: Task) -> None:
        self.variant, self.prepare, self.session, self.task = variant, prepare, session, task

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        settings: SessionSettings | None = None,
        *,
        cache: SessionCache | None = None,
        most_golden: int | None = None,
    ) -> Stages:
        """Load the first variant of a verified bundle and replay its golden inputs.

        Args:
            bundle: `Bundle.led_by` puts another variant in front.
            settings: those that the bundle promises by default.
            cache: where the loaded model is kept; one that is there and was proved is not replayed again.
            most_golden: how many golden inputs are replayed, from the first; all by default. One is enough where
                `trial.prove_here` saw all of them, with these settings.

        Raises:
            EdgeError: when it cannot be loaded, read or trusted here.
        """
        session = Session.open(bundle, settings) if cache is None else cache.open(bundle, settings)
        stages = cls._around(session, bundle)
        if not session.is_proved:
            session.replay_golden(bundle, stages.prepare, most_golden)
            give_back_freed()  # the golden pictures and outputs, which are of no more use
        return stages

    @classmethod
    def _around(cls, session: Session, bundle: Bundle) -> Stages:
        # They bring OpenCV: at a start another thread loads it while this one loads the model.
        from edge_sdk.prepare import Prepare
        from edge_sdk.tasks import make_task

        task = make_task(bundle.manifest, len(bundle.labels()), session.output_shapes)
        return cls(bundle.manifest.variants[0].name, Prepare.of(bundle.manifest), session, task)

    def twin(self, bundle: Bundle) -> Stages:
        """Others on the same loaded model, with buffers of their own, so that another thread may run them.

        Args:
            bundle: that they were opened from.
        """
        return self._around(self.session.twin(), bundle)

    @property
    def threads(self) -> int:
        """Inside one operator of the model."""
        return int(self.session.inference.get_session_options().intra_op_num_threads)

    def __call__(self, frame: Frame, /) -> Result:
        """One frame's result."""
        return self.task(self.session(self.prepare(frame)))
