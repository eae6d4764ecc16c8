"""How the values of one activation are distributed, in constant memory and in one pass.

Values are counted by the upper half of their bits, a sign, an exponent and seven digits of a mantissa: bins 0.8 % wide
at every size. No range has to be known beforehand, histograms add up whatever their order, and every way of calibrating
reads its range from the same counts.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

BINS = 2**16
"""Of a histogram: one for every pattern of sixteen bits."""
_POSITIVE = BINS // 2


def _edges() -> NDArray[np.float64]:
    """Edges of all bins in the order of their values, float64 (65537,): -inf, ..., -0, 0, ..., inf."""
    magnitudes = np.empty(_POSITIVE + 1)
    bits = np.arange(_POSITIVE, dtype=np.uint32) << 16
    values = bits.view(np.float32)
    magnitudes[:-1] = np.where(np.isfinite(values), values, np.inf)  # patterns that are no numbers count nothing
    magnitudes[-1] = np.inf
    return np.concatenate([-magnitudes[:0:-1], magnitudes])


_EDGES = _edges()
_SMALLEST_SPAN = 255 * float(np.finfo(np.float32).tiny)
_ODD = 0.38196601125010515  # 2 - the golden ratio: no fraction with small numbers comes near it
_ORDER = np.concatenate([np.arange(BINS - 1, _POSITIVE - 1, -1), np.arange(_POSITIVE)])


class Histogram:
    """Counts of one tensor's values over many images; several threads may add to them.

    Args:
        counts: int64 (65536,), as another one gave them; nothing is counted yet by default.
        low, high: as that one's.

    Attributes:
        low, high: the smallest and the largest value, exactly; inf and -inf before there are any.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None, low: float = np.inf, high: float = -np.inf) -> None:
        self._counts = np.zeros(BINS, np.int64) if counts is None else counts
        self.low, self.high = low, high
        self._adding = threading.Lock()

    def add(self, values: NDArray[np.float32], every: int = 1) -> tuple[float, float]:
        """Count float32 values of any shape, one at least.

        Args:
            values: all of which the smallest and the largest are looked for among.
            every: of how many values in a row one is counted.

        Returns:
            The smallest and the largest of them; no number where any value is none.
        """
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        upper = flat.view(np.uint16)[1 :: 2 * every]  # every machine that this runs on is little-endian
        low, high = float(flat.min()), float(flat.max())
        with self._adding:
            np.add.at(self._counts, upper, 1)  # in place: an array of counts an image would be new pages every time
            self.low, self.high = min(self.low, low), max(self.high, high)
        return low, high

    @property
    def counts(self) -> NDArray[np.int64]:
        """Int64 (65536,), by the upper half of their bits; not to be written to."""
        return self._counts

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same, or so nearly that a float32 scale between them would be 0."""
        return self.high - self.low <= _SMALLEST_SPAN

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self._counts.sum())

    def spanned(self, share: float) -> tuple[float, float]:
        """The range that holds `share` of the values, as many cut off below as above.

        Inside a bin its values are taken for evenly spread. Its edges would be round numbers, whose scales have simple
        ratios: sums of INT8 then lie half-way between two integers, and CPUs differ in where they round those.

        Args:
            share: 0-1.

        Returns:
            Low and high.
        """
        counts = self._counts[_ORDER]
        until = np.cumsum(counts)
        cut = (1 - share) / 2 * until[-1]
        first = int(np.searchsorted(until, cut, side="right"))
        last = int(np.searchsorted(until, until[-1] - cut, side="left"))
        low = _inside(first, cut - (until[first] - counts[first]), counts[first])
        high = _inside(last, until[-1] - cut - (until[last] - counts[last]), counts[last])
        return float(max(low, self.low)), float(min(high, self.high))

    def values(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The middles of all bins that hold values, float64 in rising order, and how many each holds."""
        counts = self._counts[_ORDER]
        known = counts.nonzero()[0]
        bounds = np.clip(np.stack([_EDGES[known], _EDGES[known + 1]]), self.low, self.high)
        return bounds.mean(axis=0), counts[known]

    def linear(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Counts between other edges, each bin's values taken for evenly spread over it; float64 (len(edges) - 1,)."""
        counts = self._counts[_ORDER]
        known = counts.nonzero()[0]
        inner = slice(known[0], known[-1] + 2)
        until = np.concatenate([[0.0], np.cumsum(counts[known[0] : known[-1] + 1])])
        bounds = np.clip(_EDGES[inner], self.low, self.high)
        found: NDArray[np.float64] = np.diff(np.interp(edges, bounds, until))
        return found


def _inside(place: int, before: float, count: int) -> float:
    """The value with `before` of a bin's `count` values below it; never a round number, whatever the counts."""
    low, high = float(_EDGES[place]), float(_EDGES[place + 1])
    if not np.isfinite(high - low):
        return high if np.isfinite(high) else low
    return low + (before + _ODD) / (count + 2 * _ODD) * (high - low)
