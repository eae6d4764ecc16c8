"""Compare a device's outputs for the golden inputs with those of the machine that built the bundle.

Float models agree to a few of the last digits. INT8 models nearly always agree to the last bit, but not always: CPUs
add two tensors of integers in floating point, and where a sum lies half-way between two integers they round to
different sides (docs/adr/0009). The differences from that stay below the quantization noise, while a CPU that saturates
or a wrong kernel causes larger ones. `largest_difference` therefore compares with that noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.bundle.manifest import Golden
from edge_sdk.core.frame import Tensor

NOISE_SHARE = 1.0
"""Allowed share of the quantization noise; larger differences are no rounding. docs/adr/0009 has the measurements."""

_BLOCK = 65_536  # values compared at once: a detector's outputs take megabytes, and float64 copies twice as many


def output_keys(names: list[str], image: int) -> list[str]:
    """Find the outputs of one image among the arrays of a golden file, in their order.

    Raises:
        KeyError: the file has no output of this image.
    """
    prefix = f"output_{image}_"
    keys = sorted((n for n in names if n.startswith(prefix)), key=lambda n: int(n.removeprefix(prefix)))
    if not keys:
        raise KeyError(prefix)
    return keys


def row_count(output: Tensor) -> int:
    """Count the rows that `judged_rows` makes."""
    values = _of_one(output)
    return 1 if values.ndim < 2 else int(min(values.shape))


def judged_rows(output: Tensor) -> NDArray[np.float64]:
    """Split an output along its shortest axis, float64 (R, N), to judge boxes in pixels and scores of 0-1 apart."""
    values = _of_one(output)
    if values.ndim < 2:
        return values.reshape(1, -1).astype(np.float64)
    shortest = int(np.argmin(values.shape))
    return np.moveaxis(values, shortest, 0).reshape(values.shape[shortest], -1).astype(np.float64)


def _of_one(output: Tensor) -> Tensor:
    """Leave out the axis of a batch of one."""
    return output.reshape(output.shape[1:]) if output.ndim > 1 and output.shape[0] == 1 else output


def energies_of(got: Tensor, expected: Tensor) -> NDArray[np.float64]:
    """Return the mean square of the difference in every row, float64 (R,); both have the same shape."""
    return np.asarray(((judged_rows(got) - judged_rows(expected)) ** 2).mean(axis=1))


def noise_of(energies: Sequence[Sequence[NDArray[np.float64]]]) -> list[NDArray[np.float32]]:
    """Return for each output the root mean square in every row over several images, float32 (R,).

    Args:
        energies: for each image, the results of `energies_of` for its outputs.
    """
    columns = zip(*energies, strict=True)
    return [np.sqrt(np.mean(column, axis=0)).astype(np.float32) for column in columns]


def largest_difference(
    got: Sequence[Tensor], expected: Sequence[Tensor], golden: Golden, noise: Sequence[Tensor]
) -> float | str:
    """Compare the outputs of one golden image.

    Args:
        got: the outputs of this machine.
        expected: the outputs in the bundle.
        golden: the allowed differences.
        noise: for each output, the root mean square of the quantization noise in every row, (R,); empty for float.

    Returns:
        The largest absolute difference, or a text that says what is wrong.
    """
    if len(got) != len(expected):
        return f"{len(got)} outputs, expected {len(expected)}"
    worst = 0.0
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {index} is {a.dtype} {a.shape}, expected {b.dtype} {b.shape}"
        largest, bad = _beyond(a, b, golden)
        if bad and noise:  # integers that round to the other side may differ by this much in each row
            allowed = golden.absolute + golden.noise_share * noise[index].astype(np.float64)
            bad = 0 if (energies_of(a, b) <= allowed**2).all() else bad
        if bad:
            return f"output {index} is off by up to {largest:.3g} in {bad / a.size:.1%} of its values"
        worst = max(worst, largest)
    return worst


def _beyond(got: Tensor, expected: Tensor, golden: Golden) -> tuple[float, int]:
    """Return the largest absolute difference, and how many values differ by more than allowed."""
    if np.array_equal(got, expected):
        return 0.0, 0
    largest, bad = 0.0, 0
    a, b = got.reshape(-1), expected.reshape(-1)
    for start in range(0, a.size, _BLOCK):
        x, y = (values[start : start + _BLOCK].astype(np.float64) for values in (a, b))
        difference = np.abs(x - y)
        # Negated, so that NaN counts as wrong and as the largest difference.
        bad += int(np.count_nonzero(~(difference <= golden.absolute + golden.relative * np.abs(y))))
        largest = float(np.maximum(largest, difference.max()))
    return largest, bad
