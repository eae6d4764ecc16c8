"""Judge the float model by its own answers, before anything is measured beside it.

A wrong decoder, normalisation or channel order gives nonsense, with which a quantized model agrees perfectly. A model
that sees nothing is therefore refused. Other descriptions of the same file are tried beside model.toml's: red and
blue exchanged, other decoders that read the same shapes, and the usual normalisations. They run on a few images first,
and on more unless they lose; one is named when the images prefer it by more than chance (a signed-rank test). Exchanged
classes and boxes of another size show in labels only; the metrics of a task tell them. Without labels a detector must
find the same objects in an image and in its mirror image: numbers of the wrong size make objects of noise, with high
confidences.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import EdgeError, ModelError
from edge_sdk.core.frame import Detections, Image
from edge_sdk.tasks.decoders import DECODERS
from edge_sdk_tools.datasets.dataset import Dataset
from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.detection import match
from edge_sdk_tools.evaluate.likeness import Objects
from edge_sdk_tools.evaluate.model import Subject
from edge_sdk_tools.evaluate.participants import pair_up
from edge_sdk_tools.evaluate.predictions import Look, Observed, look_at, observe
from edge_sdk_tools.evaluate.statistics import chance_of_gain, figure_of, resample
from edge_sdk_tools.evaluate.tasks import TASKS

_IMAGES = 64
_ROUNDS = (4, 8, 16, 32, _IMAGES)  # images that have been used for other descriptions at the end of each round
_BLIND = 0.02  # quality, 0-1, below which a model finds as good as nothing
_SECONDS = 10.0  # of CPU time, for trying other descriptions
_BY_CHANCE = 0.005  # highest p-value, in each round, at which another description counts as better
_LOST = 0.1  # highest p-value at which another description counts as worse, and is given up
_GAIN = 0.05  # least gain, relative to the mean of model.toml's own description, that is reported
_GOLDEN = 0.618033988749895

_MIRRORED_IMAGES = 12
_FEWEST_IMAGES, _FEWEST_OBJECTS = 8, 20  # fewer tell nothing
_TOO_FEW, _NEARLY_ALL = 0.8, 0.9
"""Shares of a detector's objects that are in the mirror image too: below the first a model is doubted, above the second
another description is recommended. Measured with NanoDet on 40 images of COCO: .94 to 1.0, in dark images and a video
as well; with a std of 1, which gives three times as many objects, .36 to .68."""

_NORMALISATIONS: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = (
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),
    ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
)
"""Mean and standard deviation in the order red, green, blue; the last are those of ImageNet."""


def check_float_model(fp32: Subject, dataset: Dataset) -> tuple[str, ...]:
    """Refuse a float model that sees nothing, and return a line for each doubt about one that sees something.

    At most 64 of the images are used, with labels or without; they may calibrate the model later. A ModelError says
    that its confidences lie outside 0-1, or that it finds nothing on most images, or next to nothing of what is
    labelled, and names a usual description that fits better, if there is one.
    """
    problem, doubt = _judged(observe(pair_up([fp32]), dataset.spread(_IMAGES)))
    if problem:
        raise ModelError(f"{fp32.name}, before it is quantized: {problem}")
    return (f"{fp32.name}: {doubt}",) if doubt else ()


def doubt_about(observed: Observed) -> str:
    """Return the problem or doubt that `check_float_model` finds in the first evaluated model; "" if there is none."""
    name = observed.participants[0].subject.name
    said = next(filter(None, _judged(observed)), "")
    return f"{name}: {said}" if said else ""


def _judged(observed: Observed) -> tuple[str, str]:
    """Return why a model's answers cannot be right, with what to do, and otherwise a doubt about them; "" for none."""
    subject, is_labelled = observed.participants[0].subject, observed.dataset.truths is not None
    if not isinstance(subject.spec, ModelSpec):
        return "", ""
    problem, by_labels = _problem(observed), TASKS[observed.task].doubt(observed) if is_labelled else ""
    mirrored = observed.dataset.spread(_MIRRORED_IMAGES)
    if not (problem or is_labelled) and (noise := _noise_in(subject, subject.spec, mirrored)):
        return noise, ""
    better = _better(subject, subject.spec, observed, is_blind=problem != "")
    if problem:
        steps = [f"{better}; correct model.toml" if better else "", by_labels]
        return "; ".join(filter(None, [problem, *(steps if any(steps) else [TASKS[observed.task].advice])])), ""
    if not better:
        return "", by_labels
    return "", f"{better}; is that line of model.toml right?"


def _problem(observed: Observed) -> str:
    """Return why a model's answers cannot be right, by labels if there are any; "" if they may be right."""
    count = len(observed.records)
    problem = TASKS[observed.task].problem(observed)
    if observed.dataset.truths is not None and "confidences" not in problem:
        metric = TASKS[observed.task].quality(observed, 0)[0]
        value = float(metric.statistic(np.ones((1, count)))[0])
        if value < _BLIND and figure_of(metric, resample(count)).value.high < _BLIND:
            return f"on {count} labelled images its {metric.name} is {value:.2g}"
    return problem


def _noise_in(subject: Subject, spec: ModelSpec, images: Dataset) -> str:
    """Return that a detector's objects are missing in mirror images, and the description that finds them; else ""."""
    until = time.process_time() + _SECONDS
    own, count = _mirrored(subject, spec, images) if len(images) >= _FEWEST_IMAGES else (1.0, 0)
    if own >= _TOO_FEW or count < _FEWEST_OBJECTS:
        return ""
    best, said = 0, ""
    for rival in _others(subject, spec):
        share, found = _mirrored(subject, rival.spec, images) if time.process_time() < until else (0.0, 0)
        # Objects of noise are everywhere: a description with more of them is none to recommend.
        if share > _NEARLY_ALL and count >= found > max(best, _FEWEST_OBJECTS - 1):
            best, said = found, f"with {rival.lines} {share:.0%} of {found} are; correct model.toml, or give labels"
    return said and (
        f"of the {count} objects in {len(images)} images only {own:.0%} are in the mirror images too, as if it saw "
        f"noise; {said}"
    )


def _mirrored(subject: Subject, spec: ModelSpec, images: Dataset) -> tuple[float, int]:
    """Return the share of a detector's objects, 0-1, that are in the mirror image too, and the number of its objects.

    Models of other tasks pass with a share of 1, and those that tell details of objects, which are not mirrored.
    """
    if spec.task != "detection":
        return 1.0, 0
    # Half of the confidence is enough: a right model's objects seldom disappear, but often fall below a threshold.
    thresholds = msgspec.structs.replace(spec.thresholds, confidence=spec.thresholds.confidence / 2)
    half = msgspec.structs.replace(spec, thresholds=thresholds)

    def open_worker() -> Look[tuple[int, int]]:
        plain, other = (msgspec.structs.replace(subject, spec=one, memory=None).open() for one in (spec, half))

        def look(_index: int, image: Image) -> tuple[int, int]:
            found, mirrored = plain(image).result, other(np.ascontiguousarray(image[:, ::-1])).result
            assert isinstance(found, Detections)
            assert isinstance(mirrored, Detections)
            back = mirrored.xyxy * [-1, 1, -1, 1] + [image.shape[1], 0, image.shape[1], 0]
            matched = match(_classless(found, found.xyxy), _classless(mirrored, back[:, [2, 1, 0, 3]]))
            return (0, 0) if Objects.found(found).detail else (len(matched), len(found))

        return look

    try:
        seen = look_at(images.images, open_worker).values
    except EdgeError:
        return 0.0, 0  # it cannot read the outputs
    count = sum(found for _, found in seen)
    return (sum(matched for matched, _ in seen) / count if count else 1.0), count


def _classless(found: Detections, xyxy: NDArray[np.floating]) -> Boxes:  # an arrow changes its class in a mirror
    return Boxes(xyxy.astype(np.float64), found.confidence.astype(np.float64), np.zeros_like(found.class_id))


class _Rival(msgspec.Struct, eq=False):
    """Another description of the same file: the lines of model.toml that differ, and the evidence for it so far."""

    lines: str
    spec: ModelSpec
    is_sure: bool = False  # its confidences can be compared: other numbers make more contrast, and models surer
    evidence: NDArray[np.float64] = np.empty((0, 2))  # as `_evidence_of` has it


_LABELS, _CERTAINTY = 0, 1


def _evidence_of(observed: Observed) -> NDArray[np.float64]:
    """Return for each image the evidence by its labels and that without them, 0 if unknown: float64 (N, 2)."""
    task, nothing = TASKS[observed.task], np.zeros(len(observed.records))
    by_labels = task.evidence(observed, labelled=True) if observed.dataset.truths is not None else None
    certainty = task.evidence(observed, labelled=False)
    return np.stack([nothing if one is None else one for one in (by_labels, certainty)], axis=1)


def _better(subject: Subject, spec: ModelSpec, observed: Observed, *, is_blind: bool) -> str:
    """Return with which other lines of model.toml the model answers better, and how much; "" if with none."""
    until, dataset = time.process_time() + _SECONDS, observed.dataset
    own = _evidence_of(observed) * (not is_blind)
    if not own.any() and not is_blind:
        return ""  # class maps without labels tell nothing
    spread = dataset.images.places_spread(min(_IMAGES, len(dataset)))
    # In steps of the golden ratio even the first few images are spread evenly over the set.
    places = [spread[i] for i in sorted(range(len(spread)), key=lambda i: i * _GOLDEN % 1)]
    by_labels = dataset.truths is not None
    rivals = [rival for rival in _others(subject, spec) if rival.is_sure or by_labels or is_blind]
    for begin, end in pairwise((0, *_ROUNDS)):
        images, better = dataset.picked(places[begin:end]), list[tuple[bool, float, str]]()
        for rival in rivals.copy():
            if not len(images) or time.process_time() > until:
                return ""
            which = _LABELS if by_labels and (is_blind or not rival.is_sure) else _CERTAINTY
            if not _is_sound(rival, subject, images):
                rivals.remove(rival)
                continue
            mine, now = own[places[:end]], float(rival.evidence[:, which].mean())
            more, before = rival.evidence - mine, float(mine[:, which].mean())
            gains = more[:, _LABELS].mean() >= 0 and now > before * (1 + _GAIN)
            gains = gains and chance_of_gain(more[:, which]) <= _BY_CHANCE
            share, count = 1.0, 0
            if gains and not by_labels:
                share, count = _mirrored(subject, rival.spec, dataset.picked(places[:end]))
            if gains and share > _NEARLY_ALL and not 0 < count < _FEWEST_OBJECTS:
                what = "the score of an image by its labels is" if which == _LABELS else TASKS[observed.task].certainty
                instead = "" if is_blind else f" instead of {before:.2f}"
                words = f"with {rival.lines} {what} {now:.2f} on average{instead}"
                better.append((rival.is_sure and not is_blind, now, words))
            elif chance_of_gain(-more[:, which]) <= _LOST or (is_blind and now < _BLIND):
                rivals.remove(rival)
        if better:
            return max(better)[2]
    return ""


def _is_sound(rival: _Rival, subject: Subject, images: Dataset) -> bool:
    """Run another description on some images and add their evidence; return whether its answers can be right."""
    try:
        observed = observe(pair_up([msgspec.structs.replace(subject, spec=rival.spec, memory=None)]), images)
    except EdgeError:
        return False  # it cannot read the outputs
    rival.evidence = np.concatenate([rival.evidence, _evidence_of(observed)])
    return not TASKS[observed.task].problem(observed)


def _others(subject: Subject, spec: ModelSpec) -> Iterator[_Rival]:
    """Yield other descriptions of the same file, the one with red and blue exchanged first."""
    inputs = [spec.input]
    if spec.input.color != "GRAY":
        color = "BGR" if spec.input.color == "RGB" else "RGB"
        mean, std = spec.input.mean[::-1], spec.input.std[::-1]
        inputs.append(msgspec.structs.replace(spec.input, color=color, mean=mean, std=std))
        yield _Rival(f'color = "{color}"', msgspec.structs.replace(spec, input=inputs[1]), is_sure=True)
    shapes = [tuple(shape) for shape in subject.session.output_shapes]
    for decoder in DECODERS[spec.task].values():
        if decoder.name == spec.decoder or decoder.needs or spec.task == "classification":
            continue  # the outputs of a classifier show by themselves whether they are probabilities
        try:
            other = msgspec.structs.replace(spec, decoder=decoder.name)
        except ValueError:
            continue  # it needs keys that are not there
        if decoder.is_likely(other, len(subject.labels), shapes):
            yield _Rival(f'decoder = "{decoder.name}"', other)
    for base in inputs:
        for usual in _NORMALISATIONS:
            mean, std = (values[:: -1 if base.color == "BGR" else 1][: base.channels] for values in usual)
            changed = msgspec.structs.replace(base, mean=mean, std=std)
            if changed not in inputs:
                line = "" if base is spec.input else f'color = "{base.color}", '
                lines = f"{line}mean = {list(mean)} and std = {list(std)}"
                yield _Rival(lines, msgspec.structs.replace(spec, input=changed))
