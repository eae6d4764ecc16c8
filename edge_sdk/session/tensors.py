"""Tensors: which inputs and outputs a session takes, and in which words it refuses others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from edge_sdk.errors import SessionError

DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(uint16)": np.uint16,
    "tensor(int16)": np.int16,
    "tensor(uint32)": np.uint32,
    "tensor(int32)": np.int32,
    "tensor(uint64)": np.uint64,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
"""ONNX Runtime's names of the types that a session handles."""

_INPUT_TYPES = ("tensor(float)", "tensor(uint8)")


class NodeArg(Protocol):
    """What ONNX Runtime says of an input or output."""

    name: str
    type: str
    shape: list[int | str | None]


def only_input(inputs: Sequence[NodeArg], where: str) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    """Name, shape and type of a model's one input.

    Raises:
        SessionError: there are others, or it is not float32 or uint8 of fixed shape.
    """
    if len(inputs) != 1:
        raise SessionError(f"{where}: has {len(inputs)} inputs, expected one image input")
    [image] = inputs
    shape = tuple(d for d in image.shape if isinstance(d, int))
    if image.type not in _INPUT_TYPES or len(shape) != len(image.shape):
        raise SessionError(
            f"{where}: input {image.name!r} is {image.type} {image.shape}, expected float32 or uint8 of fixed shape"
        )
    return image.name, shape, np.dtype(DTYPES[image.type])


def check_outputs(outputs: Sequence[NodeArg], where: str) -> None:
    """Refuse outputs that hold no numbers.

    Raises:
        SessionError: one is of strings, a sequence, a map or a type that numpy does not have.
    """
    for output in outputs:
        if output.type not in DTYPES:
            raise SessionError(f"{where}: output {output.name!r} is {output.type}, expected a tensor of numbers")


def misfit_of(given: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """What is wrong with an input, and the next step; None when nothing is."""
    if not isinstance(given, np.ndarray):
        return f"{type(given).__name__}; give a numpy array"
    found = f"{given.dtype} {given.shape}"
    if given.dtype != dtype:
        return f"{found}; convert it, as with astype(numpy.{dtype})"
    if given.shape != shape:
        return found
    if not given.flags.c_contiguous:
        return f"{found} that is not C-contiguous; give numpy.ascontiguousarray of it"
    return None
