"""What a reader should know before believing figures."""

from __future__ import annotations

import numpy as np

from edge_sdk_tools.evaluate.average_precision import Boxes
from edge_sdk_tools.evaluate.observe import Observed

ENOUGH_IMAGES = 25
_SAME = 1e-6  # probabilities that differ by less are the same


def doubts_about(observed: Observed) -> tuple[str, ...]:
    """One line each, of all models."""
    doubts = [line for which in range(len(observed.participants)) if (line := constant_answer(observed, which))]
    if len(observed.records) < ENOUGH_IMAGES:
        doubts.append(f"{len(observed.records)} images judge little: give {ENOUGH_IMAGES} or more")
    if observed.dataset.conflicts:
        doubts.append(f"{observed.dataset.conflicts} images of equal content have different labels, the first counts")
    return tuple(doubts)


def constant_answer(observed: Observed, which: int) -> str:
    """What is wrong with a model that says the same of every image; empty when it does not."""
    subject = observed.participants[which].subject
    rows = [record.rows[which] for record in observed.records]
    advice = "check input.mean, std, color and layout, and the weights with `edge-sdk check`"
    if len(rows) < 2:
        return ""
    if observed.task == "classification":
        spread = np.ptp(observed.probabilities(which), axis=0).max()
        if spread < _SAME:
            return f"{subject.name} gives the same scores for all {len(rows)} images; {advice}"
    if observed.task == "detection" and not any(isinstance(r, Boxes) and len(r.confidences) for r in rows):
        return f"{subject.name} finds nothing on any of {len(rows)} images; {advice}"
    return ""
