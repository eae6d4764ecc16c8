"""`edge-sdk watch`: what a fleet of devices publishes, live in a terminal, as lines, as JSON or as COCO results."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from edge_sdk.cli.mqtt_options import connection_options, mqtt_settings
from edge_sdk.cli.numbers import POSITIVE, number
from edge_sdk.cli.run import say
from edge_sdk.errors import PublishError
from edge_sdk.stop import Stop, stopping_on_signals

if TYPE_CHECKING:
    from edge_sdk.cli.watch_screen import Screen
    from edge_sdk.fleet import CocoWriter, Fleet
    from edge_sdk.publishing import Listener
    from edge_sdk.publishing.backlog import Heard

_DRAW_S = 0.25
_HINT_S = 3.0  # without a message, after which it is said what is missing
_LOST_EVERY_S = 10.0
_PATH = click.Path(path_type=Path)


@click.command("watch")
@click.option("--mqtt", "mqtt_url", required=True, help="mqtt[s]:// or ws[s]://[user@]host[:port][/path].")
@connection_options
@click.option("--prefix", default="edge/v1", show_default=True, help="First levels of every topic.")
@click.option("--site", help="Only this site.  [default: all]")
@click.option("--device", help="Only this device.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Every message as a line of JSON on standard output.")
@click.option("--coco", type=_PATH, help="Collect detections as COCO results in a new FILE, and FILE.images.json.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--duration", type=POSITIVE, callback=number, help="Stop after so many seconds.")
@click.option("-q", "--quiet", is_flag=True, help="No lines about the connection on standard error.")
def command(**options: object) -> None:
    """Show the devices below a broker, their cameras, and what they see.

    Ctrl-C ends it with exit code 0. Where standard output is no terminal, what is news comes as plain lines.
    """
    from edge_sdk.fleet import CocoWriter, Fleet, filters
    from edge_sdk.publishing import Listener

    quiet = bool(options["quiet"])
    warn: Callable[[str], None] = (lambda _line: None) if quiet else say
    prefix = cast("str", options["prefix"])
    topics = filters(prefix, cast("str | None", options["site"]), cast("str | None", options["device"]))
    settings = mqtt_settings(options, cast("str", options["mqtt_url"]), warn, prefix=prefix)
    path = cast("Path | None", options["coco"])
    is_live = not options["as_json"] and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stopping_on_signals())
        connection = _Connection(settings.address, None if is_live else warn)
        listener = Listener(settings, topics, connection.changed)
        stack.callback(listener.close)
        coco = None if path is None else CocoWriter(path)
        if coco is not None:
            stack.callback(_finish, coco, listener)
        screen = None
        if is_live:
            from edge_sdk.cli.watch_screen import Screen

            screen = stack.enter_context(Screen(sys.stdout))
        watch = _Watch(
            Fleet(), prefix, topics[0], connection, coco, screen, as_json=bool(options["as_json"]), warn=warn
        )
        watch.run(listener, stop, cast("int | None", options["count"]), cast("float | None", options["duration"]))
    if screen is not None:
        watch.leave_behind()
    if coco is not None and listener.has_been_online:
        odd = (
            f"; {coco.left_out} detections are left out: too many labels, or labels or boxes that are too long"
            if coco.left_out
            else ""
        )
        warn(f"wrote {path}: {coco.results} detections on {coco.images} images, named in {coco.images_file}{odd}")
    if not listener.has_been_online:
        raise PublishError(f"broker {settings.address}: {connection.words}")


def _finish(coco: CocoWriter, listener: Listener) -> None:
    """Files of what was never heard are no result."""
    if listener.has_been_online:
        coco.close()
    else:
        coco.discard()


class _Connection:
    """How the connection stands, in words.

    Args:
        address: of the broker.
        say: takes a line whenever it changes; None where the view shows it.
    """

    def __init__(self, address: str, say: Callable[[str], None] | None) -> None:
        self._address, self._say = address, say
        self.words = "connecting"
        self.is_online = self._was_online = False

    def changed(self, state: str, detail: str) -> None:
        """Called from the listener's thread."""
        if state == "closed":
            return
        from edge_sdk.fleet.text import plain
        from edge_sdk.publishing import refusal

        self.is_online = state == "online"
        self._was_online = self._was_online or self.is_online
        if self.is_online:
            self.words = "online" + (f" ({detail})" if detail else "")
        else:
            trouble = refusal(plain(detail)) if state == "refused" else plain(detail)
            if state == "refused" and not self._was_online:
                self.words = trouble  # it ends here, which is said then
                return
            self.words = f"{trouble}, trying again"
        if self._say is not None:
            self._say(f"broker {self._address}: {self.words}")

    @property
    def title(self) -> str:
        """The broker and how the connection stands."""
        return f"{self._address} {self.words}"


class _Watch:
    """One watching, from its first message to its end."""

    def __init__(
        self,
        fleet: Fleet,
        prefix: str,
        topic: str,
        connection: _Connection,
        coco: CocoWriter | None,
        screen: Screen | None,
        *,
        as_json: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._fleet, self._prefix, self._connection = fleet, prefix, connection
        self._coco, self._screen, self._as_json, self._warn = coco, screen, as_json, warn
        self._hint = (
            f"nothing yet, waiting for messages on {topic}\n"
            "Does a device publish there (edge-sdk run --mqtt), and may this user read it?"
        )
        self._messages = 0
        self._lost_at = -_LOST_EVERY_S

    def run(self, listener: Listener, stop: Stop, count: int | None, duration_s: float | None) -> None:
        """Until somebody, the count or the time ends it, or the broker refuses the first connection."""
        try:
            self._listen(listener, stop, count, duration_s)
        finally:
            self._look_at_losses(listener.lost, math.inf)

    def _listen(self, listener: Listener, stop: Stop, count: int | None, duration_s: float | None) -> None:
        began, hint_at, drawn_at = time.monotonic(), 0.0, 0.0
        while not stop.is_asked():
            heard = listener.take(_DRAW_S)
            left = len(heard) if count is None else count - self._messages
            for each in heard[:left]:
                self._take(each)
            self._flush()
            now = time.monotonic()
            self._look_at_losses(listener.lost, now)
            if self._screen is not None and now - drawn_at >= _DRAW_S:
                drawn_at = now
                self._draw(self._screen)
            if self._connection.is_online and not hint_at:
                hint_at = now + _HINT_S
            is_due = self._connection.is_online and now >= hint_at > 0
            if is_due and not self._messages and self._screen is None:
                hint_at = float("inf")
                self._warn(self._hint.replace("\n", ". "))
            is_over = duration_s is not None and now - began >= duration_s
            is_counted = count is not None and self._messages >= count
            if is_over or is_counted or (listener.state == "refused" and not listener.has_been_online):
                return

    @property
    def _waiting(self) -> str:
        """Why nothing came."""
        return self._hint if self._connection.is_online else "nothing yet, waiting for the broker"

    def leave_behind(self) -> None:
        """What the view showed last, where it can be read on after its end."""
        from edge_sdk.cli.watch_screen import view

        columns = click.get_current_context().terminal_width or 80
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(sys.stdout.fileno()).columns or columns
        for line in view(self._fleet, self._connection.title, self._waiting, _now(), columns, 1000):
            click.echo(line)

    def _take(self, heard: Heard) -> None:
        from edge_sdk.fleet import Address, record_of
        from edge_sdk.fleet.reading import read
        from edge_sdk.publishing import DetectionMessage

        now = _now()
        self._messages += 1
        address = Address.of(heard.topic, self._prefix)
        if self._as_json:
            click.echo(record_of(heard.topic, heard.payload, heard.qos, now, address, retain=heard.retain))
            if self._coco is None:
                return
        if address is None or not address.is_told:
            return
        message = read(address.kind, heard.payload)
        if self._coco is not None and isinstance(message, DetectionMessage):
            self._coco.add(address, message)
        news = self._fleet.take(address, message, now, is_retained=heard.retain)
        if self._screen is None and not self._as_json:
            for line in news:
                click.echo(f"{now:%H:%M:%S} {line}")

    def _look_at_losses(self, lost: int, now: float) -> None:
        """What was not heard because nobody read: said now and then, and shown."""
        if lost == self._fleet.lost or now - self._lost_at < _LOST_EVERY_S:
            return
        more, self._fleet.lost, self._lost_at = lost - self._fleet.lost, lost, now
        if self._screen is None:
            self._warn(f"warning: {more} messages are lost: they came faster than they are read here")

    def _flush(self) -> None:
        if self._screen is None:
            sys.stdout.flush()

    def _draw(self, screen: Screen) -> None:
        from edge_sdk.cli.watch_screen import view

        now, title = _now(), self._connection.title
        screen.draw(lambda columns, lines: view(self._fleet, title, self._waiting, now, columns, lines))


def _now() -> datetime:
    return datetime.now().astimezone()
