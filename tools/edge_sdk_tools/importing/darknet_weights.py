"""A Darknet .weights file: its header, its size, and convolutions with batch normalisation folded in.

Owns the order of numbers in the file. Knows convolutions only: nothing else that is converted has weights.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.files import open_regular

# Added to the variance before the root, as AlexeyAB's fuse_conv_batchnorm and cuDNN (CUDNN_BN_MIN_EPSILON) do it.
_EPSILON = 1e-5
_FLOAT_BYTES = 4


class ConvolutionWeights(msgspec.Struct, frozen=True):
    """What one convolution reads from the file.

    Attributes:
        weights_name: of the ONNX initializer, float32 (filters, channels, size, size).
        bias_name: of the ONNX initializer, float32 (filters,).
        filters: output channels.
        channels: input channels of one group.
        size: side of the kernel.
        batch_normalize: whether scale, mean and variance stand between bias and weights.
    """

    weights_name: str
    bias_name: str
    filters: int
    channels: int
    size: int
    batch_normalize: bool

    @property
    def kernel_count(self) -> int:
        """How many numbers the kernel has."""
        return self.filters * self.channels * self.size**2

    @property
    def count(self) -> int:
        """How many numbers it reads."""
        return self.filters * (4 if self.batch_normalize else 1) + self.kernel_count


def read_weights(path: Path, wanted: Sequence[ConvolutionWeights]) -> dict[str, NDArray[np.float32]]:
    """Read all convolutions' weights.

    Args:
        path: the .weights file.
        wanted: the convolutions in the order of the .cfg.

    Returns:
        Initializers by name.

    Raises:
        ModelError: missing, shorter or longer than `wanted` needs, or with numbers that are not finite.
    """
    numbers = _read_numbers(path, sum(convolution.count for convolution in wanted))
    found: dict[str, NDArray[np.float32]] = {}
    start = 0
    for convolution in wanted:
        part = numbers[start : start + convolution.count]
        start += convolution.count
        kernel, bias = _fold(part, convolution)
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            raise ModelError(
                f"{path}: {convolution.weights_name} is not finite; the file is damaged, download it again"
            )
        found[convolution.weights_name] = kernel
        found[convolution.bias_name] = bias
    return found


def _fold(
    numbers: NDArray[np.float32], convolution: ConvolutionWeights
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    vectors = _vectors(numbers, convolution)
    bias = next(vectors)
    kernel = numbers[-convolution.kernel_count :].astype(np.float64).reshape(convolution.filters, -1)
    if convolution.batch_normalize:
        scale, mean, variance = vectors
        # A negative variance becomes nan here and is refused by the caller.
        with np.errstate(invalid="ignore", over="ignore"):
            factor = scale / np.sqrt(variance + _EPSILON)
            kernel *= factor[:, None]
            bias = bias - mean * factor
    shape = (convolution.filters, convolution.channels, convolution.size, convolution.size)
    with np.errstate(over="ignore"):
        return kernel.reshape(shape).astype(np.float32), bias.astype(np.float32)


def _vectors(numbers: NDArray[np.float32], convolution: ConvolutionWeights) -> Iterator[NDArray[np.float64]]:
    """Bias, then with batch normalisation scale, mean and variance: float64 (filters,) each."""
    head = numbers[: numbers.size - convolution.kernel_count].astype(np.float64)
    return iter(head.reshape(-1, convolution.filters))


def _read_numbers(path: Path, count: int) -> NDArray[np.float32]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = _header_bytes(path, file.read(12))
            expected = header_bytes + count * _FLOAT_BYTES
            if size != expected:
                hint = "truncated, download it again" if size < expected else "they belong to another .cfg"
                raise ModelError(f"{path}: has {size} bytes, expected {expected} for the layers of the .cfg; {hint}")
            file.seek(header_bytes)
            return np.frombuffer(file.read(), "<f4")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, expected Darknet .weights") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause


def _header_bytes(path: Path, start: bytes) -> int:
    """Length of the header: three int32 and the count of seen images, 64 bits wide since version 0.2."""
    if len(start) < 12:
        raise ModelError(f"{path}: has {len(start)} bytes, expected Darknet .weights with a header of 16 or 20")
    major, minor, _ = struct.unpack("<iii", start)
    # The same test as Darknet's load_weights_upto; files above 1000 were written transposed, for layers not converted.
    wide = major * 10 + minor >= 2 and major < 1000 and minor < 1000
    return 20 if wide else 16
