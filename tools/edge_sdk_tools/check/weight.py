"""Weight: one large constant of a model, left where it lies in a file.

Owns which types are left there. Imports no onnx: it crosses to the process that does without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

DTYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
}
"""By TensorProto.DataType; ONNX writes little-endian. Other types are never large in a vision model."""


class Weight(msgspec.Struct, frozen=True):
    """One weight.

    Attributes:
        name: of the tensor.
        data_type: TensorProto's number of its type, one of `DTYPES`.
        dims: its shape.
        file: the file that holds it, relative to the model's folder; empty for the model itself.
        offset, length: where in that file, in bytes.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    file: str
    offset: int
    length: int

    def read(self, files: Mapping[str, bytes]) -> NDArray[np.generic]:
        """View it in the files' bytes, without a copy; read-only, of shape `dims`."""
        data = files[self.file]
        return np.frombuffer(data, DTYPES[self.data_type], math.prod(self.dims), self.offset).reshape(self.dims)
