"""What `evaluate` and `distill-check` have in common: their options, and how figures and images are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edge_sdk.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edge_sdk_tools.dataset import Skipped
    from edge_sdk_tools.evaluate import Evaluation, Figure, Interval

_NAMED = 3
_WIDTH = 80
_IN_PERCENT = ("top-", "mAP", "mIoU", "detections matched")
_OPTIONS = (
    click.option("--max-images", type=click.IntRange(min=1), help="Use so many at most, evenly spread."),
    click.option("--jobs", type=click.IntRange(min=1, max=256), help="Threads.  [default: one a core]"),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and tables."),
)


def measuring_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that measures on images: `max_images`, `jobs` and `as_json`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def show_figures(evaluation: Evaluation, model: str, reference: str) -> None:
    """Warnings, the table against labels, and a line for each figure of agreement.

    Args:
        evaluation: of one model, or of one beside another.
        model: what its column is called.
        reference: what the other's is called.
    """
    from edge_sdk_tools.progress import print_table

    for warning in evaluation.warnings:
        warn(warning)
    show_skipped(evaluation.skipped)
    beside = f" beside {evaluation.reference}" if evaluation.reference else ""
    title = f"{evaluation.model}{beside} on {evaluation.images} images of {evaluation.data}"
    if evaluation.quality:
        print_table(title, *_table(evaluation.quality, model, reference if beside else None))
    else:
        click.echo(title)
    for figure in evaluation.agreement:
        click.echo(f"{figure.name}: {_with_interval(figure.name, figure.value)}")


def show_images(evaluation: Evaluation) -> None:
    """What the images were read as, and which of them were left out."""
    click.echo(f"read as {evaluation.format}")
    click.echo(f"95 % intervals: {evaluation.resamples} resamplings of the images; shares as Wilson's or wider")
    if evaluation.calibrated:
        click.echo(f"left out because they calibrated a model: {evaluation.calibrated}")
    if evaluation.duplicates:
        click.echo(f"left out because their content is there already: {evaluation.duplicates}")


def points(value: float, low: float, high: float) -> str:
    """A difference in points (hundredths), with its interval."""
    # Zero is added so that none of them is a minus zero.
    value, low, high = (round(100 * x, 1) + 0.0 for x in (value, low, high))
    return f"{value:+.1f} [{low:+.1f} to {high:+.1f}]"


def points_of(difference: Interval) -> str:
    """The same, of a difference of two figures."""
    return points(difference.value, difference.low, difference.high)


def folded(line: str) -> str:
    """A long line, for a terminal of 80 columns."""
    return click.wrap_text(line, width=_WIDTH, subsequent_indent="  ")


def _table(
    figures: Sequence[Figure], model: str, reference: str | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    if reference is None:
        return ("", f"{model} [95 %]"), [(f.name, _with_interval(f.name, f.value)) for f in figures]
    columns = ("", f"{model} [95 %]", reference, "difference [95 %]")
    return columns, [
        (
            f.name,
            _with_interval(f.name, f.value),
            _value(f.name, f.reference.value),
            points_of(f.difference),
        )
        for f in figures
        if f.reference is not None and f.difference is not None
    ]


def _value(name: str, value: float) -> str:
    return f"{value:.1%}" if name.startswith(_IN_PERCENT) else f"{value:.3g}"


def _with_interval(name: str, interval: Interval) -> str:
    value, low, high = (_value(name, x) for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low.rstrip('%')} to {high.rstrip('%')}]"


def warn(line: str) -> None:
    """Say a warning on standard error, in one line whatever the names of files in it are."""
    click.echo(f"edge-sdk: warning: {one_line(line)}", err=True)


def show_skipped(skipped: Sequence[Skipped]) -> None:
    """Name the first few files that could not be used."""
    if not skipped:
        return
    warn(f"files that were skipped: {len(skipped)}")
    for one in skipped[:_NAMED]:
        click.echo(one_line(f"  {one.path}: {one.reason}"), err=True)
    if len(skipped) > _NAMED:
        click.echo(f"  and {len(skipped) - _NAMED} more, all of them in --json", err=True)
