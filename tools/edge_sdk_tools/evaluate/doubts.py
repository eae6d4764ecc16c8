"""What a reader should know before believing figures."""

from __future__ import annotations

import numpy as np

from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.observe import Observed

ENOUGH_IMAGES = 25
_SAME = 1e-4  # relative: scores that move by less are the same


def doubts_about(observed: Observed) -> tuple[str, ...]:
    """One line each, of all models."""
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
