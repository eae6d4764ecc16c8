"""Alarms: which readings people should know of.

Owns the limits and the words. A limit is left at another level than it is reached, so that a reading beside it does
not come and go.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edge_sdk.health.readings import Readings

_LITTLE_DISK_MB = 500.0  # of a large disk; of a small one a twentieth is little
_LITTLE_DISK_SHARE = 0.05
_LITTLE_MEMORY_MB = 64.0  # less than a small model takes while another one runs
_HOT_C = 80.0  # where a Raspberry Pi begins to slow down
_MANY_FILES_SHARE = 0.8
_CLEAR = 0.7  # of the level at which an alarm began
_CLEAR_HOT = (_HOT_C - 5) / _HOT_C
_CALM_READINGS = 6  # a weak power supply fails for moments, whenever the board works


class _Rule(msgspec.Struct, frozen=True):
    """When something is wrong.

    Attributes:
        name: of what is wrong, as in the status's `warnings`.
        level: of the readings; 1 and more is an alarm; None: unknown.
        line: for people.
        clear: the alarm is over below this level.
        calm: after so many readings in a row.
    """

    name: str
    level: Callable[[Readings], float | None]
    line: Callable[[Readings], str]
    clear: float = _CLEAR
    calm: int = 1


def _disk_level(readings: Readings) -> float | None:
    if readings.disk_free_mb is None or not readings.disk_mb:
        return None
    return min(_LITTLE_DISK_MB, readings.disk_mb * _LITTLE_DISK_SHARE) / max(readings.disk_free_mb, 1e-6)


def _memory_level(readings: Readings) -> float | None:
    return None if readings.free_memory_mb is None else _LITTLE_MEMORY_MB / max(readings.free_memory_mb, 1e-6)


def _files_level(readings: Readings) -> float | None:
    if readings.open_files is None or not readings.open_files_limit:
        return None
    return readings.open_files / readings.open_files_limit / _MANY_FILES_SHARE


_RULES = (
    _Rule(
        "disk",
        _disk_level,
        lambda r: (
            f"the disk is nearly full: {r.disk_free_mb:.0f} MB are free of {r.disk_mb:.0f}; make room, or new "
            "bundles and results that wait for the broker cannot be kept"
        ),
    ),
    _Rule(
        "memory",
        _memory_level,
        lambda r: f"memory is low: {r.free_memory_mb:.0f} MB are free; end other programs, or run a smaller model",
    ),
    _Rule(
        "hot",
        lambda r: None if r.temperature_c is None else r.temperature_c / _HOT_C,
        lambda r: (
            f"the board is hot: {r.temperature_c:.0f} degrees; from {_HOT_C:.0f} on it slows itself down, so cool it"
        ),
        clear=_CLEAR_HOT,
    ),
    _Rule(
        "under_voltage",
        lambda r: None if r.under_voltage is None else float(r.under_voltage),
        lambda _: (
            "the power supply is too weak: the board slows itself down and may lose what it writes; take the "
            "supply and the cable that its maker names"
        ),
        calm=_CALM_READINGS,
    ),
    _Rule(
        "open_files",
        _files_level,
        lambda r: (
            f"{r.open_files} of {r.open_files_limit} files that this process may open are open; at the limit cameras "
            "and the broker cannot be reached again: raise it (LimitNOFILE= of the unit, or prlimit while it runs)"
        ),
    ),
)


class Alarms:
    """Remembers which are on."""

    def __init__(self) -> None:
        self._calm: dict[str, int] = {}  # of those that are on: readings in a row that were below

    def update(self, readings: Readings) -> list[tuple[str, str]]:
        """Look at new readings.

        Returns:
            What changed, by name: a line for people, or an empty one when it is over. What became unknown did not.
        """
        changes = []
        for rule in _RULES:
            level = rule.level(readings)
            if level is None:
                continue
            if level >= 1:
                if rule.name not in self._calm:
                    changes.append((rule.name, rule.line(readings)))
                self._calm[rule.name] = 0
            elif rule.name in self._calm and self._is_over(rule, level):
                changes.append((rule.name, ""))
        return changes

    def _is_over(self, rule: _Rule, level: float) -> bool:
        self._calm[rule.name] = self._calm[rule.name] + 1 if level < rule.clear else 0
        if self._calm[rule.name] < rule.calm:
            return False
        del self._calm[rule.name]
        return True
