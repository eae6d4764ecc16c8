"""Stages: prepare, session and task of one variant, ready to run.

    Frame -- Prepare --> Prepared -- Session --> Inferred -- task --> Result

`Stages.open` loads the model, checks its outputs, and replays the golden inputs, which is also the warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.frame import Frame, Geometry, Inferred, Prepared, Result
from edge_sdk.core.machine import give_back_freed
from edge_sdk.core.protocols import Stage
from edge_sdk.inference.session import Session, SessionCache
from edge_sdk.inference.settings import SessionSettings
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.spec import TRAITS

if TYPE_CHECKING:
    from edge_sdk.inference.prepare import Prepare


class Stages:
    """Turns frames into results; not for several threads at once.

    `remake` returns the same task with some of the bundle's thresholds replaced, by name, as `thresholds` has them.
    """

    def __init__(
        self,
        variant: str,
        prepare: Prepare,
        session: Session,
        task: Stage[Inferred, Result],
        remake: Callable[[Mapping[str, float]], Stage[Inferred, Result]] | None = None,
        *,
        finds_objects: bool = False,
    ) -> None:
        self.variant, self.prepare, self.session, self.task = variant, prepare, session, task
        self._remake, self._finds_objects = remake, finds_objects
        self.thresholds: Mapping[str, float] = {}

    def set_thresholds(self, thresholds: Mapping[str, float]) -> None:
        """Replace these thresholds of the bundle, each 0 to 1, and none of the others. Call it between two frames."""
        if self._remake is not None:
            self.task, self.thresholds = self._remake(thresholds), thresholds

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        settings: SessionSettings | None = None,
        *,
        cache: SessionCache | None = None,
        most_golden: int | None = None,
    ) -> Stages:
        """Load the first variant of a verified bundle and replay its golden inputs, by default with its settings.

        Args:
            bundle: `Bundle.with_primary` puts another variant in front.
            settings: settings of the session.
            cache: cache of loaded models; the golden inputs of a proved model are not replayed again.
            most_golden: how many golden inputs to replay, all by default; one is enough after `trial.prove_here`.
        """
        session = Session.open(bundle, settings) if cache is None else cache.open(bundle, settings)
        stages = cls._around(session, bundle)
        if not session.is_proved:
            session.replay_golden(bundle, stages.prepare, most_golden)
            give_back_freed()  # the memory of the golden pictures and outputs
        return stages

    @classmethod
    def _around(cls, session: Session, bundle: Bundle) -> Stages:
        # This module imports OpenCV, which another thread loads at a start while this one loads the model.
        from edge_sdk.inference.prepare import Prepare

        manifest, labels, shapes = bundle.manifest, bundle.labels(), session.output_shapes

        def remake(changed: Mapping[str, float]) -> Stage[Inferred, Result]:
            thresholds = msgspec.structs.replace(manifest.thresholds, **changed)
            return make_stage(msgspec.structs.replace(manifest, thresholds=thresholds), labels, shapes)

        finds_objects = TRAITS[manifest.task].has_objects
        return cls(
            manifest.variants[0].name, Prepare.of(manifest), session, remake({}), remake, finds_objects=finds_objects
        )

    def clone(self, bundle: Bundle) -> Stages:
        """Return stages on the same loaded model with their own buffers, so that another thread may run them."""
        return self._around(self.session.clone(), bundle)

    @property
    def threads(self) -> int:
        """Number of threads inside one operator of the model."""
        return int(self.session.inference.get_session_options().intra_op_num_threads)

    def __call__(self, frame: Frame, /) -> Result:
        """Return the result of one frame."""
        return self.task(self.session(self.prepare(frame)))

    def run_part(self, frame: Frame, region: tuple[int, int, int, int]) -> Result:
        """Return the result of a part of a frame (left, top, right, bottom); objects in it lie in the frame.

        The frame of other results is the part alone, to which shares and maps of a picture belong.
        """
        left, top, right, bottom = region
        # A view: what resizes it reads rows of any stride.
        part = Frame(frame.image[top:bottom, left:right], frame.captured_ns, frame.captured_at, frame.seq, frame.camera)
        prepared = self.prepare(part)
        if not self._finds_objects:
            return self.task(self.session(prepared))
        own = prepared.geometry
        offset_x, offset_y = own.offset_x - left * own.scale_x, own.offset_y - top * own.scale_y
        of_frame = Geometry(own.scale_x, own.scale_y, offset_x, offset_y)
        return self.task(self.session(Prepared(prepared.tensor, of_frame, frame)))
