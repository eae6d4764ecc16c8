"""The live view of `edge-sdk watch`: a fleet as the lines of a terminal, and drawing them in place.

Owns layout and escapes. What comes from the network is plain by then, and styled only here.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

import click

from edge_sdk.fleet import CameraView, DeviceView, Fleet
from edge_sdk.fleet.text import columns_of, fitted, padded

_ENTER = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_TOP, _CLEAR_LINE, _BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_SMALLEST = (20, 3)
_FALLBACK = (80, 24)
_COLORS = {"online": "green", "opened": "green", "reopened": "green", "offline": "red", "lost": "red"}
_MARKS = {"online": "●", "offline": "○"}
_SILENT_S = 5.0


class Screen:
    """A terminal that is drawn over.

    Args:
        out: the terminal.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._size = (0, 0)

    def __enter__(self) -> Screen:
        self._out.write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(_WRAP + _LEAVE)
        self._out.flush()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now."""
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _FALLBACK
        columns, lines = size if size.columns and size.lines else _FALLBACK
        return max(columns, _SMALLEST[0]), max(lines, _SMALLEST[1])

    def draw(self, view: Callable[[int, int], list[str]]) -> None:
        """Draw the lines that a view makes for so many columns and lines."""
        size = self.size
        clear = "" if size == self._size else _TOP + _BELOW
        self._size = size
        lines = view(*size)[: size[1]]
        # Cleared before and not after, which would take the character in the last column; and no end after the last
        # line, which would scroll the first one away.
        body = "\r\n".join(_CLEAR_LINE + line for line in lines)
        rest = f"\r\n{_BELOW}" if len(lines) < size[1] else ""
        self._out.write(f"{clear}{_NO_WRAP}{_TOP}{body}{rest}{_WRAP}")
        self._out.flush()


def view(fleet: Fleet, broker: str, waiting: str, now: datetime, columns: int, lines: int) -> list[str]:
    """The fleet in so many lines of so many columns, styled.

    Args:
        fleet: what was heard.
        broker: how the connection stands, plain.
        waiting: what is said while nothing came, plain.
        now: with a time zone.
        columns: of the terminal.
        lines: of the terminal.
    """
    head = _head(fleet, broker, now, columns)
    if not fleet.devices:
        wrapped = [part for line in waiting.splitlines() for part in _wrapped(line, columns)]
        return [*head, "", *(click.style(line, dim=True) for line in wrapped)][:lines]
    head = head[: max(1, lines - 1)]
    room = lines - len(head)
    devices = sorted(fleet.devices.values(), key=lambda device: device.name)
    body = [line for device in devices for line in _device(device, now, columns)]
    if len(body) > room:  # one line a device; those with trouble first
        devices.sort(key=lambda device: (not _has_trouble(device), device.name))
        body = [_device(device, now, columns)[0] for device in devices]
    if len(body) > room:
        left = len(body) - room + 1
        body = [*body[: room - 1], click.style(fitted(f"and {left} more; make the terminal taller", columns), dim=True)]
    return head + body


def _head(fleet: Fleet, broker: str, now: datetime, columns: int) -> list[str]:
    """One line; where there is no room for how the connection stands, that is below it too, whole."""
    online = sum(device.status == "online" for device in fleet.devices.values())
    count = f"{online} of {len(fleet.devices)} online"
    odd = f", {fleet.unread} unreadable" if fleet.unread else ""
    odd += f", {fleet.lost} lost" if fleet.lost else ""
    right = f"{count}{odd}  {now:%H:%M:%S}"
    room = max(columns - columns_of(right) - 1, 10)
    title = f"broker {broker}"
    line = click.style(fitted(f"{padded(title, room)} {right}", columns), reverse=True)
    whole = _wrapped(title, columns) if columns_of(title) > room else []
    return [line, *(click.style(part, fg="yellow") for part in whole)]


def _wrapped(text: str, columns: int) -> list[str]:
    """A plain text in lines of so many columns, broken between words where that is possible."""
    return [fitted(line, columns) for line in textwrap.wrap(text, columns, break_on_hyphens=False)]


def _has_trouble(device: DeviceView) -> bool:
    cameras = device.cameras.values()
    return device.status != "online" or bool(device.warnings) or any(c.warnings or c.trouble for c in cameras)


def _device(device: DeviceView, now: datetime, columns: int) -> list[str]:
    machine = (
        []
        if device.status == "offline"
        else [
            "" if device.temperature_c is None else f"{device.temperature_c:.0f} °C",
            "" if device.memory_rss_mb is None else f"{device.memory_rss_mb:.0f} MB",
            f"held back: {', '.join(device.throttled)}" if device.throttled else "",
            device.versions,
        ]
    )
    status = _status(device, now)
    text = "  ".join(word for word in (device.name, status, *machine) if word)
    color = _COLORS.get(device.status)
    mark = click.style(_MARKS.get(device.status, "·"), fg=color, bold=True)
    shown = fitted(text, columns - 2)
    lines = [f"{mark} {click.style(shown, fg=color if device.status == 'offline' else None, bold=True)}"]
    lines += [_warning(line, columns, 2) for line in device.warnings]
    width = max((columns_of(camera.name) for camera in device.cameras.values()), default=0)
    for camera in sorted(device.cameras.values(), key=lambda camera: camera.name):
        lines.append(_camera(camera, device, min(width, 20), now, columns))
        lines += [_warning(line, columns, 4) for line in camera.warnings]
    return lines


def _status(device: DeviceView, now: datetime) -> str:
    if device.since is None:
        return "not heard of"
    reason = f" ({device.reason})" if device.reason else ""
    before = "since before" if device.is_since_before else "since"
    return f"{device.status}{reason} {before} {_moment(device.since, now)}"


def _camera(camera: CameraView, device: DeviceView, width: int, now: datetime, columns: int) -> str:
    fps, name, seen = camera.fps(now), padded(camera.name, width), _seen(camera, now)
    if device.status == "offline":
        last = "no result heard" if camera.heard_at is None else f"last: {camera.words}"
        return click.style(fitted(f"  {name}  {last}", columns), dim=True)
    lost_at = _moment(camera.since, now) if camera.source == "lost" and camera.since else ""
    source = f"{camera.source} since {lost_at}" if lost_at else camera.source
    trouble = f": {camera.trouble}" if camera.trouble else ""
    is_well = camera.source in ("opened", "reopened")
    words = [
        "paused" if camera.is_paused else "",
        "" if is_well and (fps is not None or camera.is_paused) else f"{source}{trouble}",
        "" if fps is None or camera.is_paused else f"{fps:5.1f} fps",
        "" if camera.age_ms is None or fps is None or camera.is_paused else f"{camera.age_ms:4.0f} ms",
        " ".join(word for word in (camera.model.partition(" ")[0], camera.variant) if word),
    ]
    rest = "  ".join(word for word in words if word)
    start = f"  {name}  {rest}  "
    color = "red" if camera.source == "lost" else "yellow" if camera.is_paused else None
    if columns_of(start) >= columns:
        return click.style(fitted(start.rstrip(), columns), fg=color)
    return click.style(start, fg=color) + click.style(fitted(seen, columns - columns_of(start)), bold=fps is not None)


def _seen(camera: CameraView, now: datetime) -> str:
    note = f" [{camera.note}]" if camera.note else ""
    if camera.heard_at is None:
        return f"no result yet{note}"
    silent_s = (now - camera.heard_at).total_seconds()
    quiet = f"no result for {silent_s:.0f} s; last: " if silent_s > _SILENT_S else ""
    quiet = "last: " if camera.is_paused else quiet
    return f"{quiet}{camera.words}{note}"


def _warning(line: str, columns: int, indent: int) -> str:
    return click.style(fitted(f"{' ' * indent}! {line}", columns), fg="yellow")


def _moment(moment: datetime, now: datetime) -> str:
    """As the clock here has it; empty where that is before the year 1 or after 9999: anybody may have written it."""
    try:
        here = moment.astimezone(now.tzinfo)
    except OverflowError:
        return ""
    return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"
