"""Judge the float model by its own answers, before anything is measured beside it.

A wrong decoder, normalisation or channel order gives nonsense, with which a quantized model agrees perfectly. A model
that sees nothing is therefore refused, and the description of its input and outputs that fits better is named: other
decoders that read the same shapes, the usual normalisations, and red and blue exchanged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import EdgeError, ModelError
from edge_sdk.tasks.decoders import DECODERS
from edge_sdk.tasks.spec import TRAITS
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import Observed, observe
from edge_sdk_tools.evaluate.statistics import Figure, figure_of, resample
from edge_sdk_tools.evaluate.tasks import TASKS

_IMAGES = 64
_FEW = 16  # images on which a description that may fit better is tried
_BLIND = 0.02  # quality, 0-1, that nobody would ship
_SLACK = 0.01  # of confidences above 1 and below 0
_SECONDS = 10.0  # for descriptions that may fit better
_BY_CHANCE = 0.02  # probability at most that as many images prefer another description by chance
_GAIN = 0.02  # of the mean confidence, or of quality: less is not worth a word

_NORMALISATIONS: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = (
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
)
"""Mean and standard deviation in the order red, green, blue; the last are those of ImageNet."""


class _Sight(msgspec.Struct, frozen=True, eq=False):
    """What a model sees on some images: float64 (N,), the highest confidence of each, or 0; None for class maps.

    The figure is the first one by the labels; `problem` says why its answers cannot be right.
    """

    strongest: NDArray[np.float64] | None
    figure: Figure | None
    problem: str

    @property
    def rank(self) -> float:
        """Return what is compared: quality, or else the mean of the highest confidences."""
        if self.figure is not None:
            return self.figure.value.value
        return 0.0 if self.strongest is None else float(self.strongest.mean())

    @property
    def words(self) -> str:
        """Say for people how good it is."""
        if self.figure is not None:
            return f"{self.figure.name} is {self.rank:.3g}"
        return f"the mean of the highest confidences is {self.rank:.2f}"


def check_float_model(fp32: Subject, dataset: Dataset) -> tuple[str, ...]:
    """Refuse a float model that sees nothing, and warn of a description that fits it better.

    It is asked about images that did not calibrate it, labelled or not. Warnings are returned, each a line.

    Raises:
        ModelError: its confidences are none, it finds nothing on most images, or next to nothing of the labels; the
            message names the description that fits better, where one of the usual does.
    """
    images = dataset.spread(_IMAGES)
    own = _look(fp32, images)
    if own.problem:
        better = _best_description(fp32, dataset.spread(_FEW))
        step = f"{better}; correct model.toml" if better else TASKS[fp32.spec.task].advice
        raise ModelError(f"{fp32.name}, before it is quantized: {own.problem}; {step}")
    exchanged = _exchanged(fp32.spec) if isinstance(fp32.spec, ModelSpec) else None
    if exchanged is None or own.strongest is None:
        return ()
    other = _look(_described(fp32, exchanged), images)
    if not _is_better(other, own):
        return ()
    color = exchanged.input.color
    return (f'{fp32.name}: {own.words}, and with color = "{color}" {other.rank:.3g}; is color in model.toml right?',)


def blindness(observed: Observed) -> str:
    """Say why the answers of an evaluated float model cannot be right, and what fits better; or ""."""
    subject = observed.participants[0].subject
    if not isinstance(subject.spec, ModelSpec):
        return ""
    problem = _sight(observed).problem
    if not problem:
        return ""
    step = _best_description(subject, observed.dataset.spread(_FEW)) or TASKS[observed.task].advice
    return f"{subject.name}: {problem}; {step}"


def _look(subject: Subject, dataset: Dataset) -> _Sight:
    return _sight(observe(pair_up([subject]), dataset))


def _sight(observed: Observed) -> _Sight:
    strongest = TASKS[observed.task].strongest(observed)
    figure = None
    if observed.dataset.truths is not None:
        metric = TASKS[observed.task].quality(observed, 0)[0]
        figure = figure_of(metric, resample(len(observed.records)))
    return _Sight(strongest, figure, _problem(observed, strongest, figure))


def _problem(observed: Observed, strongest: NDArray[np.float64] | None, figure: Figure | None) -> str:
    count = len(observed.records)
    if strongest is not None and strongest.max(initial=0.0) > 1 + _SLACK:
        return f"its confidences reach {strongest.max():.3g} on {count} images, expected 0 to 1"
    if figure is not None and figure.value.high < _BLIND:
        return f"on {count} labelled images its {figure.name} is {figure.value.value:.2g}"
    return TASKS[observed.task].problem(observed, has_labels=figure is not None)


def _best_description(fp32: Subject, dataset: Dataset) -> str:
    """Name the description with which a model sees most, where one of the usual has it see anything; or ""."""
    until = time.monotonic() + _SECONDS
    best, words = 0.0, ""
    for name, spec in _others(fp32):
        if time.monotonic() > until:
            break
        try:
            sight = _look(_described(fp32, spec), dataset)
        except EdgeError:
            continue  # it cannot read the outputs at all
        if not sight.problem and sight.rank > best:
            best, words = sight.rank, f"with {name} {sight.words}"
    return words


def _described(fp32: Subject, spec: ModelSpec) -> Subject:
    return Subject(fp32.name, spec, fp32.labels, fp32.session, fp32.digest)


def _is_better(sight: _Sight, own: _Sight) -> bool:
    """Tell whether more images than by chance speak for another description, and enough is gained."""
    if sight.problem or sight.rank < own.rank + _GAIN or sight.strongest is None or own.strongest is None:
        return False
    wins, losses = int((sight.strongest > own.strongest).sum()), int((sight.strongest < own.strongest).sum())
    return _chance(wins, wins + losses) <= _BY_CHANCE


def _chance(wins: int, count: int) -> float:
    """Return the probability of as many wins or more, where both outcomes are as likely: the sign test."""
    return float(sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count)


def _others(fp32: Subject) -> Iterator[tuple[str, ModelSpec]]:
    """Yield other descriptions of the same model, each with the lines of model.toml that differ."""
    spec = fp32.spec
    if not isinstance(spec, ModelSpec):
        return
    shapes = [tuple(shape) for shape in fp32.session.output_shapes]
    for decoder in DECODERS[spec.task].values():
        if decoder.name == spec.decoder or decoder.needs or TRAITS[spec.task].is_of_whole_picture:
            continue  # the outputs of a classifier show by themselves whether they are probabilities
        try:
            other = msgspec.structs.replace(spec, decoder=decoder.name)
        except ValueError:
            continue  # it needs keys that are not there
        if decoder.is_likely(other, len(fp32.labels), shapes):
            yield f'decoder = "{decoder.name}"', other
    exchanged = _exchanged(spec)
    for described in (spec, *([exchanged] if exchanged else [])):
        for mean, std in _NORMALISATIONS:
            given = described.input
            order = -1 if given.color == "BGR" else 1
            changed = msgspec.structs.replace(
                given, mean=mean[::order][: given.channels], std=std[::order][: given.channels]
            )
            color = "" if described is spec else f'color = "{given.color}", '
            lines = f"{color}mean = {list(changed.mean)} and std = {list(changed.std)}"
            yield lines, msgspec.structs.replace(described, input=changed)


def _exchanged(spec: ModelSpec) -> ModelSpec | None:
    given = spec.input
    if given.color == "GRAY":
        return None
    changed = msgspec.structs.replace(
        given, color="BGR" if given.color == "RGB" else "RGB", mean=given.mean[::-1], std=given.std[::-1]
    )
    return msgspec.structs.replace(spec, input=changed)
