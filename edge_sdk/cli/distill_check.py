"""`edge-sdk distill-check`: compare a student with its teacher, and decide whether it may be used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_sdk.cli.options import PATH, NumberRange, echo_json, folded, measuring_options, show_figures, show_images
from edge_sdk.core.errors import AccuracyGateError, host_tools, printable

if TYPE_CHECKING:
    from edge_sdk_tools.distillation.gate import ClassRow, DistillReport

_CLASSES = 10
_WORST = 5


@click.command("distill-check")
@click.argument("student", type=PATH)
@click.option(
    "--teacher",
    type=PATH,
    help="The teacher: a model.toml or a bundle.  [default: [teacher] in the student's model.toml]",
)
@click.option(
    "--data", type=PATH, help="Images, with labels or without.  [default: [data] in the student's model.toml]"
)
@click.option(
    "--max-drop-points",
    type=NumberRange(0, 100),
    help="With labels: how many points it may fall below the teacher.  [default: [gates] in model.toml]",
)
@click.option(
    "--min-agreement",
    type=NumberRange(0, 1),
    help="Without labels: least agreement with the teacher, 0-1.  [default: [gates] in model.toml]",
)
@click.option(
    "--temperature", type=NumberRange(min=0.1, max=100), help="Another softmax temperature at which to compare."
)
@measuring_options
def command(student: Path, teacher: Path | None, data: Path | None, as_json: bool, **options: Any) -> None:
    """Compare STUDENT, a model.toml or a bundle, with its teacher; exit with 3 if it falls short of the gates."""
    with host_tools("`edge-sdk distill-check`"):
        from edge_sdk_tools.distillation.gate import distill_check
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        report = distill_check(student, teacher, data, **options, on_progress=progress)
    if as_json:
        echo_json(report)
    else:
        _show(report)
    if not report.verdict.passed:
        raise AccuracyGateError(f"distill-check: {report.evaluation.model} fails: {report.verdict.line}")


def _show(report: DistillReport) -> None:
    show_figures(report.evaluation, "student", "teacher")
    _show_probabilities(report)
    _show_classes(report)
    _show_worst(report)
    show_images(report.evaluation)
    if report.verdict.passed:
        click.echo(folded(f"passes: {report.verdict.line}"))


def _show_probabilities(report: DistillReport) -> None:
    if report.divergences:
        parts = [
            f"{d.nats:.3f} at T={d.temperature:g} (x T² {d.loss:.3f})" for d in report.divergences if d.temperature != 1
        ]
        click.echo(f"softened: {', '.join(parts)}")
    error = report.calibration
    if error is not None and error.teacher is not None:  # without labels there is no error to compare
        click.echo(f"calibration error: student {error.student:.1%}, teacher {error.teacher:.1%}")
    if report.p_value is not None:
        click.echo(f"McNemar's exact test: p = {report.p_value:.2g} that two equally good models differ so")


def _show_classes(report: DistillReport) -> None:
    from edge_sdk_tools.progress import print_table

    tested = [row for row in report.classes if row.p_value is not None]
    if not tested:
        if report.classes:
            click.echo("too few disagreements in each class to tell classes apart")
        return
    sure = sum(row.significant for row in tested)
    click.echo(f"classes that can be tested: {len(tested)} of {len(report.classes)}, surely different: {sure}")
    shown = [row for row in report.classes if row.significant or row.lost > 1][:_CLASSES]
    if shown:
        columns = ("class", "count", "teacher", "student", "lost", "p")
        print_table("classes that differ most", columns, [_class_row(row) for row in shown])


def _class_row(row: ClassRow) -> tuple[str, ...]:
    p_value = "" if row.p_value is None else f"{row.p_value:.2g}{' *' if row.significant else ''}"
    name = row.label.split(",")[0]
    return name, str(row.count), f"{row.teacher:.0%}", f"{row.student:.0%}", str(row.lost), p_value


def _show_worst(report: DistillReport) -> None:
    if report.worst:
        click.echo("images to look at:")
    for image in report.worst[:_WORST]:
        truth = f" ({image.truth})" if image.truth else ""
        click.echo(f"  {printable(image.file.name)}{truth}\n    teacher {image.teacher}, student {image.student}")
