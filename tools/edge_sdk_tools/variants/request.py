"""Request: which further models a bundle is to carry beside the one that model.toml describes."""

from __future__ import annotations

import re

import msgspec

from edge_sdk.core.errors import UsageError

_SMALLEST, _LARGEST = 8, 8192  # sides that model.toml takes


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for.

    Attributes:
        sizes: other input sizes, width and height in pixels.
        fp32: the float model.
        fp16: the float model with its weights stored in half.
        dynamic: INT8 weights, the ranges of activations taken from each frame.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    fp32: bool = False
    fp16: bool = False
    dynamic: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not (self.sizes or self.fp32 or self.fp16 or self.dynamic)


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Sizes such as `640x384,416`: width x height, or one number for a square; each once.

    Raises:
        UsageError: something else is written there.
    """
    return tuple(dict.fromkeys(_size(part.strip(), text) for part in text.split(",")))


def size_text(size_wh: tuple[int, int]) -> str:
    """`640x384`."""
    return f"{size_wh[0]}x{size_wh[1]}"


def _size(part: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", part, re.ASCII)
    if found is None:
        raise UsageError(f"--sizes {text}: {part!r} is no size, expected such as 416 or 640x384, separated by commas")
    width, height = int(found[1]), int(found[2] or found[1])
    if not (_SMALLEST <= width <= _LARGEST and _SMALLEST <= height <= _LARGEST):
        raise UsageError(f"--sizes {text}: {part} is outside of {_SMALLEST} to {_LARGEST} pixels a side")
    return width, height
