"""Read a Darknet .cfg as sections with typed options, and a .weights file; every error names file, line and layer.

Of all layers that are converted only convolutions have weights.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError
from edge_sdk.core.files import open_regular, read_regular

N = TypeVar("N", bound=float)
_INT_MAX = 2**31 - 1  # Darknet's own limit: C's int


class Section(msgspec.Struct, frozen=True):
    """One section of a .cfg, by the word in brackets, in lower case; `where` are its file and line.

    `index` is Darknet's count of layers, from 0; -1 for [net].
    """

    kind: str
    index: int
    where: str
    options: dict[str, str]

    def error(self, message: str) -> ModelError:
        """Return an error about this section."""
        place = f"layer {self.index} [{self.kind}]" if self.index >= 0 else f"[{self.kind}]"
        return ModelError(f"{self.where}: {place}: {message}")

    def integer(self, key: str, default: int | None, minimum: int = 0, maximum: int = _INT_MAX) -> int:
        """Return a whole number from `minimum` to `maximum`; a missing one is refused where `default` is None."""
        text = self.options.get(key, default)
        if text is None:
            raise self.error(f"{key} is missing")
        value = self._parse(int, key, text)
        if not minimum <= value <= maximum:
            raise self.error(f"{key} is {value}, expected {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float) -> float:
        """Return the option `key` as a finite number, or `default` where it is missing."""
        return self._parse(float, key, self.options.get(key, default))

    def integers(self, key: str) -> tuple[int, ...]:
        """Return an option that holds whole numbers separated by commas; empty where the key is missing."""
        return tuple(self._parse(int, key, part) for part in self._parts(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return an option that holds numbers separated by commas; empty where the key is missing."""
        return tuple(self._parse(float, key, part) for part in self._parts(key))

    def refuse(self, neutral: dict[str, str]) -> None:
        """Refuse options with another value than the `neutral` one, which changes nothing: they are not converted."""
        for key, expected in neutral.items():
            if self.options.get(key, expected) != expected:
                raise self.error(f"{key}={self.options[key]} is not supported, expected {key}={expected}")

    def _parts(self, key: str) -> list[str]:
        # Darknet's own files end some lists with a comma.
        return [part for part in self.options.get(key, "").split(",") if part]

    def _parse(self, kind: type[N], key: str, text: str | float) -> N:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if math.isfinite(value):
                return value
        raise self.error(f"{key} is {text!r}, expected a {'whole ' if kind is int else ''}number")


def read_cfg(path: Path) -> tuple[Section, list[Section]]:
    """Read a .cfg file: the [net] section, and one section for each layer in order."""
    sections: list[Section] = []
    for number, raw in enumerate(_read_text(path).splitlines(), start=1):
        line = "".join(raw.split("#")[0].split(";")[0].split())
        if not line:
            continue
        where = f"{path}:{number}"
        if line.startswith("["):
            if not line.endswith("]") or len(line) < 3:
                raise ModelError(f"{where}: expected `[section]`, got {line[:60]!r}")
            sections.append(Section(line[1:-1].lower(), len(sections) - 1, where, {}))
            continue
        key, equals, value = line.partition("=")
        if not equals or not sections:
            raise ModelError(f"{where}: expected `[section]` or `key=value`, got {raw.strip()[:60]!r}")
        # Where a key is given twice, Darknet takes the first.
        sections[-1].options.setdefault(key, value)
    if not sections or sections[0].kind not in ("net", "network"):
        raise ModelError(f"{path}: does not begin with [net], expected a Darknet .cfg")
    if len(sections) == 1:
        raise ModelError(f"{path}: no layers after [net]")
    return sections[0], sections[1:]


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, expected a Darknet .cfg") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not text, expected a Darknet .cfg") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause


EPSILON = 1e-5
"""Added to the variance before the square root, as in AlexeyAB's fuse_conv_batchnorm and cuDNN."""


class Convolution(msgspec.Struct, frozen=True):
    """What one convolution reads of the .weights file.

    Attributes:
        name: of the layer, `layer_7`.
        channels: number of input channels of one group.
        batch_normalize: whether the file has scale, mean and variance between the bias and the kernel.
    """

    name: str
    filters: int
    channels: int
    size: int
    batch_normalize: bool

    @property
    def count(self) -> int:
        """The number of float32 values."""
        return self.filters * ((4 if self.batch_normalize else 1) + self.channels * self.size**2)


class Weights(msgspec.Struct, frozen=True, eq=False):
    """The weights of one convolution as the file has them: float32 (filters, channels, size, size) and (filters,).

    `normalisation` has scale, mean and variance of the batch normalisation, (filters,) each; empty where there is none.
    """

    kernel: NDArray[np.float32]
    bias: NDArray[np.float32]
    normalisation: tuple[NDArray[np.float32], ...]

    def folded(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Kernel and bias that do the batch normalisation too; a negative variance gives NaN."""
        if not self.normalisation:
            return self.kernel, self.bias
        scale, mean, variance = (vector.astype(np.float64) for vector in self.normalisation)
        with np.errstate(invalid="ignore", over="ignore"):
            factor = scale / np.sqrt(variance + EPSILON)
            kernel = self.kernel * factor[:, None, None, None]
            return kernel.astype(np.float32), (self.bias - mean * factor).astype(np.float32)


def read_weights(path: Path, wanted: Sequence[Convolution]) -> dict[str, Weights]:
    """Read the weights of all convolutions, by the names of their layers."""
    numbers = _read_numbers(path, sum(convolution.count for convolution in wanted))
    found: dict[str, Weights] = {}
    start = 0
    for one in wanted:
        part = numbers[start : start + one.count]
        start += one.count
        vectors = 4 if one.batch_normalize else 1
        bias, *normalisation = part[: vectors * one.filters].reshape(vectors, one.filters)
        kernel = part[vectors * one.filters :].reshape(one.filters, one.channels, one.size, one.size)
        found[one.name] = Weights(kernel, bias, tuple(normalisation))
        if not all(np.isfinite(array).all() for array in found[one.name].folded()):
            raise ModelError(f"{path}: {one.name}_weights is not finite; the file is damaged, download it again")
    return found


def _read_numbers(path: Path, count: int) -> NDArray[np.float32]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = _header_bytes(path, file.read(12))
            expected = header_bytes + count * 4
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
    """Return the bytes of the header: three int32 and the count of seen images, 64 bits wide since version 0.2."""
    if len(start) < 12:
        raise ModelError(f"{path}: has {len(start)} bytes, expected Darknet .weights with a header of 16 or 20")
    major, minor, _ = struct.unpack("<iii", start)
    # The same test as Darknet's load_weights_upto; files above 1000 were written transposed, for layers not converted.
    wide = major * 10 + minor >= 2 and major < 1000 and minor < 1000
    return 20 if wide else 16
