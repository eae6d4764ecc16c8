"""Metrics of text recognition: characters and whole lines of text that are read correctly."""

from __future__ import annotations

import numpy as np

from edge_sdk.core.errors import AccuracyGateError, DataError
from edge_sdk_tools.datasets.dataset import Truth
from edge_sdk_tools.datasets.formats import TextTruth
from edge_sdk_tools.evaluate.metrics import TaskMetrics, WorstImage, worst_images
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed
from edge_sdk_tools.evaluate.statistics import Metric, ratio_of, share_metric


class TextMetrics(TaskMetrics):
    """Error rate of characters, and share of whole texts that are correct or equal."""

    agreement_metric = "equal_texts"
    agreement_name = "equal texts"
    noun = "texts"
    advice = "check input.mean, std and color in model.toml, and whether labels is the dictionary of its training"

    def keep(self, answers: Answers, truth: Truth | None) -> Kept:
        """Keep the text of each model, and the true one."""
        texts = tuple("".join(answer.result.labels[:1]) for _, answer in answers)
        return texts, truth.text if isinstance(truth, TextTruth) else None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return 1 - CER (edits over the characters of the labels), and the share of texts that are wholly right."""
        pairs = [(str(record.rows[which]), str(record.between)) for record in observed.records]
        edits = np.array([edit_distance(*pair) for pair in pairs], np.float64)
        lengths = np.array([len(truth) for _, truth in pairs], np.float64)
        if not lengths.any():
            raise DataError(f"nothing is labelled on {len(pairs)} images, expected texts of some of them")
        errors = ratio_of(edits, lengths)
        return (
            Metric("characters (1 - CER)", lambda weights: np.maximum(0, 1 - errors(weights)), is_gated=True),
            share_metric("whole texts", edits == 0, is_gated=True),
        )

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the share of equal texts."""
        if self.finds_nothing(observed, 1):
            raise AccuracyGateError(
                f"{observed.participants[1].subject.name} reads nothing on {len(observed.records)} evaluation images, "
                "so nothing can be compared; give images of lines of text, or lower its thresholds.confidence"
            )
        equal = [record.rows[0] == record.rows[1] for record in observed.records]
        return (share_metric(self.agreement_name, np.array(equal)),)

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images with the most edits from one text to the other."""
        pairs = [(str(record.rows[0]), str(record.rows[1])) for record in observed.records]
        distance = np.array([edit_distance(*pair) for pair in pairs], np.float64)
        truths = [record.between for record in observed.records]
        return worst_images(
            observed, distance, count, lambda i: (str(truths[i]) if truths[i] else None, pairs[i][1], pairs[i][0])
        )

    def finds_nothing(self, observed: Observed, which: int) -> bool:
        """Tell whether a model reads no text on any image."""
        return not any(record.rows[which] for record in observed.records)


def edit_distance(a: str, b: str) -> int:
    """Count the characters to insert, delete or replace that turn one text into the other (Levenshtein, 1966)."""
    row = list(range(len(b) + 1))
    for i, mine in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, theirs in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (mine != theirs))
    return row[-1]
