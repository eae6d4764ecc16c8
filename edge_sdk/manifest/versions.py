"""ONNX Runtime versions, and which of them may run a bundle."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

_Version = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?$")]


class RuntimeRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """ONNX Runtime versions in which golden was replayed, from `minimum` to `maximum`'s minor release."""

    minimum: _Version
    maximum: _Version

    def admits(self, version: str) -> bool:
        """Whether `version` ("1.31.1", suffixes ignored) lies in the range."""
        found = parse_version(version)
        return parse_version(self.minimum) <= found and found[:2] <= parse_version(self.maximum)[:2]


def parse_version(text: str) -> tuple[int, int, int]:
    """`1.31.1`, `1.31` or `1.31.1+cu12` as three numbers, for comparing."""
    numbers = [int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3]]
    padded = [*numbers, 0, 0, 0]
    return padded[0], padded[1], padded[2]
