"""Whether both label files stand in the order of their model's outputs.

Nothing in a model says so. But two models that agree by the number of their outputs and not by the labels of these show
that one of the two files is in another order.
"""

from __future__ import annotations

import numpy as np

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk_tools.evaluate import ENOUGH_IMAGES, Subject
from edge_sdk_tools.evaluate.agreement import said
from edge_sdk_tools.evaluate.observe import Observed
from edge_sdk_tools.evaluate.shares import difference_bounds

_SURELY_MORE = 0.1
_SEVERAL = 2  # classes


def check_label_order(observed: Observed) -> None:
    """Refuse a student and a teacher whose labels do not belong together; only classifiers can be seen through so.

    Raises:
        ModelError: surely more images agree by number than by label.
    """
    if observed.task != "classification" or len(observed.records) < ENOUGH_IMAGES:
        return
    student, teacher = said(observed, 0), said(observed, 1)
    real = (student < observed.classes) & (teacher < observed.classes)
    if not real.any():
        return
    student, teacher = student[real], teacher[real]
    by_label, by_number = student == teacher, student == observed.participants[1].class_ids[teacher]
    # One class may meet by accident: a model that always says the same is enough for that.
    seen = len(np.unique(teacher[by_number & ~by_label]))
    if seen >= _SEVERAL and difference_bounds(by_number, by_label)[0] > _SURELY_MORE:
        first, second = (_with_labels(p.subject) for p in observed.participants)
        raise ModelError(
            f"labels: {first} and {second} agree on {by_number.mean():.0%} of {len(by_label)} images by the number of "
            f"the class and on {by_label.mean():.0%} by its label, so the labels of one of them are in another order "
            "than its outputs; expected one label a line in the order in which that model was trained"
        )


def _with_labels(subject: Subject) -> str:
    return f"{subject.name} ({subject.spec.labels})" if isinstance(subject.spec, ModelSpec) else subject.name
