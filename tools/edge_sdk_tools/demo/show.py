"""What the demo shows: lines for its steps, and while the video runs one table that keeps changing.

Where the output is no terminal, the table becomes a plain line every two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from edge_sdk_tools.demo.tally import Tally
from edge_sdk_tools.evaluate import OnProgress

_LINE_EVERY_S = 2.0


class Show:
    """Writes to one console.

    Args:
        console: where to; rich decides whether it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def step(self, text: str) -> None:
        """One line for one step."""
        self._console.print(Text.assemble(("demo ", "bold"), text), soft_wrap=True)

    def tell(self, text: str) -> None:
        """One line of detail."""
        self._console.print(Text(f"     {text}"), soft_wrap=True)

    @contextmanager
    def building(self) -> Iterator[OnProgress]:
        """Bars for a build's steps; nothing where there is no terminal."""
        columns = (TextColumn("     {task.description:<18}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # Standard output is swallowed while the quantizer narrates there.
        console = Console(stderr=True)
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            tasks = {}

            def on_progress(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = progress.add_task(step, total=total)
                progress.update(tasks[step], completed=done, total=total)

            yield on_progress

    @contextmanager
    def running(self) -> Iterator[Running]:
        """The table, or the lines, for the length of the video."""
        if not self._console.is_terminal:
            yield Running(self._console, None)
            return
        with Live(console=self._console, auto_refresh=False) as live:
            yield Running(self._console, live)

    def close(self, tally: Tally, folder: Path) -> None:
        """What was found, how fast, where the files are, and what to try next."""
        self.step(closing_line(tally))
        self.step(latency_line(tally))
        self.step(f"the files are in {folder}:")
        self.tell(f"annotated.jpg     {best_line(tally)}")
        self.tell("annotated.mp4     the video with what was found in it")
        self.tell("yolov4_tiny.edge  the bundle that ran")
        self.tell("messages.jsonl    the messages as an independent subscriber received them")

    def next_steps(self, lines: list[tuple[str, str]]) -> None:
        """Commands to try, each with what it does."""
        self.step("to try next:")
        for what, command in lines:
            self.tell(f"{what}: {command}")


class Running:
    """Shows a tally while it grows; made by `Show.running`."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next_s = 0.0

    def update(self, tally: Tally) -> None:
        """Show it: at once in a terminal, at most every two seconds elsewhere."""
        if self._live:
            self._live.update(_table(tally), refresh=True)
        elif time.monotonic() >= self._next_s and tally.frames:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            self._console.print(f"     {summary_line(tally)}; {latency_line(tally)}", soft_wrap=True, highlight=False)


def make_show(*, errors_only: bool = False) -> Show:
    """A show on standard output, or on standard error when output is kept for JSON."""
    return Show(Console(stderr=errors_only))


def summary_line(tally: Tally) -> str:
    """Such as `people: 3 now; seen 412 times in 230 frames; frames dropped: 20`."""
    return (
        f"people: {tally.now} now; seen {tally.people} times in {tally.frames} frames; frames dropped: {tally.dropped}"
    )


def closing_line(tally: Tally) -> str:
    """What was found in all."""
    most = tally.best.people if tally.best else 0
    seen = f"saw a person {tally.people} times in {tally.frames} frames, at most {most} at once"
    return f"{seen}; frames dropped: {tally.dropped}"


def latency_line(tally: Tally) -> str:
    """Ages and inference times, median and 99th percentile."""
    parts = (("capture to outbox", tally.age), ("inference", tally.inference))
    return "; ".join(f"{name} p50 {of.p50_ms:.1f} ms, p99 {of.p99_ms:.1f} ms" for name, of in parts if of)


def best_line(tally: Tally) -> str:
    """What the picture shows."""
    return f"frame {tally.best.message.seq}, {tally.best.people} people" if tally.best else "no result"


def _table(tally: Tally) -> Table:
    table = Table(title="as an independent subscriber receives it", title_justify="left")
    for column in ("", "now", "all", "p50", "p99"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("people", str(tally.now), str(tally.people), "", "")
    table.add_row("frames", "", str(tally.frames), "", "")
    table.add_row("frames dropped", "", str(tally.dropped), "", "")
    for name, of in (("capture to outbox, ms", tally.age), ("inference, ms", tally.inference)):
        table.add_row(name, "", "", *((f"{of.p50_ms:.1f}", f"{of.p99_ms:.1f}") if of else ("", "")))
    return table
