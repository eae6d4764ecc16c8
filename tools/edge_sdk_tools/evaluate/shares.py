"""Intervals of shares, and of the paired difference of two shares, from counts alone.

Resampling never shows what the images happen not to hold: of 20 right answers in 20 every resampling has 20, and the
interval is a point. These two stay honest there, and a figure's interval is never narrower than theirs.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
# Not scipy.stats, which takes as long to import as a small model to quantize; tests compare with it.
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
_ADDED = 0.5  # to each of the four cells of a paired table (Agresti and Min, 2005)


def share_bounds(hits: NDArray[np.bool_]) -> tuple[float, float]:
    """Wilson's score interval (1927) of the share of `hits`.

    Args:
        hits: bool (N,), N at least 1.

    Returns:
        Low and high, 0-1.
    """
    count = len(hits)
    share = float(hits.sum()) / count
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    reach = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return max(0.0, middle - reach), min(1.0, middle + reach)


def difference_bounds(hits: NDArray[np.bool_], reference: NDArray[np.bool_]) -> tuple[float, float]:
    """The adjusted Wald interval of share of `hits` less share of `reference`, on the same things.

    Agresti and Min, Simple improved confidence intervals for comparing matched proportions (2005): half an observation
    is added to each cell of the table of both outcomes.

    Args:
        hits: bool (N,).
        reference: bool (N,).

    Returns:
        Low and high, -1 to 1.
    """
    gained = int((hits & ~reference).sum()) + _ADDED
    lost = int((reference & ~hits).sum()) + _ADDED
    count = len(hits) + 4 * _ADDED
    middle = (gained - lost) / count
    reach = _Z * math.sqrt(gained + lost - (gained - lost) ** 2 / count) / count
    return max(-1.0, middle - reach), min(1.0, middle + reach)
