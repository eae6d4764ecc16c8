"""A Darknet .cfg as sections with typed options; every complaint names file, line and layer.

Owns the syntax, and no meaning: what a section does stands in `darknet_layers`.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from edge_sdk.core.errors import ModelError
from edge_sdk.core.files import read_regular

_INT_MAX = 2**31 - 1  # Darknet's own limit: C's int


class Section(msgspec.Struct, frozen=True):
    """One section of a .cfg.

    Attributes:
        kind: the word in brackets, in lower case.
        index: Darknet's count of layers, from 0; -1 for [net].
        where: file and line, for errors.
        options: keys and values as written, without white space.
    """

    kind: str
    index: int
    where: str
    options: dict[str, str]

    def error(self, message: str) -> ModelError:
        """An error about this section."""
        place = f"layer {self.index} [{self.kind}]" if self.index >= 0 else f"[{self.kind}]"
        return ModelError(f"{self.where}: {place}: {message}")

    def integer(self, key: str, default: int | None, minimum: int = 0, maximum: int = _INT_MAX) -> int:
        """A whole number from `minimum` to `maximum`.

        Raises:
            ModelError: no whole number, out of range, or missing where `default` is None.
        """
        text = self.options.get(key)
        if text is None:
            if default is None:
                raise self.error(f"{key} is missing")
            return default
        value = self._parse_integer(key, text)
        if not minimum <= value <= maximum:
            raise self.error(f"{key} is {value}, expected {minimum} to {maximum}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number.

        Raises:
            ModelError: when it is none.
        """
        return self._parse_number(key, self.options.get(key, str(default)))

    def integers(self, key: str) -> tuple[int, ...]:
        """Whole numbers separated by commas; a missing key gives none."""
        return tuple(self._parse_integer(key, part) for part in self._parts(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Numbers separated by commas; a missing key gives none."""
        return tuple(self._parse_number(key, part) for part in self._parts(key))

    def refuse(self, neutral: dict[str, str]) -> None:
        """Refuse options that would change the result and are not converted.

        Args:
            neutral: the options, each with the one value that changes nothing.

        Raises:
            ModelError: when one of them has another value.
        """
        for key, expected in neutral.items():
            if self.options.get(key, expected) != expected:
                raise self.error(f"{key}={self.options[key]} is not supported, expected {key}={expected}")

    def _parts(self, key: str) -> list[str]:
        # Darknet's own files end some lists with a comma.
        return [part for part in self.options.get(key, "").split(",") if part]

    def _parse_integer(self, key: str, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self.error(f"{key} is {text!r}, expected a whole number") from None

    def _parse_number(self, key: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{key} is {text!r}, expected a number")
        return value


def read_cfg(path: Path) -> tuple[Section, list[Section]]:
    """Read a .cfg.

    Args:
        path: the file.

    Returns:
        The [net] section, and one section a layer in their order.

    Raises:
        ModelError: missing, not text, not Darknet's syntax, or without layers.
    """
    sections: list[Section] = []
    for number, raw in enumerate(_read_text(path).splitlines(), start=1):
        line = "".join(raw.split("#")[0].split(";")[0].split())
        if not line:
            continue
        where = f"{path}:{number}"
        if line.startswith("["):
            sections.append(Section(_parse_kind(line, where), len(sections) - 1, where, {}))
            continue
        key, equals, value = line.partition("=")
        if not equals or not sections:
            raise ModelError(f"{where}: expected `[section]` or `key=value`, got {raw.strip()[:60]!r}")
        # Of a key given twice Darknet takes the first.
        sections[-1].options.setdefault(key, value)
    if not sections or sections[0].kind not in ("net", "network"):
        raise ModelError(f"{path}: does not begin with [net], expected a Darknet .cfg")
    if len(sections) == 1:
        raise ModelError(f"{path}: no layers after [net]")
    return sections[0], sections[1:]


def _parse_kind(line: str, where: str) -> str:
    if not line.endswith("]") or len(line) < 3:
        raise ModelError(f"{where}: expected `[section]`, got {line[:60]!r}")
    return line[1:-1].lower()


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, expected a Darknet .cfg") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path}: not text, expected a Darknet .cfg") from None
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror}") from cause
