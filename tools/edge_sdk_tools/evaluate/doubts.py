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
    name, count = observed.participants[which].subject.name, len(observed.records)
    advice = "check input.mean, std, color and layout, and the weights with `edge-sdk check`"
    if count < 2:
        return ""
    if observed.task == "classification":
        same = float(np.ptp(observed.probabilities(which), axis=0).max()) < _SAME
        return f"{name} gives the same scores for all {count} images; {advice}" if same else ""
    if observed.task == "detection":
        rows = [record.rows[which] for record in observed.records]
        if not any(isinstance(row, Boxes) and len(row.confidences) for row in rows):
            return f"{name} finds nothing on any of {count} images; {advice}"
    if len({record.fingerprints[which] for record in observed.records}) == 1:
        what = "class map" if observed.task == "segmentation" else "raw output"
        return f"{name} gives the same {what} for all {count} images; {advice}"
    return ""
