"""Metrics of anomaly detection: scores of whole images, where class 1 is anomalous."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import DataError
from edge_sdk.tasks.anomaly import Anomaly
from edge_sdk_tools.datasets.dataset import Truth
from edge_sdk_tools.evaluate.metrics import TaskMetrics, WorstImage, true_classes, worst_images
from edge_sdk_tools.evaluate.predictions import Answers, Kept, Observed
from edge_sdk_tools.evaluate.statistics import Metric, Statistic, Weights, quotient, share_metric


class AnomalyMetrics(TaskMetrics):
    """Metrics of the scores of whole images, where class 1 is anomalous."""

    agreement_metric = "equal_decisions"
    agreement_name = "equal decisions"
    noun = "decisions"
    advice = "check input.mean, std and color in model.toml, anomaly.score_range and thresholds.confidence"

    def keep(self, answers: Answers, _truth: Truth | None) -> Kept:
        """Keep the scores."""
        scores = (answer.result.score for _, answer in answers if isinstance(answer.result, Anomaly))
        return tuple(np.array([score]) for score in scores), None

    def quality(self, observed: Observed, which: int = 0) -> tuple[Metric, ...]:
        """Return the area under the ROC curve, and the share of correct decisions at the model's threshold."""
        anomalous = true_classes(observed) == 1
        if anomalous.all() or not anomalous.any():
            raise DataError(f"{len(anomalous)} images of one class, expected normal and anomalous ones")
        right = _decisions(observed, which) == anomalous
        return (
            Metric("AUROC", area_under_roc(observed.tables[which][:, 0], anomalous), is_gated=True),
            share_metric("right decisions", right, is_gated=True),
        )

    def agreement(self, observed: Observed) -> tuple[Metric, ...]:
        """Return the share of equal decisions, and the correlation of scores."""
        equal = _decisions(observed, 0) == _decisions(observed, 1)
        scores = [table[:, 0] for table in observed.tables]
        return (
            share_metric(self.agreement_name, equal),
            Metric("correlation of scores", correlation(scores[0], scores[1]), bounds=(-1.0, 1.0)),
        )

    def worst(self, observed: Observed, count: int) -> tuple[WorstImage, ...]:
        """Return the images with the largest difference of scores."""
        student, teacher = (table[:, 0] for table in observed.tables)
        distance = np.abs(student - teacher)
        return worst_images(observed, distance, count, lambda i: (None, f"{teacher[i]:.2f}", f"{student[i]:.2f}"))


def _decisions(observed: Observed, which: int) -> NDArray[np.bool_]:
    return np.asarray(observed.tables[which][:, 0] >= observed.threshold(which), np.bool_)


def area_under_roc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> Statistic:
    """Return AUROC: how often a positive image has a higher score, float64 (N,), than a negative; ties count half."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(scores[order]) > 0))

    def statistic(weights: Weights) -> NDArray[np.float64]:
        above, below = (np.add.reduceat((weights * side)[:, order], starts, axis=1) for side in (positive, ~positive))
        wins = (above * (below.cumsum(axis=1) - below / 2)).sum(axis=1)
        pairs = above.sum(axis=1) * below.sum(axis=1)
        return quotient(wins, pairs)

    return statistic


def correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> Statistic:
    """Return Pearson's correlation of two scores of each image, float64 (N,) each; 1 if both are constant."""

    def statistic(weights: Weights) -> NDArray[np.float64]:
        total = weights.sum(axis=1)
        means = [weights @ values / total for values in (a, b, a * b, a * a, b * b)]
        shared = means[2] - means[0] * means[1]
        spread = np.sqrt(np.maximum(0, (means[3] - means[0] ** 2) * (means[4] - means[1] ** 2)))
        return quotient(shared, spread, 1.0)

    return statistic
