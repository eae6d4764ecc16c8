"""What the workstation shows while it works: a bar for the step that runs, and a closing table."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import click
from rich import progress
from rich.console import Console
from rich.table import Table

_FIRST_S = 10.0  # until the first line where there is no terminal
_SLOWER = 1.5  # each line comes so many times as late as the one before: ten lines in six minutes, fifteen in an hour


class StepProgress:
    """Call it with (step, done, total); one bar is of the present step, and vanishes at the end.

    Without a terminal a line now and then says how far the last step is, whether or not it was called meanwhile.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._progress = progress.Progress(
            progress.TextColumn("{task.description:<18}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("start", total=1)
        # rich before 14 ends even a disabled bar with an empty line.
        self._enabled = console.is_terminal and not quiet
        self._quiet, self._began_s = quiet, time.monotonic()
        self._last, self._step_began_s = ("start", 0, 1), self._began_s
        self._over = threading.Event()

    def __enter__(self) -> StepProgress:
        if self._enabled:
            self._progress.start()
        elif not self._quiet:
            threading.Thread(target=self._say, name="edge-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._enabled:
            self._progress.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        if step != self._last[0]:
            self._step_began_s = time.monotonic()
            self._progress.reset(self._task, description=step)
        self._last = step, done, total
        self._progress.update(self._task, completed=done, total=total)

    def _say(self) -> None:
        due_s = _FIRST_S
        while not self._over.wait(self._began_s + due_s - time.monotonic()):
            due_s *= _SLOWER
            (step, done, total), now_s = self._last, time.monotonic()
            left_s = (now_s - self._step_began_s) * (total - done) / done if done else 0.0
            left = f", about {left_s / 60:.0f} min left" if left_s > 60 else ""
            how_far = f": {done} of {total}" if total > 1 else ""
            click.echo(f"{step}{how_far}, {now_s - self._began_s:.0f} s so far{left}", err=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output: first column to the left, the others to the right."""
    table = Table()
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(title, markup=False, highlight=False, soft_wrap=True)  # rich folds a table's own title to its width
    console.print(table)
