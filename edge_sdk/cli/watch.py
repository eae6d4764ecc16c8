"""`edge-sdk watch`: show the messages of a fleet of devices live in a terminal, as lines, as JSON or as COCO results.

A `Subscriber` receives the messages in its thread. `_Watch` updates a `Fleet` with each message, and either prints the
news or lets a `Screen` redraw the `view` of the whole fleet in place. Text from the network reaches this module without
control characters; only this module adds styles.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from edge_sdk.cli.options import PATH, POSITIVE, connection_options, logging_to_standard_error, mqtt_settings
from edge_sdk.core.errors import PublishError
from edge_sdk.core.logs import counted
from edge_sdk.core.threads import Stop, stopping_on_signals
from edge_sdk.fleet.coco import CocoWriter
from edge_sdk.fleet.fleet import CameraView, DeviceView, Fleet
from edge_sdk.fleet.messages import DeviceAddress, columns_of, filters, fitted, padded, plain, read, record_of
from edge_sdk.tasks.detection import DetectionMessage

if TYPE_CHECKING:
    from edge_sdk.messages.schema import Incoming
    from edge_sdk.publishing.subscriber import Subscriber

_log = logging.getLogger(__name__)
_DRAW_S = 0.25
_SILENT_S = 5.0

_ENTER = "\x1b[?1049h\x1b[?25l"  # switch to the alternate screen, hide the cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_TOP, _CLEAR_LINE, _BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_SMALLEST = (20, 3)
_FALLBACK = (80, 24)
_COLORS = {"online": "green", "opened": "green", "reopened": "green", "offline": "red", "lost": "red"}
_MARKS = {"online": "●", "offline": "○"}


@click.command("watch")
@click.option("--mqtt", "mqtt_url", required=True, help="mqtt[s]:// or ws[s]://[user@]host[:port][/path].")
@connection_options
@click.option("--prefix", default="edge/v1", show_default=True, help="First levels of every topic.")
@click.option("--site", help="Only this site.  [default: all]")
@click.option("--device", help="Only this device.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Every message as a line of JSON on standard output.")
@click.option("--coco", type=PATH, help="Collect detections as COCO results in a new FILE, and FILE.images.json.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--duration", type=POSITIVE, help="Stop after so many seconds.")
@click.option("-q", "--quiet", is_flag=True, help="No lines about the connection on standard error.")
def command(**options: Any) -> None:
    """Show the devices below a broker, their cameras, and what they see.

    Ctrl-C ends it with exit code 0. Where standard output is no terminal, what is news comes as plain lines.
    """
    from edge_sdk.publishing.subscriber import Subscriber  # loads paho

    prefix, path, as_json = options["prefix"], options["coco"], options["as_json"]
    topics = filters(prefix, options["site"], options["device"])
    is_live = not as_json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with logging_to_standard_error(quiet=options["quiet"]):
        settings = mqtt_settings(options, options["mqtt_url"], prefix=prefix)
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(stopping_on_signals())
            subscriber: Subscriber | None = None
            coco = None if path is None else CocoWriter(path)
            if coco is not None:
                stack.callback(lambda: _end(coco, subscriber))
            screen = Screen(sys.stdout) if is_live else None
            watch = _Watch(settings.address, prefix, topics[0], coco, screen, as_json=as_json)
            subscriber = Subscriber(settings, topics, watch.change_connection)
            stack.callback(subscriber.close)
            if screen is not None:
                stack.enter_context(screen)
            watch.run(subscriber, stop, options["count"], options["duration"])
        if screen is not None:
            watch.print_last_view(screen)
        if subscriber.lost:
            _log.warning(f"{counted(subscriber.lost, 'message')} lost: more came than could be read here")
        if not subscriber.has_been_online:
            raise PublishError(f"broker {watch.broker}")
        if coco is not None:
            left = "detections are left out: too many labels, or labels or boxes that are too long"
            odd = f"; {coco.left_out} {left}" if coco.left_out else ""
            _log.info(
                f"wrote {path}: {coco.results} detections on {coco.images} images, named in {coco.images_file}{odd}"
            )


def _end(coco: CocoWriter, subscriber: Subscriber | None) -> None:
    """Close the COCO files; delete them if the broker was never reached."""
    if subscriber is not None and subscriber.has_been_online:
        coco.close()
    else:
        coco.discard()


class _Watch:
    """Takes messages and shows the news, from the first message to the end.

    Attributes:
        broker: address of the broker and state of the connection, as text.
    """

    def __init__(
        self, address: str, prefix: str, topic: str, coco: CocoWriter | None, screen: Screen | None, *, as_json: bool
    ) -> None:
        self._address, self._prefix, self._fleet = address, prefix, Fleet()
        self._coco, self._screen, self._as_json = coco, screen, as_json
        self._hint = (
            f"nothing yet, waiting for messages on {topic}\n"
            "Does a device publish there (edge-sdk run --mqtt), and may this user read it?"
        )
        self.broker = f"{address}: connecting"
        self._is_online = self._was_online = False
        self._messages = 0

    def change_connection(self, state: str, detail: str) -> None:
        """Set the state of the connection; called in the subscriber's thread."""
        from edge_sdk.publishing.tls import trust_refusal

        if state == "closed":
            return
        self._is_online = state == "online"
        self._was_online = self._was_online or self._is_online
        trouble = trust_refusal(plain(detail)) if state == "refused" else plain(detail)
        if self._is_online:
            words = "online" + (f" ({detail})" if detail else "")
        elif state == "refused" and not self._was_online:  # the program ends and prints this as its error
            self.broker = f"{self._address}: {trouble}"
            return
        else:
            words = f"{trouble}, trying again"
        self.broker = f"{self._address}: {words}"
        if self._screen is None:
            _log.info(f"broker {self.broker}")
            if self._is_online and not self._messages:
                _log.info(self._hint.partition("\n")[0])

    def run(self, subscriber: Subscriber, stop: Stop, count: int | None, duration_s: float | None) -> None:
        """Watch until `stop` is set, the count or duration is reached, or the broker refuses the first connection."""
        began, drawn_at = time.monotonic(), 0.0
        while not stop.is_asked():
            taken = subscriber.take(_DRAW_S)
            for incoming in taken[: None if count is None else count - self._messages]:
                self._take(incoming)
            if self._screen is None:
                sys.stdout.flush()
            now = time.monotonic()
            self._fleet.lost = subscriber.lost
            if self._screen is not None and now - drawn_at >= _DRAW_S:
                drawn_at = now
                self._screen.draw(self._view)
            is_over = duration_s is not None and now - began >= duration_s
            is_counted = count is not None and self._messages >= count
            if is_over or is_counted or (subscriber.state == "refused" and not subscriber.has_been_online):
                return

    @property
    def _waiting(self) -> str:
        """A text that says why no message has arrived."""
        return self._hint if self._is_online else "nothing yet, waiting for the broker"

    def print_last_view(self, screen: Screen) -> None:
        """Print the last view to the normal screen, where it stays after the end."""
        for line in self._view(screen.size[0], 1000):
            click.echo(line)

    def _take(self, incoming: Incoming) -> None:
        now = _now()
        self._messages += 1
        address = DeviceAddress.of(incoming.topic, self._prefix)
        if self._as_json:
            click.echo(record_of(incoming.topic, incoming.payload, incoming.qos, now, address, retain=incoming.retain))
            if self._coco is None:
                return
        if address is None or not address.is_told:
            return
        message = read(address.kind, incoming.payload)
        if self._coco is not None and isinstance(message, DetectionMessage):
            self._coco.add(address, message)
        news = self._fleet.take(address, message, now, is_retained=incoming.retain)
        if self._screen is None and not self._as_json:
            for line in news:
                click.echo(f"{now:%H:%M:%S} {line}")

    def _view(self, columns: int, lines: int) -> list[str]:
        return view(self._fleet, self.broker.replace(": ", " ", 1), self._waiting, _now(), columns, lines)


def _now() -> datetime:
    return datetime.now().astimezone()


class Screen:
    """A terminal on which each view replaces the one before."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Screen:
        self._out.write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        self._out.write(_WRAP + _LEAVE)
        self._out.flush()

    @property
    def size(self) -> tuple[int, int]:
        """The present columns and lines of the terminal."""
        try:
            size = os.get_terminal_size(self._out.fileno())
        except OSError:
            return _FALLBACK
        columns, lines = size if size.columns and size.lines else _FALLBACK
        return max(columns, _SMALLEST[0]), max(lines, _SMALLEST[1])

    def draw(self, view: Callable[[int, int], list[str]]) -> None:
        """Draw the lines that `view` returns for the terminal's columns and lines."""
        size = self.size
        lines = view(*size)[: size[1]]
        # Each line is cleared before it is written, because clearing afterwards would delete the character in the last
        # column. No line end follows the last line, because it would scroll the first line away.
        body = "\r\n".join(_CLEAR_LINE + line for line in lines)
        rest = f"\r\n{_BELOW}" if len(lines) < size[1] else ""
        self._out.write(f"{_NO_WRAP}{_TOP}{body}{rest}{_WRAP}")
        self._out.flush()


def view(fleet: Fleet, broker: str, waiting: str, now: datetime, columns: int, lines: int) -> list[str]:
    """Return the view of the fleet: at most `lines` styled lines of at most `columns` columns."""
    head = _head(fleet, broker, now, columns)
    if not fleet.devices:
        wrapped = [part for line in waiting.splitlines() for part in _wrapped(line, columns)]
        return [*head, "", *(click.style(line, dim=True) for line in wrapped)][:lines]
    head = head[: max(1, lines - 1)]
    room = lines - len(head)
    devices = sorted(fleet.devices.values(), key=lambda device: device.name)
    body = [line for device in devices for line in _device(device, now, columns)]
    if len(body) > room:  # one line for each device; devices with trouble first
        devices.sort(key=lambda device: (not _has_trouble(device), device.name))
        body = [_device(device, now, columns)[0] for device in devices]
    if len(body) > room:
        left = len(body) - room + 1
        body = [*body[: room - 1], click.style(fitted(f"and {left} more; make the terminal taller", columns), dim=True)]
    return head + body


def _head(fleet: Fleet, broker: str, now: datetime, columns: int) -> list[str]:
    """Return the title line, and the full state of the connection below it if the title has no room for it."""
    online = sum(device.status == "online" for device in fleet.devices.values())
    odd = f", {fleet.unread} unreadable" if fleet.unread else ""
    odd += f", {fleet.lost} lost" if fleet.lost else ""
    right = f"{online} of {len(fleet.devices)} online{odd}  {now:%H:%M:%S}"
    room, title = max(columns - columns_of(right) - 1, 10), f"broker {broker}"
    line = click.style(fitted(f"{padded(title, room)} {right}", columns), reverse=True)
    whole = _wrapped(title, columns) if columns_of(title) > room else []
    return [line, *(click.style(part, fg="yellow") for part in whole)]


def _wrapped(text: str, columns: int) -> list[str]:
    """Break a plain text into lines of at most `columns` columns, between words where that is possible."""
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
        notes = [camera.degraded] if camera.degraded and device.status != "offline" else []
        lines += [_warning(line, columns, 4) for line in notes + camera.warnings]
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
    """Format a time as local time; return "" for a time outside the years 1 to 9999, which a message may contain."""
    try:
        here = moment.astimezone(now.tzinfo)
    except OverflowError:
        return ""
    return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"
