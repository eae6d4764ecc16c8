"""Model: a bundle's model for use in a Python program; the daemon assembles the same parts without it."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.core.errors import UsageError, host_tools
from edge_sdk.core.frame import Classification, Detections, Frame, Result, Segmentation
from edge_sdk.core.protocols import Sink, Source
from edge_sdk.inference.cascade import Cascade, CropSettings, going_on
from edge_sdk.inference.runtime import SessionSettings, check_device
from edge_sdk.inference.session import Session, Stages
from edge_sdk.loop import Budget, Loop
from edge_sdk.tasks.spec import labels_by_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_log = logging.getLogger(__name__)
_UNPROVED = (".toml", ".onnx")  # suffixes of models that are not bundles
_Kind = TypeVar("_Kind", Detections, Classification, Segmentation)


class Model:
    """A loaded and proved model. Only one thread at a time may use it; give each thread its own `clone()`.

    Attributes:
        labels: the bundle's labels, in the order of the model's outputs.
        latency_budget_ms: the bundle's latency budget from capture to result, milliseconds.
    """

    def __init__(self, bundle: Bundle, stages: Stages, second: tuple[Model, CropSettings] | None = None) -> None:
        self.bundle, self._stages, self.labels = bundle, stages, bundle.labels()
        self._second = second
        self._cascade = None if second is None else Cascade(second[0]._stages, second[1], going_on(bundle, second[1]))
        self.latency_budget_ms = bundle.manifest.latency_budget_ms
        self._names = labels_by_id(bundle.manifest, self.labels)

    @classmethod
    def open(
        cls,
        bundle: Bundle | str | Path,
        trusted_keys: Sequence[Ed25519PublicKey | Path | str] = (),
        *,
        variant: str | None = None,
        settings: SessionSettings | None = None,
    ) -> Model:
        """Load a model of a bundle, in the calling process, and replay its golden inputs.

        A model.toml, or an .onnx file described as by `edge-sdk init`, is loaded as a float model without golden
        inputs, for a first test on the workstation.

        Args:
            bundle: a bundle's folder, the result of `Bundle.open`, or a model.toml or .onnx file.
            trusted_keys: for a folder, as for `Bundle.open`: with any, an unsigned bundle is refused.
            variant: name or file of the variant, such as `int8.320x320`; the bundle's first by default.
            settings: threads and execution providers; by default those of the bundle.

        Raises:
            UsageError: the bundle has no such variant.
            IncompatibleError: the bundle is for another machine or ONNX Runtime, or its golden results differ here.
            BundleError: it is not a bundle, no trusted key signed it, or a file was changed since it was opened.
            ModelError: the model's outputs are not those of its labels and decoder.
            MissingDependencyError: a package is not installed that the model's operators need, or, where it is no
                bundle, the workstation's tools.
        """
        if settings is not None and not isinstance(settings, SessionSettings):
            raise UsageError(f"settings is {settings!r}, expected SessionSettings, such as of intra_op_num_threads=2")
        if isinstance(bundle, str | Path) and Path(bundle).suffix in _UNPROVED:
            return cls._unproved(Path(bundle), trusted_keys, variant=variant, settings=settings)
        if not isinstance(bundle, Bundle):
            bundle = Bundle.open(bundle, trusted_keys)
        check_device(bundle)
        chosen = bundle if variant is None else bundle.with_primary(variant)
        return cls(chosen, Stages.open(chosen, settings))

    @classmethod
    def _unproved(cls, path: Path, trusted_keys: Sequence[object], **options: Any) -> Model:
        if trusted_keys:
            raise UsageError(f"{path}: only a bundle is signed; leave trusted_keys out, or build and sign a bundle")
        with host_tools(f"Model.open of {path.name}"):
            from edge_sdk_tools.build.unproved import UNPROVED, unproved_bundle  # only on the workstation
        folder = tempfile.mkdtemp(prefix="edge-sdk-")
        try:
            made, description = unproved_bundle(path, Path(folder))
            for line in description.guesses() if description else ():
                _log.warning(line)
            _log.warning(UNPROVED)
            model = cls.open(made, **options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(model.bundle, shutil.rmtree, folder, ignore_errors=True)  # `clone` and `then` read the labels
        return model

    @property
    def variant(self) -> str:
        """The name of the variant that is loaded."""
        return self._stages.variant

    @property
    def session(self) -> Session:
        """The model in ONNX Runtime, without pre- and postprocessing."""
        return self._stages.session

    def clone(self) -> Model:
        """Return the same loaded model for another thread, with buffers of its own, without loading it again."""
        second = None if self._second is None else (self._second[0].clone(), self._second[1])
        return Model(self.bundle, self._stages.clone(self.bundle), second)

    def then(self, second: Model, *, labels: Sequence[str] = (), max_crops: int = 4, margin: float = 0.1) -> Model:
        """Return this detector followed by a second model, whose result for each object is in `Detections.then`.

        In a loop, the second model runs on a frame's objects until the latency budget is used up.

        Args:
            second: a model that no other thread uses.
            labels: labels of the objects on which the second model runs; all by default.
            max_crops: most objects of a frame on which the second model runs, 1 to 64, the most confident first.
            margin: by how much the crop exceeds the box on each side, as a share of its width or height, 0-1.

        Raises:
            UsageError: this model is no detector or lacks a label, or a number is out of range.
        """
        if not isinstance(second, Model):
            raise UsageError(f"the second model is {second!r}, expected a Model; Model.open(path) opens one")
        settings = CropSettings(labels=tuple(labels), max_crops=max_crops, margin=margin)
        return Model(self.bundle, self._stages, (second, settings))

    def __call__(
        self, picture: Frame | NDArray[Any] | None, /, *, confidence: float | None = None, iou: float | None = None
    ) -> Result:
        """Run the model on a picture and return the result.

        Args:
            picture: uint8 (H, W, 3), BGR, of any size, or a frame. Other arrays are refused, and so is None, which
                OpenCV returns for a picture that it cannot read.
            confidence: least confidence of a detector's objects, 0-1; by default the bundle's threshold.
            iou: IoU above which the less confident of two objects is dropped, 0-1; by default the bundle's threshold.

        Raises:
            UsageError: the picture is no such array, or a threshold is not 0 to 1.
            CameraError: the frame's image is no such array.
            HungRunError: the run exceeded its time limit; another run may follow.
            SessionError: ONNX Runtime failed.
        """
        given = {"confidence": confidence, "iou": iou}
        wanted = {name: value for name, value in given.items() if value is not None}
        if wanted != self._stages.thresholds:
            for name, value in wanted.items():
                if not _is_number(value) or not 0 <= value <= 1:
                    raise UsageError(f"{name} is {value!r}, expected a number from 0 to 1")
            self._stages.set_thresholds(wanted)
        result = self._stages(picture if isinstance(picture, Frame) else Frame.of(picture))
        return result if self._cascade is None else self._cascade(result)

    def detect(self, picture: Frame | NDArray[Any] | None, /, **thresholds: float) -> Detections:
        """Run a detector as `__call__` does; raise UsageError for a model of another task."""
        return self._of(Detections, self(picture, **thresholds))

    def classify(self, picture: Frame | NDArray[Any] | None, /) -> Classification:
        """Run a classifier as `__call__` does; raise UsageError for a model of another task."""
        return self._of(Classification, self(picture))

    def segment(self, picture: Frame | NDArray[Any] | None, /) -> Segmentation:
        """Run a segmentation model as `__call__` does; raise UsageError for a model of another task."""
        return self._of(Segmentation, self(picture))

    def _of(self, kind: type[_Kind], result: Result) -> _Kind:
        if not isinstance(result, kind):
            task = self.bundle.manifest.task
            raise UsageError(f"{self.bundle.manifest.name} is for {task}, and gives {type(result).__name__}")
        return result

    def loop(
        self,
        source: Source,
        sink: Sink | None = None,
        *,
        latency_ms: float | None = None,
        observers: Sequence[Sink] = (),
    ) -> Loop:
        """Return a loop that runs the model on a source's latest frame within a latency budget.

        Args:
            source: the result of `open_source`, or an object with `latest`, `ended` and `close`. A source with `paced =
                False` delivers its pictures in order on request, and no picture is dropped for being late.
            sink: an object with `put`; None if results are only iterated over.
            latency_ms: time from capture to the return of `put`, in milliseconds, above 0; by default the bundle's.
            observers: further sinks, called after the loop has compared the result's age with the budget.

        Raises:
            UsageError: `latency_ms` is not such a number, or an argument lacks a method.
        """
        if not hasattr(source, "latest"):
            raise UsageError(f"the source is {source!r}, expected one with latest(); open_source(location) opens one")
        for taker in (*observers, *(() if sink is None else (sink,))):
            if not hasattr(taker, "put"):
                raise UsageError(f"the sink is {taker!r}, expected an object with put(result)")
        budget_ms = self.latency_budget_ms if latency_ms is None else latency_ms
        if not _is_number(budget_ms) or not 0 < budget_ms <= _MAX_MS:
            raise UsageError(f"latency_ms is {latency_ms!r}, expected milliseconds above 0")
        budget = Budget(budget_ms, drops=bool(getattr(source, "paced", True)))
        return Loop(source, self._stages, sink, budget, observers=observers, then=self._cascade)

    def label_of(self, class_id: int) -> str:
        """Return the label of a result's class id; `class_N` if the class has none, `background` for -1."""
        return self._names.get(int(class_id)) or ("background" if class_id == -1 else f"class_{class_id}")


_MAX_MS = 1e12  # 30 years


def _is_number(value: object) -> bool:
    return isinstance(value, Real)
