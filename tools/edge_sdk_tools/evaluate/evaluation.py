"""Agreement: how far one model finds what another finds, on the same images, without any label.

Owns the matching and its figures. A reference that finds nothing is a failure, never an agreement of 1.

What a reader should know before believing figures.

evaluate: one model on one set of images, by its labels, by another model, or by both.

Requires a model.toml or a bundle and images that did not calibrate it; ensures that every figure has its interval.

Quality against labels: the figures of one model, as functions of how often each image counts.

Owns which figures a task has; the arithmetic of each stands in a file of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import AccuracyGateError, DataError, UsageError
from edge_sdk.core.frame import Detections, Result, Segmentation
from edge_sdk_tools.datasets.dataset import BoxTruth, ClassTruth, Format
from edge_sdk_tools.datasets.images import Skipped
from edge_sdk_tools.evaluate.average_precision import (
    AveragePrecision,
    Boxes,
    Judged,
    LabelledBoxes,
    box_overlaps,
    judge,
)
from edge_sdk_tools.evaluate.classification import divergences, ranks_of, restricted, top_columns
from edge_sdk_tools.evaluate.model import Subject, open_subjects
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up
from edge_sdk_tools.evaluate.predictions import Observed, OutputError, observe, output_errors
from edge_sdk_tools.evaluate.segmentation import Overlap, mean_iou
from edge_sdk_tools.evaluate.statistics import (
    RESAMPLES,
    Figure,
    Metric,
    compare,
    figure_of,
    mean_of,
    ratio_of,
    resample,
    share_metric,
)

MATCH_IOU = 0.5
_DESCRIBED = 3


def agreement_metrics(observed: Observed) -> tuple[Metric, ...]:
    """How far the first of two models agrees with the second; what a gate judges stands first.

    Raises:
        AccuracyGateError: when the second finds nothing on any image, or neither finds what both know.
    """
    if observed.task == "classification":
        rows, reference = class_rows(observed, 0), class_rows(observed, 1)
        return (
            share_metric("top-1 agreement", said(observed, 0) == said(observed, 1)),
            Metric("KL divergence (nats)", mean_of(divergences(reference, rows)), bounds=(0.0, math.inf)),
        )
    if observed.task == "detection":
        found = pair_counts(observed)
        if not found[:, 2].any():
            raise AccuracyGateError(_found_nothing(observed, "thresholds.confidence"))
        return (Metric("detections matched (F1)", ratio_of(2 * found[:, 0], found[:, 1] + found[:, 2])),)
    between = [record.between for record in observed.records if record.between is not None]
    if not any(overlap.either.any() for overlap in between):
        names = " and ".join(p.subject.name for p in observed.participants)
        raise AccuracyGateError(
            f"{names} find nothing that both know on {len(between)} images, so nothing can be compared"
        )
    return (Metric("mIoU of both", mean_iou(between)),)


def class_rows(observed: Observed, which: int) -> NDArray[np.float64]:
    """A classifier's probabilities of what both can say, each row's sum 1.

    Returns:
        float64 (N, K), of the common classes; (N, K + 1) when both have a background, which stands last.
    """
    common = observed.classes + all(p.subject.background for p in observed.participants)
    return restricted(observed.probabilities(which), np.arange(common))


def said(observed: Observed, which: int) -> NDArray[np.int64]:
    """What a classifier holds for the likeliest: a common class, or K for its background; int64 (N,)."""
    return top_columns(observed.probabilities(which))


def found_boxes(observed: Observed, which: int) -> list[Boxes]:
    """What a detector found in each image, down to the threshold of its own model.toml."""
    confidence = observed.participants[which].subject.spec.thresholds.confidence
    rows = [record.rows[which] for record in observed.records]
    return [row.above(confidence) for row in rows if isinstance(row, Boxes)]


def pair_counts(observed: Observed) -> NDArray[np.float64]:
    """Float64 (N, 3), of each image: detections matched, the first model's, the second's."""
    pairs = zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True)
    return np.array([(len(match(a, b)), len(a.confidences), len(b.confidences)) for a, b in pairs], np.float64).reshape(
        -1, 3
    )


def match(got: Boxes, expected: Boxes, iou: float = MATCH_IOU) -> list[tuple[int, int]]:
    """Pairs of detections, one to one: same class, overlap at least `iou`, most confident of `got` first."""
    if not len(got.confidences) or not len(expected.confidences):
        return []
    overlaps = box_overlaps(got.boxes_xyxy, expected.boxes_xyxy, np.zeros(len(expected.confidences), np.bool_))
    overlaps[got.class_ids[:, None] != expected.class_ids[None, :]] = 0.0
    pairs = []
    for index, row in enumerate(overlaps):
        best = int(row.argmax())
        if row[best] >= iou:
            pairs.append((index, best))
            overlaps[:, best] = 0.0
    return pairs


def describe(result: Result, labels: Sequence[str], *, background_class: bool = False) -> str:
    """What a result says, for people: the strongest three, by the first of their names."""
    shift = 1 if background_class else 0
    if isinstance(result, Segmentation):
        order = np.argsort(-result.shares, kind="stable")
        order = order[result.shares[order] > 0]
        pairs = [(int(c), float(result.shares[c])) for c in order]
    else:
        pairs = [(int(c), float(p)) for c, p in zip(result.class_ids, result.confidences, strict=True)]
    named = [f"{labels[class_id + shift].split(',')[0]} {share:.0%}" for class_id, share in pairs[:_DESCRIBED]]
    more = len(pairs) - len(named)
    found = ", ".join(named) or "nothing"
    return f"{found} and {more} more" if more > 0 and isinstance(result, Detections) else found


def _found_nothing(observed: Observed, key: str) -> str:
    name = observed.participants[1].subject.name
    return (
        f"{name} finds nothing on {len(observed.records)} evaluation images, so nothing can be compared; give "
        f"images that show what it detects, or lower its {key}"
    )


ENOUGH_IMAGES = 25
_SAME = 1e-4  # relative: scores that move by less are the same


def doubts_about(observed: Observed) -> tuple[str, ...]:
    """Return one line for each warning about the evaluated models."""
    doubts = [line for which in range(len(observed.participants)) if (line := constant_answer(observed, which))]
    if len(observed.records) < ENOUGH_IMAGES:
        doubts.append(f"too few images to judge much: {len(observed.records)}, give {ENOUGH_IMAGES} or more")
    if observed.dataset.conflicts:
        doubts.append(f"images of equal content with different labels: {observed.dataset.conflicts}, the first counts")
    return tuple(doubts)


def constant_answer(observed: Observed, which: int) -> str:
    """What is wrong with a model that says the same of every image; empty when it does not."""
    name, count = observed.participants[which].subject.name, len(observed.records)
    advice = "check input.mean, std, color and layout, and the weights with `edge-sdk check`"
    if count < 2:
        return ""
    if observed.task == "detection":
        rows = [record.rows[which] for record in observed.records]
        if not any(isinstance(row, Boxes) and len(row.confidences) for row in rows):
            return f"{name} finds nothing on any of {count} images; {advice}"
    if len({record.fingerprints[which] for record in observed.records}) == 1 or _scores_stand(observed, which):
        return f"{name} gives the same output for all {count} images; are they all alike? If not, {advice}"
    return ""


def _scores_stand(observed: Observed, which: int) -> bool:
    """Whether a classifier's scores hardly move; in logarithms, for what is nearly sure differs in what it excludes."""
    if observed.task != "classification":
        return False
    scores = np.log(np.maximum(observed.probabilities(which), np.finfo(np.float64).tiny))
    return float(np.ptp(scores, axis=0).max()) < _SAME


TOP_K = (1, 5)


def quality_metrics(observed: Observed, which: int = 0) -> tuple[Metric, ...]:
    """Figures of one of the models against the labels; what a gate judges stands first.

    Raises:
        DataError: detection images or masks on which nothing is labelled.
    """
    if observed.task == "classification":
        places = class_places(observed, which)
        return tuple(share_metric(f"top-{k}", places < k) for k in TOP_K if k == 1 or k < observed.classes)
    if observed.task == "detection":
        curve = AveragePrecision(judged_boxes(observed, which))
        if not len(curve.class_ids):
            raise DataError(f"nothing is labelled on {len(observed.records)} images, expected boxes on some of them")
        return (
            Metric("mAP50-95", curve.mean()),
            Metric("mAP50", curve.mean(1)),
        )
    overlaps = [row for row in (record.rows[which] for record in observed.records) if isinstance(row, Overlap)]
    if not any(overlap.either.any() for overlap in overlaps):
        raise DataError(f"nothing is labelled on {len(observed.records)} masks, expected classes and not only 255")
    return (Metric("mIoU", mean_iou(overlaps)),)


def true_classes(observed: Observed) -> NDArray[np.int64]:
    """The class of every image, int64 (N,)."""
    return np.array([t.class_id for t in observed.dataset.truths or () if isinstance(t, ClassTruth)], np.int64)


def class_places(observed: Observed, which: int) -> NDArray[np.int64]:
    """Return the rank of each image's true class in a classifier's answer, 0 for the likeliest; int64 (N,)."""
    return ranks_of(observed.probabilities(which), true_classes(observed))


def judged_boxes(observed: Observed, which: int, *, confident: bool = False) -> list[Judged]:
    """A detector's boxes against the labels, image by image.

    Args:
        observed: detectors on labelled images.
        which: of the models.
        confident: only what its own model.toml lets through, and not the whole curve.
    """
    least = observed.participants[which].subject.spec.thresholds.confidence if confident else 0.0
    judged = []
    for record, truth in zip(observed.records, observed.dataset.truths or (), strict=True):
        boxes = record.rows[which]
        if isinstance(boxes, Boxes) and isinstance(truth, BoxTruth):
            labelled = LabelledBoxes(truth.in_pixels(record.size_wh), truth.class_ids, truth.crowd)
            judged.append(judge(boxes.above(least), labelled))
    return judged


OnProgress = Callable[[str, int, int], None]
"""Called with a step's name, how much is done, and how much there is."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an evaluation.

    Attributes:
        model, reference: their names; no reference where none was given.
        task: of the model.
        data: where the images are, and `format` as what they were read.
        images: that were measured on.
        quality: against the labels, beside the reference's where there is one; empty without labels.
        agreement: with the reference; empty without one.
        outputs: raw outputs against the reference's, where the shapes are the same.
        skipped: files that could not be read.
        calibrated: images left out because they calibrated the model.
        duplicates: images left out because their content is there already.
        resamples: of the images, behind every interval.
        images_per_second: all models, reading and decoding included.
        warnings: what a reader should know before believing.
    """

    model: str
    reference: str | None
    task: str
    data: str
    format: Format
    images: int
    quality: tuple[Figure, ...]
    agreement: tuple[Figure, ...]
    outputs: tuple[OutputError, ...]
    skipped: tuple[Skipped, ...]
    calibrated: int
    duplicates: int
    resamples: int
    images_per_second: float
    warnings: tuple[str, ...]


def evaluate(
    model: Path,
    data: Path | None = None,
    *,
    reference: Path | None = None,
    max_images: int | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> Evaluation:
    """Measure a model.

    Args:
        model: a model.toml or a bundle.
        data: images, labelled or not; model.toml's [data] evaluation by default.
        reference: another model.toml or bundle to agree with, and to compare with on labels.
        max_images: measure on so many at most, evenly spread.
        jobs: threads; one a core by default.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it.
    """
    check_there(data)
    on_progress("load", 0, 1)
    subjects = open_subjects([model, *([reference] if reference else [])])
    on_progress("load", 1, 1)
    participants = pair_up(subjects, _renamed(subjects[0], reference))
    data = data or _data_of(subjects[0], model)
    dataset, calibrated = choose_images(subjects, data, max_images)
    if dataset.truths is None and reference is None:
        raise UsageError(
            f"{data}: no labels in it, so there is nothing to measure with: give labelled images (docs/data.md), or a "
            "model to agree with: --reference model.toml"
        )
    observed = observe(participants, dataset, lambda done: on_progress("evaluate", done, len(dataset)), jobs)
    return summarise(observed, str(data), calibrated, on_progress)


def summarise(
    observed: Observed,
    data: str,
    calibrated: int = 0,
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> Evaluation:
    """Every figure of what was observed: of one model, or of one beside another.

    Args:
        observed: one model, or two; the second is the reference.
        data: what reports call the images.
        calibrated: images that were left out before.
        on_progress: for a progress bar.

    Raises:
        AccuracyGateError: the reference finds nothing on any image.
        DataError: images of which nothing is labelled.
    """
    names = [p.subject.name for p in observed.participants]
    paired = len(names) == 2
    weights = resample(len(observed.records))
    metrics = [quality_metrics(observed, which) for which in range(len(names))] if observed.dataset.truths else []
    between = agreement_metrics(observed) if paired else ()
    total = len(between) + len(metrics[0] if metrics else ())
    quality: list[Figure] = []
    for mine, *theirs in zip(*metrics, strict=True):
        on_progress("intervals", len(quality), total)
        quality.append(compare(mine, theirs[0], weights) if theirs else figure_of(mine, weights))
    agreement = [figure_of(metric, weights) for metric in between]
    on_progress("intervals", total, total)
    return Evaluation(
        model=names[0],
        reference=names[1] if paired else None,
        task=observed.task,
        data=data,
        format=observed.dataset.format,
        images=len(observed.records),
        quality=tuple(quality),
        agreement=tuple(agreement),
        outputs=output_errors([record.products for record in observed.records]),
        skipped=(*observed.dataset.images.skipped, *observed.skipped),
        calibrated=calibrated,
        duplicates=observed.dataset.duplicates,
        resamples=RESAMPLES,
        images_per_second=len(observed.records) / observed.seconds,
        warnings=doubts_about(observed),
    )


def _data_of(subject: Subject, path: Path) -> Path:
    if isinstance(subject.spec, ModelSpec) and subject.spec.data.evaluation:
        return Path(subject.spec.data.evaluation)
    raise UsageError(f"{path}: no images to measure on: give --data, or [data] evaluation in model.toml")


def _renamed(subject: Subject, reference: Path | None) -> Mapping[str, str]:
    """What the model's own [teacher.labels] says, when it is its teacher that it is measured beside."""
    teacher = subject.spec.teacher if isinstance(subject.spec, ModelSpec) else None
    if teacher is None or reference is None or Path(teacher.model).resolve() != reference.resolve():
        return {}
    return teacher.labels
