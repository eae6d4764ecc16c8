"""How far the raw outputs of two models of the same shapes lie apart: cosine and signal to noise.

Owns the sums over images; outputs of other shapes are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from edge_sdk.core.frame import Tensor

_TINY = 1e-30


class OutputError(msgspec.Struct, frozen=True):
    """One output over all images.

    Attributes:
        output: its number, from 0.
        cosine: mean over the images of the cosine between both models' values, -1 to 1.
        sqnr_db: signal to quantization noise, 10 log10(sum r^2 / sum (r - c)^2) over all values of all images, in
            decibels; None when not a bit differs.
    """

    output: int
    cosine: float
    sqnr_db: float | None


class Products(msgspec.Struct, frozen=True):
    """Sums over one output of one image: r * r, c * c, r * c, (r - c)^2."""

    reference: float
    candidate: float
    mixed: float
    error: float


def products_of(candidate: Sequence[Tensor], reference: Sequence[Tensor]) -> tuple[Products, ...]:
    """One an output; none at all where the shapes differ, or the outputs are no real numbers."""
    if [c.shape for c in candidate] != [r.shape for r in reference]:
        return ()
    if not all(np.issubdtype(a.dtype, np.floating) for a in (*candidate, *reference)):
        return ()
    return tuple(_products(c, r) for c, r in zip(candidate, reference, strict=True))


def output_errors(images: Sequence[tuple[Products, ...]]) -> tuple[OutputError, ...]:
    """One an output; none when there was nothing to compare."""
    return tuple(_error(number, rows) for number, rows in enumerate(zip(*images, strict=False)))


def _products(candidate: Tensor, reference: Tensor) -> Products:
    c, r = candidate.ravel().astype(np.float64), reference.ravel().astype(np.float64)
    difference = r - c
    return Products(float(r @ r), float(c @ c), float(r @ c), float(difference @ difference))


def _error(number: int, rows: Sequence[Products]) -> OutputError:
    cosines = [_cosine(row) for row in rows]
    signal, noise = sum(row.reference for row in rows), sum(row.error for row in rows)
    sqnr = None if noise == 0 else 10 * math.log10(max(signal, _TINY) / noise)
    return OutputError(number, float(np.mean(cosines)), sqnr)


def _cosine(row: Products) -> float:
    length = math.sqrt(row.reference * row.candidate)
    if length == 0:
        return float(row.reference == row.candidate)
    return row.mixed / length
