"""`edge-sdk evaluate`: one metric for every step, with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edge_sdk.cli.host_tools import host_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edge_sdk_tools.dataset import Skipped
    from edge_sdk_tools.evaluate import Evaluation, Figure, Interval

_NAMED = 3
_IN_PERCENT = ("top-", "mAP", "mIoU", "detections matched")


@click.command("evaluate")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Images, labelled or not.  [default: model.toml's]")
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Another model.toml or bundle: agreement with it, and on labels the difference.",
)
@click.option("--max-images", type=click.IntRange(min=1), help="Measure on so many at most, evenly spread.")
@click.option("--jobs", type=click.IntRange(min=1, max=256), help="Threads.  [default: one a core]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and a table.")
def command(
    model: Path,
    data: Path | None,
    reference: Path | None,
    max_images: int | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Measure MODEL, a model.toml or a bundle, on images that did not calibrate it."""
    with host_tools("evaluate"):
        from edge_sdk_tools.evaluate import evaluate
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        evaluation = evaluate(model, data, reference=reference, max_images=max_images, jobs=jobs, on_progress=progress)
    if as_json:
        click.echo(msgspec.json.encode(evaluation, enc_hook=str))
    else:
        _show(evaluation)


def _show(evaluation: Evaluation) -> None:
    from edge_sdk_tools.progress import print_table

    for warning in evaluation.warnings:
        click.echo(f"edge-sdk: warning: {warning}", err=True)
    against = f" beside {evaluation.reference}" if evaluation.reference else ""
    title = f"{evaluation.model}{against} on {evaluation.images} images of {evaluation.data}"
    if evaluation.quality:
        print_table(title, *figure_table(evaluation.quality, "model", "reference" if against else None))
    else:
        click.echo(title)
    show_agreement(evaluation.agreement)
    for output in evaluation.outputs:
        noise = "bit for bit the same" if output.sqnr_db is None else f"SQNR {output.sqnr_db:.1f} dB"
        click.echo(f"raw output {output.output} against the reference: cosine {output.cosine:.6f}, {noise}")
    click.echo(f"read as {evaluation.format}; intervals from {evaluation.resamples} resamplings of the images")
    if evaluation.calibrated:
        click.echo(f"left out {evaluation.calibrated} images that calibrated the model")
    if evaluation.duplicates:
        click.echo(f"left out {evaluation.duplicates} images whose content is there already")
    show_skipped(evaluation.skipped)
    click.echo(f"{evaluation.images_per_second:.1f} images a second")


def figure_table(
    figures: Sequence[Figure], model: str, reference: str | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and lines of a table: each figure with its interval, and how far it is from a reference's."""
    if reference is None:
        return ("", f"{model} [95 %]"), [(f.name, _with_interval(f.name, f.value)) for f in figures]
    columns = ("", f"{model} [95 %]", reference, "difference [95 %]")
    return columns, [
        (f.name, _with_interval(f.name, f.value), _value(f.name, f.reference.value), points(f.difference))
        for f in figures
        if f.reference is not None and f.difference is not None
    ]


def show_agreement(figures: Sequence[Figure]) -> None:
    """One line a figure."""
    for figure in figures:
        click.echo(f"{figure.name}: {_with_interval(figure.name, figure.value)}")


def _value(name: str, value: float) -> str:
    return f"{value:.1%}" if name.startswith(_IN_PERCENT) else f"{value:.3g}"


def _with_interval(name: str, interval: Interval) -> str:
    value, low, high = (_value(name, x) for x in (interval.value, interval.low, interval.high))
    return f"{value} [{low.rstrip('%')} to {high.rstrip('%')}]"


def points(difference: Interval) -> str:
    """A difference in points, with its interval."""
    # Zero is added so that none of them is a minus zero.
    value, low, high = (f"{round(100 * x, 1) + 0.0:+.1f}" for x in (difference.value, difference.low, difference.high))
    return f"{value} [{low} to {high}]"


def show_skipped(skipped: Sequence[Skipped]) -> None:
    """Name the first few files that could not be used."""
    if not skipped:
        return
    click.echo(f"edge-sdk: warning: {len(skipped)} files were skipped", err=True)
    for one in skipped[:_NAMED]:
        click.echo(f"  {one.path}: {one.reason}", err=True)
    if len(skipped) > _NAMED:
        click.echo(f"  and {len(skipped) - _NAMED} more, all of them in --json", err=True)
