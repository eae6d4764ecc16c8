"""What counts as a pair: for each task, with labels and without, the things on which both models were right or wrong.

With labels: images by their class, labelled objects by whether they were found. Without: what either model says, by
whether each said it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk_tools.dataset import BoxTruth
from edge_sdk_tools.distill_check.paired import Pairs
from edge_sdk_tools.evaluate.agreement import found_boxes, match, said
from edge_sdk_tools.evaluate.observe import Observed
from edge_sdk_tools.evaluate.quality import class_places, judged_boxes, true_classes


def pairs_of(observed: Observed) -> Pairs | None:
    """Paired outcomes of the student (first) and its teacher; None for class maps, whose pixels hang together."""
    labelled = observed.dataset.truths is not None
    if observed.task == "classification":
        return _labelled_images(observed) if labelled else _answers(observed)
    if observed.task == "detection":
        return _labelled_objects(observed) if labelled else _found_objects(observed)
    return None


def _labelled_images(observed: Observed) -> Pairs:
    student, teacher = (class_places(observed, which) == 0 for which in (0, 1))
    return Pairs(true_classes(observed), teacher, student)


def _answers(observed: Observed) -> Pairs:
    student, teacher = said(observed, 0), said(observed, 1)
    said_by_one = teacher[student != teacher], student[student != teacher]
    # An image on which they differ counts for both classes: for the one only the teacher said, and the other.
    class_ids = np.concatenate([teacher, said_by_one[1]])
    by_teacher = np.concatenate([np.ones(len(teacher), np.bool_), np.zeros(len(said_by_one[1]), np.bool_)])
    by_student = np.concatenate([student == teacher, np.ones(len(said_by_one[1]), np.bool_)])
    return Pairs(class_ids, by_teacher, by_student)


def _labelled_objects(observed: Observed) -> Pairs:
    found = [_found(observed, which) for which in (0, 1)]
    class_ids = [t.class_ids[~t.crowd] for t in observed.dataset.truths or () if isinstance(t, BoxTruth)]
    return Pairs(np.concatenate(class_ids), found[1], found[0])


def _found(observed: Observed, which: int) -> NDArray[np.bool_]:
    """Whether each labelled object was found at IoU .5 by what the model's own threshold lets through."""
    judged = judged_boxes(observed, which, confident=True)
    truths = [t for t in observed.dataset.truths or () if isinstance(t, BoxTruth)]
    return np.concatenate([j.found[~t.crowd, 0] for j, t in zip(judged, truths, strict=True)])


def _found_objects(observed: Observed) -> Pairs:
    class_ids: list[int] = []
    teacher: list[bool] = []
    student: list[bool] = []
    for mine, theirs in zip(found_boxes(observed, 0), found_boxes(observed, 1), strict=True):
        matched = match(mine, theirs)
        both = {i for i, _ in matched}
        class_ids += [int(c) for c in theirs.class_ids]
        teacher += [True] * len(theirs.class_ids)
        seen = {j for _, j in matched}
        student += [j in seen for j in range(len(theirs.class_ids))]
        alone = [i for i in range(len(mine.class_ids)) if i not in both]
        class_ids += [int(mine.class_ids[i]) for i in alone]
        teacher += [False] * len(alone)
        student += [True] * len(alone)
    return Pairs(np.array(class_ids, np.int64), np.array(teacher, np.bool_), np.array(student, np.bool_))
