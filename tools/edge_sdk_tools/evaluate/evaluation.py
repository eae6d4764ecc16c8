"""evaluate: one model on one set of images, by its labels, by another model, or by both.

Requires a model.toml or a bundle and images that did not calibrate it; ensures that every figure has its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import UsageError
from edge_sdk_tools.dataset import Format, Skipped
from edge_sdk_tools.evaluate.agreement import agreement_metrics
from edge_sdk_tools.evaluate.doubts import doubts_about
from edge_sdk_tools.evaluate.figures import Figure, compare, figure_of
from edge_sdk_tools.evaluate.observe import Observed, observe
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up
from edge_sdk_tools.evaluate.quality import quality_metrics
from edge_sdk_tools.evaluate.raw_outputs import OutputError, output_errors
from edge_sdk_tools.evaluate.resampling import RESAMPLES, resample
from edge_sdk_tools.evaluate.subject import Subject, open_subjects

OnProgress = Callable[[str, int, int], None]
"""Called with a step's name, how much is done, and how much there is."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

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
