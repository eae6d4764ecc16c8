"""Classification: one row of logits or probabilities -> the most likely classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import ClassificationSpec
from edge_sdk.core.frame import Classification, Inferred


class Classify:
    """The decode stage of a classifier.

    Args:
        spec: how many classes a result holds, and whether output 0 is the background.
        class_count: outputs of the model.
        softmax: True when the outputs are logits; False when they are probabilities already.
    """

    def __init__(self, spec: ClassificationSpec, class_count: int, *, softmax: bool) -> None:
        self._top_k = min(spec.top_k, class_count)
        self._offset = 1 if spec.background_class else 0
        self._powers = np.empty(class_count, np.float32) if softmax else None

    def __call__(self, inferred: Inferred, /) -> Classification:
        """Read float (1, classes)."""
        scores: NDArray[np.float32] = inferred.outputs[0].reshape(-1)
        candidates = scores.argpartition(-self._top_k)[-self._top_k :]
        top = candidates[(-scores[candidates]).argsort(kind="stable")]
        confidences = self._softmax(scores, top) if self._powers is not None else scores[top]
        return Classification(
            inferred.prepared.frame,
            inferred.inference_ns,
            confidences.astype(np.float32, copy=False),
            top - self._offset if self._offset else top,
            math.isfinite(confidences.sum()),  # a NaN is among them wherever it is: it counts as the largest
        )

    def _softmax(self, logits: NDArray[np.float32], top: NDArray[np.int64]) -> NDArray[np.float32]:
        """The probabilities of `top`, whose first is the largest; it is subtracted so that exp cannot overflow."""
        powers = np.subtract(logits, logits[top[0]], out=self._powers)
        np.exp(powers, out=powers)
        probabilities: NDArray[np.float32] = powers[top] / powers.sum()
        return probabilities
