"""The step `evaluate`: measure one model on one set of images, against labels, against another model, or both.

The step requires a model.toml or a bundle, and leaves out images that calibrated it. It ensures that every figure has a
confidence interval, and adds warnings about the images and the models. The model's task determines which figures there
are (`tasks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import UsageError
from edge_sdk.core.frame import Result
from edge_sdk.tasks.detection import entry_of
from edge_sdk.tasks.spec import TRAITS
from edge_sdk_tools.datasets.dataset import Format
from edge_sdk_tools.datasets.images import Skipped, is_folder
from edge_sdk_tools.evaluate.float_model import doubt_about
from edge_sdk_tools.evaluate.metrics import lost_class
from edge_sdk_tools.evaluate.model import Subject, open_subjects
from edge_sdk_tools.evaluate.participants import check_there, choose_images, pair_up
from edge_sdk_tools.evaluate.predictions import Observed, OutputError, observe, output_errors
from edge_sdk_tools.evaluate.statistics import RESAMPLES, Figure, compare, figure_of, resample
from edge_sdk_tools.evaluate.tasks import TASKS
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent

ENOUGH_IMAGES = 25
_DESCRIBED = 3
_SPLITS = ("valid", "val", "test", "train")  # folders of a data set, each with images/ and labels/


def warnings_about(observed: Observed) -> tuple[str, ...]:
    """Return one line for each warning about the evaluated models."""
    doubts = [line for which in range(len(observed.participants)) if (line := constant_answer(observed, which))]
    if len(observed.records) < ENOUGH_IMAGES:
        doubts.append(
            f"too few images to judge much: measured on {len(observed.records)}, expected {ENOUGH_IMAGES} or more"
        )
    if observed.dataset.conflicts:
        doubts.append(f"images of equal content with different labels: {observed.dataset.conflicts}, the first counts")
    if observed.dataset.truths and (unmeasured := TASKS[observed.task].unmeasured(observed)):
        doubts.append(unmeasured)
    return tuple(doubts)


def constant_answer(observed: Observed, which: int) -> str:
    """Return a warning about a model that gives the same answer for every image; otherwise an empty string."""
    name, count, task = observed.participants[which].subject.name, len(observed.records), TASKS[observed.task]
    advice = "check input.mean, std, color and layout, and the weights with `edge-sdk check`"
    if count < 2:
        return ""
    if task.finds_nothing(observed, which):
        return f"{name} finds nothing on any of {count} images; {advice}"
    if task.stands_still(observed, which):
        return f"{name} gives the same output for all {count} images; are they all alike? If not, {advice}"
    return ""


def describe(result: Result) -> str:
    """Describe a result for people: its three strongest items, each by the first of its names."""
    entry = entry_of(result)
    items = entry.items(result, lambda class_id: result.label(class_id).split(",")[0])
    named = [f"{item.label} {item.strength:.0%}" for item in items[:_DESCRIBED]]
    more = len(items) - len(named)
    found = ", ".join(named) or "nothing"
    return f"{found} and {more} more" if more > 0 and TRAITS[entry.task].has_objects else found


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an evaluation.

    Attributes:
        quality: figures against the labels, with the reference's where there is one; empty without labels.
        agreement: figures against the reference's results; empty without a reference.
        outputs: errors of the raw outputs against the reference's, where the shapes are the same.
        calibrated: how many images were left out because they calibrated one of the models.
        duplicates: how many images were left out because another one has the same content.
        images_per_second: rate of all models together, with reading and decoding the images.
        lost_class: which class the model loses beside its reference, see `metrics.lost_class`; empty for none.
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
    lost_class: str = ""

    @property
    def gated(self) -> tuple[Figure, ...]:
        """The figures whose loss beside the reference a build refuses; none without labels."""
        return tuple(figure for figure in self.quality if figure.is_gated and figure.reference is not None)

    @property
    def figure(self) -> Figure:
        """The figure that stands for a model: quality by labels, and without them agreement."""
        return (*self.quality, *self.agreement)[0]


def evaluate(
    model: Path,
    data: Path | None = None,
    *,
    reference: Path | None = None,
    max_images: int | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
) -> Evaluation:
    """Measure a model.toml or a bundle on images, against their labels, against a reference, or against both.

    `data` is a folder of images, or a .json of COCO; by default model.toml's [data] evaluation. At most `max_images` of
    it, evenly spread, are measured in `jobs` threads, by default one for each core. A UsageError says that there are no
    images, or neither labels nor a reference; a ModelError that a model cannot be loaded or read, or the two do not fit
    each other; a DataError that images or labels cannot be read, or all of them calibrated one of the models; an
    AccuracyGateError that the reference finds nothing on any image.
    """
    check_there(data)
    with one_step(on_progress, "load"):
        subjects = open_subjects([model, *([reference] if reference else [])])
    participants = pair_up(subjects, _renamed(subjects[0], reference))
    spec = subjects[0].spec
    if data is None and isinstance(spec, ModelSpec) and spec.data.evaluation:
        data = Path(spec.data.evaluation)
    if data is None:
        raise UsageError(f"{model}: no images to measure on: give --data, or [data] evaluation in model.toml")
    dataset, calibrated = choose_images(subjects, data, max_images)
    if dataset.truths is None and reference is None:
        split = next((path for name in _SPLITS if is_folder(path := data / name / "images")), None)
        raise UsageError(
            f"{data}: no labels in it, so there is nothing to measure with: give {f'{split}, ' if split else ''}"
            "labelled images (docs/data.md), or a model to agree with: --reference model.toml"
        )
    observed = observe(participants, dataset, lambda done: on_progress("evaluate", done, len(dataset)), jobs)
    found = summarise(observed, str(data), calibrated, on_progress)
    doubt = "" if any(constant_answer(observed, which) for which in range(len(subjects))) else doubt_about(observed)
    return msgspec.structs.replace(found, warnings=(*filter(None, (doubt, found.lost_class)), *found.warnings))


def summarise(observed: Observed, data: str, calibrated: int = 0, on_progress: OnProgress = silent) -> Evaluation:
    """Compute all figures of what was observed: of one model, or of a model and its reference.

    An AccuracyGateError says that the reference finds nothing on any image, a DataError that nothing is labelled.
    """
    names = [p.subject.name for p in observed.participants]
    paired = len(names) == 2
    weights = resample(len(observed.records))
    task = TASKS[observed.task]
    pairs = task.pairs(observed) if paired else None
    metrics = [task.quality(observed, which) if observed.dataset.truths else () for which in range(len(names))]
    theirs = {metric.name: metric for metric in metrics[1]} if paired else {}
    between = task.agreement(observed) if paired else ()
    total = len(between) + len(metrics[0])
    quality: list[Figure] = []
    for mine in metrics[0]:
        on_progress("intervals", len(quality), total)
        other = theirs.get(mine.name)  # a model of boxes has no masks, for example
        quality.append(compare(mine, other, weights) if other else figure_of(mine, weights))
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
        warnings=warnings_about(observed),
        lost_class=lost_class(pairs, observed.answers, names[1]) if pairs else "",
    )


def _renamed(subject: Subject, reference: Path | None) -> Mapping[str, str]:
    """Return the model's own [teacher.labels] where it is measured beside its teacher; else nothing."""
    teacher = subject.spec.teacher if isinstance(subject.spec, ModelSpec) else None
    if teacher is None or reference is None or Path(teacher.model).resolve() != reference.resolve():
        return {}
    return teacher.labels
