"""How far the raw outputs of one form of a model lie from those of the form before it.

Errors of independent steps add up as squares, so these are kept as energies until the end. Boxes in pixels are judged
apart from scores, which they would drown in one sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.frame import Tensor
from edge_sdk.tasks.decoders import decoder_of
from edge_sdk.tasks.spec import TRAITS

_BOX = 4


class Parts(msgspec.Struct, frozen=True):
    """How the raw outputs of one model are taken apart.

    Attributes:
        box_axis: where each tensor has four numbers of a box first, then scores; None where nothing is mixed.
        is_classifier: whether the largest value of the first output is the answer.
    """

    box_axis: int | None
    is_classifier: bool

    def of(self, outputs: Sequence[Tensor]) -> list[NDArray[np.generic]]:
        """The parts, copied."""
        values = [output.copy() for output in outputs]
        if self.box_axis is None:
            return values
        axis = self.box_axis
        return [
            part
            for value in values
            for part in (np.split(value, [_BOX], axis=axis) if value.ndim > 1 and value.shape[axis] > _BOX else [value])
        ]


def parts_of(spec: ModelSpec) -> Parts:
    """Return how the outputs of a model are split into parts."""
    return Parts(decoder_of(spec).box_axis, TRAITS[spec.task].is_of_whole_picture)


StepKind: TypeAlias = Literal["source", "teacher", "fp32", "simplified", "int8", "ort", "arm"]
"""In the order of a build: where the model was trained (PyTorch); its teacher; the model as given; after the graph was
simplified; quantized (QDQ ONNX); the file that ships, in ORT format or as ONNX; the same file on an emulated ARM."""


Inputs: TypeAlias = tuple[Tensor, Tensor]
"""One prepared image: as all forms take it, and as the one that ships does."""

Run: TypeAlias = Callable[[Inputs], Sequence[Tensor]]
"""One form of a model: a prepared image in, its raw outputs out, which it may overwrite with the next call."""

_TINY = 1e-30

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Signed: TypeAlias = Annotated[float, Meta(ge=-1, le=1)]


class OutputChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one step changed in the raw outputs, on the same inputs.

    Attributes:
        against: the step whose outputs these were compared with.
        images: on how many real images.
        inputs: on how many inputs in all; noise and made pictures count too where an import was compared on them.
        identical: not one bit differs; None where only the largest difference is known.
        largest: the largest difference of two values, in units of the output.
        largest_share: the same, over the largest value of the output on that input.
        relative_error: root of the differences' energy over that of FP32's outputs, 0 or more: .1 is an SQNR of 20 dB.
            The mean over outputs, of the energies; boxes and scores in one tensor count as two outputs. None where
            outputs are whole numbers, such as classes, which have no energy.
        total_error: the same against FP32 itself: of all steps so far together.
        cosine: mean over images and outputs of the cosine between both, -1 to 1.
        top1_agreement: share of the images on which both have the same first class, 0-1; None for other tasks.
    """

    against: StepKind
    images: Count
    inputs: Count
    identical: bool | None = None
    largest: Amount
    largest_share: Amount | None = None
    relative_error: Amount | None = None
    total_error: Amount | None = None
    cosine: Signed | None = None
    top1_agreement: Share | None = None


class Form(msgspec.Struct, frozen=True, eq=False):
    """One form of a model that can run here."""

    kind: StepKind
    against: StepKind | None
    run: Run


def compare_forms(forms: Sequence[Form], tensors: Sequence[Inputs], parts: Parts) -> dict[StepKind, OutputChange]:
    """Run every form on every tensor, one tensor after another, and compare it with the form before.

    The float model is the first form, and errors are measured by its energy. A form whose outputs have other shapes or
    are no finite numbers gets no result.
    """
    sums: dict[StepKind, list[_Sums | None]] = {form.kind: [] for form in forms if form.against}
    for tensor in tensors:
        said: dict[StepKind, list[NDArray[np.generic]]] = {}
        for form in forms:
            said[form.kind] = parts.of(form.run(tensor))
            if form.against:
                first = said[forms[0].kind]
                sums[form.kind].append(_sums(said[form.kind], said[form.against], first, parts))
    changes = {}
    for form in forms:
        found = [one for one in sums.get(form.kind, []) if one is not None]
        if form.against and found and len(found) == len(tensors):
            changes[form.kind] = _change(form.against, found)
    return changes


class _Sums(msgspec.Struct, frozen=True, eq=False):
    """Sums over one image, one value for each part of the outputs."""

    own: NDArray[np.float64]
    total: NDArray[np.float64]
    signal: NDArray[np.float64]
    cosine: NDArray[np.float64]
    largest: float
    same_class: bool | None
    are_real: bool


def _sums(
    got: Sequence[NDArray[np.generic]],
    before: Sequence[NDArray[np.generic]],
    first: Sequence[NDArray[np.generic]],
    parts: Parts,
) -> _Sums | None:
    if [a.shape for a in got] != [b.shape for b in before] or [a.shape for a in got] != [c.shape for c in first]:
        return None
    are_real = all(np.issubdtype(values.dtype, np.floating) for values in (*got, *before, *first))
    got, before, first = ([values.astype(np.float64) for values in of] for of in (got, before, first))
    if not got or not all(np.isfinite(values).all() for values in (*got, *before, *first)):
        return None
    return _Sums(
        np.array([_energy(a - b) for a, b in zip(got, before, strict=True)]),
        np.array([_energy(a - c) for a, c in zip(got, first, strict=True)]),
        np.array([_energy(c) for c in first]),
        np.array([_cosine(a, b) for a, b in zip(got, before, strict=True)]),
        max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(got, before, strict=True)),
        bool(got[0].argmax() == before[0].argmax()) if parts.is_classifier else None,
        are_real,
    )


def _change(against: StepKind, found: Sequence[_Sums]) -> OutputChange:
    own, total, signal = (np.sum([getattr(one, name) for one in found], axis=0) for name in ("own", "total", "signal"))
    same = [one.same_class for one in found if one.same_class is not None]
    largest = max(one.largest for one in found)
    are_real = all(one.are_real for one in found)
    return OutputChange(
        against=against,
        images=len(found),
        inputs=len(found),
        identical=largest == 0,
        largest=largest,
        relative_error=_root(own, signal) if are_real else None,
        total_error=_root(total, signal) if are_real else None,
        cosine=float(np.mean([one.cosine for one in found])) if are_real else None,
        top1_agreement=sum(same) / len(same) if same else None,
    )


def _root(error: NDArray[np.float64], signal: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.mean(error / (signal + _TINY))))


def _energy(values: NDArray[np.float64]) -> float:
    return float(np.vdot(values, values))


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    length = math.sqrt(_energy(a) * _energy(b))
    if length == 0:
        return float(_energy(a) == _energy(b))
    return min(1.0, max(-1.0, float(np.vdot(a, b)) / length))
