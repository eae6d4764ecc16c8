"""Setting: what all attempts of a search share, here and on other machines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import UsageError
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.candidates import key_of
from edge_sdk_tools.dataset import Dataset, carried
from edge_sdk_tools.evaluate import OnProgress, OutputMemory, Subject
from edge_sdk_tools.host_cpu import host_saturates
from edge_sdk_tools.quantize import Recipe, Simplified

Board: TypeAlias = Callable[[Path], BoardEstimate | None]


class Setting:
    """Pickled it leaves the loaded model and the progress behind: who needs the model loads it again, once.

    Args:
        spec: says how outputs are read.
        target: what is built for.
        fp32: the float model, loaded.
        fp32_model: the same, as bytes.
        simplified: the same, as the quantizer wants it.
        evaluation: images that measure.
        threads: for each attempt.
        elsewhere: images are sent along, as other machines have not got them.
        folder: of the build, for the attempts' files, where they run on this machine; must exist.
        board: estimates the time of a model file on the target's core, in this process; None where nothing counts.
        on_progress: for progress bars, in this process.
    """

    def __init__(
        self,
        spec: ModelSpec,
        target: Target,
        fp32: Subject,
        fp32_model: bytes,
        simplified: Simplified,
        evaluation: Dataset,
        *,
        threads: int | None = None,
        elsewhere: bool = False,
        folder: Path | None = None,
        board: Board = lambda _model: None,
        on_progress: OnProgress = lambda _step, _done, _total: None,
    ) -> None:
        self.spec, self.target, self.simplified, self.threads = spec, target, simplified, threads
        self.evaluation = carried(evaluation) if elsewhere else evaluation
        self.folder = None if elsewhere else folder
        # All that decides what an attempt gives, but for the attempt itself.
        self.digest = key_of(
            "setting",
            [spec, target, fp32.labels, fp32.digest, simplified.tail, evaluation],
            fp32_model,
            simplified.proto.SerializeToString(deterministic=True),
            *evaluation.mask_contents(),
        )
        self._labels, self._model, self._model_digest = fp32.labels, fp32_model, fp32.digest
        self._saturates = host_saturates()
        self._loading = threading.Lock()
        self._fp32: Subject | None = _remembering(fp32)
        self.on_progress, self.board = on_progress, board

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loading": None, "_fp32": None, "on_progress": None, "board": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _loading=threading.Lock(), on_progress=_silent, board=_uncounted)

    @property
    def fp32(self) -> Subject:
        """The float model; what it answered once it is not asked again."""
        with self._loading:
            if self._fp32 is None:
                session = Session(self._model, SessionSettings(), "the FP32 model")
                self._fp32 = _remembering(
                    Subject("the FP32 model", self.spec, self._labels, session, self._model_digest)
                )
            return self._fp32

    def check_here(self, recipe: Recipe | None) -> None:
        """Refuse a machine whose integers are not those of the machine that builds.

        Raises:
            UsageError: its CPU would saturate where that one does not.
        """
        if recipe is not None and not recipe.reduce_range and host_saturates() and not self._saturates:
            raise UsageError(
                "a worker's CPU saturates sums of INT8 (x86 without VNNI), and this machine's does not: their figures "
                "are not comparable; take such workers out of the cluster"
            )


def _remembering(fp32: Subject) -> Subject:
    return Subject(fp32.name, fp32.spec, fp32.labels, fp32.session, fp32.digest, fp32.calibration, OutputMemory())


def _uncounted(_model: Path) -> None:
    """Nothing counts on a worker."""


def _silent(_step: str, _done: int, _total: int) -> None:
    """Nobody looks."""
