"""Compare an ONNX model in ONNX Runtime with its original, on the same inputs.

The inputs differ as much as inputs can, so that a graph which kept one branch of several meets another: constants,
noise of several scales, pictures made here, and real images through the device's own prepare stage. The original sees
most of them twice: random outputs, outputs that come and go, and numbers that are not finite are found before any
conversion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.errors import ModelError, raising
from edge_sdk.core.frame import Image, Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.check.report import show_shape
from edge_sdk_tools.datasets.dataset import find_images
from edge_sdk_tools.datasets.images import ImageFile, ImageSet, is_folder

MAX_IMAGES = 16
ABSOLUTE_TOLERANCE = 1e-4
"""How far apart float32 sums of another order may be: four times the largest seen on EfficientNet-Lite0 and 2."""
RELATIVE_TOLERANCE = 1e-3
"""The same as a share of the largest value; the `rtol` with which torch.onnx.verification compares by default."""
_INTEGER_SHARE = 1e-3  # of whole numbers that may differ: an argmax of two scores that are equal but for rounding
_told_as = partial(raising, ModelError, kinds=Exception)  # onnxruntime's exceptions share no root of their own
_FATAL = 4  # what goes wrong reaches the caller as an exception, once


class Probe(msgspec.Struct, frozen=True, eq=False):
    """One test input of a comparison, which `make` gives anew: float32 of model.toml's shape, or two of it."""

    name: str
    make: Callable[[], Tensor]
    is_image: bool = False


_PICTURES: dict[str, Callable[[tuple[int, int, int]], Image]] = {
    "black": lambda shape: np.zeros(shape, np.uint8),
    "white": lambda shape: np.full(shape, 255, np.uint8),
    "random pixels": lambda shape: np.random.default_rng(2).integers(0, 256, shape, np.uint8),
}


def make_probes(spec: InputSpec, images: ImageSet, *, batch: bool = False) -> tuple[Probe, ...]:
    """Choose the probes of a model."""
    shape, (width, height) = spec.tensor_shape, spec.size_wh

    def noise(scale: float) -> Tensor:
        return np.asarray(np.random.default_rng(1).standard_normal(shape, np.float32) * np.float32(scale))

    def made(name: str) -> Tensor:
        return Prepare(spec).normalise(_PICTURES[name]((height, width, 3)))

    def real(image: ImageFile) -> Tensor:
        prepare = Prepare(spec)
        return prepare.normalise(prepare.resize(image.read()))

    probes = [
        Probe("zeros", partial(np.zeros, shape, np.float32)),
        Probe("ones", partial(np.ones, shape, np.float32)),
        *(Probe(f"noise x{scale:g}", partial(noise, scale)) for scale in (0.1, 1.0, 10.0)),
        *(Probe(name, partial(made, name)) for name in _PICTURES),
        *(Probe(i.path.name, partial(real, i), is_image=True) for i in images.spread(MAX_IMAGES).images),
    ]
    if batch:
        probes.append(Probe("batch of 2", lambda: np.concatenate([made("white"), made("random pixels")])))
    return tuple(probes)


def probe_images(spec: ModelSpec, folders: Sequence[Path]) -> ImageSet:
    """Return the real images to compare on: those of `folders`, else of model.toml's calibration folder, if any."""
    if folders:
        return find_images(folders)
    calibration = Path(spec.data.calibration) if spec.data.calibration else None
    return find_images([calibration]) if calibration and is_folder(calibration) else ImageSet(())


class OutputDifference(msgspec.Struct, frozen=True):
    """How far one output lies from the original's, over all probes: the largest differences of two values.

    `relative` is as a share of the largest value on the same probe, `probe` is where the largest absolute difference
    was, `on_images` is that on a real image; None where there was none.
    """

    name: str
    shape: tuple[int, ...]
    absolute: float
    relative: float
    probe: str
    on_images: float | None = None


class Observation(msgspec.Struct, frozen=True, eq=False):
    """The names of the original's outputs, and what they are for each probe."""

    names: tuple[str, ...]
    outputs: tuple[tuple[Tensor, ...], ...]


class Comparison(msgspec.Struct, frozen=True):
    """The outcome of a comparison with the original; no outputs where they differ in number or shape.

    `problem` is the first difference that is no rounding, in words. Where it `is_explained`, the words say why, and the
    model is not at fault.
    """

    outputs: tuple[OutputDifference, ...]
    problem: str | None
    is_explained: bool = False


class Runner:
    """An ONNX model in ONNX Runtime, for inputs of any batch: its bytes, or a file beside which its weights may lie."""

    def __init__(self, model: bytes | str, where: str, *, optimize: bool = True) -> None:
        self.where = where
        options = ort.SessionOptions()
        options.log_severity_level = _FATAL
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        with _told_as(f"{where}: ONNX Runtime {ort.__version__} cannot load it"):
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._input_name = self._session.get_inputs()[0].name
        self._names = [str(output.name) for output in self._session.get_outputs()]

    def __call__(self, tensor: Tensor) -> dict[str, Tensor]:
        """Run it on one input; gives the outputs by name, in order."""
        with _told_as(f"{self.where}: ONNX Runtime cannot run it on an input of {show_shape(tensor.shape)}"):
            outputs = self._session.run(None, {self._input_name: tensor})
        return {name: np.asarray(output) for name, output in zip(self._names, outputs, strict=True)}


def verify(model: bytes, where: str, probes: Sequence[Probe], original: Observation) -> Comparison:
    """Run a model on every probe as a device would, and compare its outputs with the original's.

    Where it differs, the cause is looked for in ONNX Runtime's own optimizer.
    """
    found = _compare(Runner(model, where), probes, original)
    if found.problem is None or _compare(Runner(model, where, optimize=False), probes, original).problem is not None:
        return found
    why = (
        f"ONNX Runtime {ort.__version__} changes the result when it optimizes the graph, a fault of its own; write the "
        "operations around that output in another way"
    )
    return Comparison(found.outputs, f"{found.problem}: {why}", is_explained=True)


def _compare(runner: Runner, probes: Sequence[Probe], original: Observation) -> Comparison:
    differences: dict[str, list[OutputDifference]] = {name: [] for name in original.names}
    problem = None
    for probe, wanted in zip(probes, original.outputs, strict=True):
        got = tuple(runner(probe.make()).values())
        if len(got) != len(wanted):
            return Comparison((), f"it has {len(got)} outputs, the original {len(wanted)}")
        for name, a, b in zip(differences, got, wanted, strict=True):
            if a.shape != b.shape:
                what = f"output {name!r} has shape {a.shape} on input {probe.name!r}, expected {b.shape}"
                return Comparison((), what)
            found, allowed = measure_difference(name, probe, a, b)
            differences[name].append(found)
            if allowed is not None and problem is None:
                problem = (
                    f"output {name!r} differs by {found.absolute:.3g} on input {probe.name!r}, "
                    f"where rounding explains {allowed:.3g}"
                )
    outputs = []
    for of_output in differences.values():
        worst, relative = max(of_output, key=lambda one: one.absolute), max(one.relative for one in of_output)
        on_images = max((one.on_images for one in of_output if one.on_images is not None), default=None)
        outputs.append(msgspec.structs.replace(worst, relative=relative, on_images=on_images))
    return Comparison(tuple(outputs), problem)


def measure_difference(name: str, probe: Probe, got: Tensor, expected: Tensor) -> tuple[OutputDifference, float | None]:
    """Measure how far one output is from what was expected; with it, what rounding explains where that is less."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # inf - inf
        # Written so that NaN on one side counts as infinitely far.
        difference = np.where(equal, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    magnitude = np.where(np.isfinite(b), np.abs(b), 0.0)
    allowed = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * np.broadcast_to(_scale(magnitude), b.shape)
    bad = difference > allowed
    is_bad = bad.any() if expected.dtype.kind == "f" else bad.size and bad.mean() > _INTEGER_SHARE
    absolute, largest = float(difference.max(initial=0.0)), float(magnitude.max(initial=0.0))
    relative, on_images = absolute / largest if largest else 0.0, absolute if probe.is_image else None
    found = OutputDifference(name, tuple(b.shape), absolute, relative, probe.name, on_images)
    return found, float(allowed.flat[int(np.argmax(difference - allowed))]) if is_bad else None


def _scale(magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each value is measured with: the largest of the thinnest slice through it."""
    # Boxes in pixels and scores of 0-1 often share one tensor; beside the largest value of all every score would pass.
    axes = [axis for axis, size in enumerate(magnitude.shape) if size > 1]
    if len(axes) < 2:
        return np.asarray(magnitude.max(initial=0.0))
    every = range(magnitude.ndim)
    slices = [magnitude.max(axis=tuple(a for a in every if a != axis), keepdims=True) for axis in axes]
    return functools.reduce(np.minimum, slices)


Original: TypeAlias = Callable[[Tensor], Mapping[str, Tensor]]
"""The original of an import, which its own framework runs: one input in, its outputs by name out, to be kept."""


def observe(model: Original, where: str, probes: Sequence[Probe]) -> Observation:
    """Run the model, which messages call `where`, on every probe, and twice on those that are no real image.

    A ModelError says that it fails, says something else the second time, or is not finite on a real image.
    """
    said = [_observe_once(model, where, probe) for probe in probes]
    names = tuple(said[0])
    for probe, outputs in zip(probes, said, strict=True):
        if tuple(outputs) != names:
            raise ModelError(
                f"{where}: has outputs {', '.join(outputs)} on input {probe.name!r} and {', '.join(names)} on "
                f"{probes[0].name!r}, expected the same ones always"
            )
    return Observation(names, tuple(tuple(outputs.values()) for outputs in said))


def _observe_once(model: Original, where: str, probe: Probe) -> Mapping[str, Tensor]:
    tensor = probe.make()
    outputs = model(tensor)
    again = outputs if probe.is_image else model(tensor)
    for name, value in outputs.items():
        if probe.is_image and not np.isfinite(value).all():
            raise ModelError(f"{where}: output {name!r} is not finite on {probe.name}; check mean, std and weights")
        second = again.get(name)
        if second is None or second.shape != value.shape or measure_difference("", probe, second, value)[1] is not None:
            raise ModelError(
                f"{where}: output {name!r} differs between two runs on input {probe.name!r}; it draws random "
                "numbers or remembers earlier inputs, take that out of it"
            )
    return outputs
