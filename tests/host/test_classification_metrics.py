"""Figures of classifiers against scikit-learn's and scipy's, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, jaccard_score, top_k_accuracy_score

from edge_sdk_tools.evaluate.classification import (
    CALIBRATION_BINS,
    calibration_error,
    divergences,
    probabilities_of,
    ranks_of,
    restricted,
    softened,
    top_columns,
)
from edge_sdk_tools.evaluate.segmentation import mean_iou, overlap_of

RANDOM = np.random.default_rng(11)
LOGITS = RANDOM.normal(0, 3, (400, 30))
ROWS = np.stack([probabilities_of(row[None, :], "logits") for row in LOGITS])
TRUTH = np.where(RANDOM.random(400) < 0.5, ROWS.argmax(axis=1), RANDOM.integers(0, 30, 400))
ONES = np.ones((1, 400))


@pytest.mark.parametrize("k", [1, 2, 5, 29])
def test_top_k_is_scikit_learns(k: int) -> None:
    expected = top_k_accuracy_score(TRUTH, ROWS, k=k, labels=np.arange(30))
    assert (ranks_of(ROWS, TRUTH) < k).mean() == pytest.approx(expected, abs=1e-6)


def test_top_1_is_scikit_learns_accuracy() -> None:
    assert (ranks_of(ROWS, TRUTH) == 0).mean() == pytest.approx(accuracy_score(TRUTH, top_columns(ROWS)), abs=1e-6)


def test_of_equal_scores_the_first_counts_as_argmax_has_it() -> None:
    rows = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert ranks_of(rows, np.array([1, 1])).tolist() == [1, 0]
    assert top_columns(rows).tolist() == [0, 1]


def test_probabilities_are_scipys_softmax_or_the_output_itself() -> None:
    assert pytest.approx(softmax(LOGITS, axis=1)) == ROWS
    huge = np.array([[1000.0, 0.0]], np.float32)
    assert probabilities_of(huge, "logits").tolist() == [1.0, 0.0]
    assert probabilities_of(np.array([[0.25, 0.75]], np.float32), "softmax").tolist() == [0.25, 0.75]


def test_divergence_is_scipys() -> None:
    other = softmax(LOGITS + RANDOM.normal(0, 1, LOGITS.shape), axis=1)
    assert divergences(ROWS, other) == pytest.approx(entropy(ROWS, other, axis=1))
    assert divergences(ROWS, ROWS) == pytest.approx(np.zeros(400), abs=1e-12)


def test_divergence_of_impossible_classes_is_finite() -> None:
    assert np.isfinite(divergences(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))).all()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 4.0, 0.5])
def test_softening_is_the_softmax_of_smaller_logits(temperature: float) -> None:
    assert softened(ROWS, temperature) == pytest.approx(softmax(LOGITS / temperature, axis=1))


def test_restricted_rows_sum_to_one() -> None:
    rows = restricted(np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]]), np.array([2, 1]))
    assert rows == pytest.approx(np.array([[0.625, 0.375], [0.5, 0.5]]))


def test_calibration_error_is_scikit_learns_curve_weighted() -> None:
    confidences, right = ROWS.max(axis=1), ROWS.argmax(axis=1) == TRUTH
    share, confidence = calibration_curve(right, confidences, n_bins=CALIBRATION_BINS)
    counts = np.histogram(confidences, bins=CALIBRATION_BINS, range=(0, 1))[0]
    expected = (np.abs(share - confidence) * counts[counts > 0]).sum() / len(right)
    assert calibration_error(confidences, right) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("confidences", "right", "expected"),
    [([1.0, 1.0], [True, True], 0.0), ([1.0, 1.0], [False, False], 1.0), ([0.5, 0.5], [True, False], 0.0), ([], [], 0)],
)
def test_calibration_error_by_hand(confidences: list[float], right: list[bool], expected: float) -> None:
    assert calibration_error(np.array(confidences), np.array(right, np.bool_)) == pytest.approx(expected)


def test_mean_iou_is_scikit_learns() -> None:
    truth = [RANDOM.integers(0, 4, (20, 30)).astype(np.uint8) for _ in range(6)]
    answers = [np.where(RANDOM.random((20, 30)) < 0.7, t, 0).astype(np.uint8) for t in truth]
    value = mean_iou([overlap_of(a, t, 5) for a, t in zip(answers, truth, strict=True)])(np.ones((1, 6)))
    flat = np.concatenate([t.ravel() for t in truth]), np.concatenate([a.ravel() for a in answers])
    assert value == pytest.approx([jaccard_score(*flat, average="macro", labels=range(4))], abs=1e-6)


def test_unknown_pixels_do_not_count_and_unanswered_ones_are_wrong() -> None:
    truth = np.array([[0, 0, 1, 255]], np.uint8)
    answer = np.array([[0, 255, 1, 1]], np.uint8)
    overlap = overlap_of(answer, truth, 2)
    assert (overlap.both.tolist(), overlap.either.tolist()) == ([1, 1], [2, 1])
