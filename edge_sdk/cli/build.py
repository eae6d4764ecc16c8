"""`edge-sdk build`: build a bundle from a model.toml."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_sdk.bundle.manifest import PRECISIONS
from edge_sdk.bundle.target import Target, load_target
from edge_sdk.cli.options import PATH, echo_json, folded, points_of, warn
from edge_sdk.core.errors import host_tools

if TYPE_CHECKING:
    from edge_sdk_tools.build.result import BuildResult

_MOST_VERSION = 2**53 - 1  # the largest integer that every JSON reader keeps exactly
_GARBAGE_OBJECTS = 100_000
_COLOURS = {"ok": "green", "worse": "yellow", "bad": "red"}


def _precision_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for every precision in which a bundle may carry a further model."""
    for precision, facts in reversed(PRECISIONS.items()):
        if facts.flag:
            command = click.option(facts.flag, precision, is_flag=True, help=facts.help)(command)
    return command


@click.command("build")
@click.argument("model", type=PATH)
@click.option("--target", required=True, help="The device: a name from `edge-sdk targets`, or a path to a .toml.")
@click.option(
    "--calibration",
    multiple=True,
    type=PATH,
    help="Folder of images like those the camera will see; may be given more than once.",
)
@click.option(
    "--evaluation",
    multiple=True,
    type=PATH,
    help="Folder of other images to measure on; without it, some calibration images are held out for that.",
)
@click.option("-o", "--output", type=PATH, help="The bundle; NAME.edge by default.")
@click.option(
    "--bundle-version",
    type=click.IntRange(1, _MOST_VERSION),
    help="A number that must grow from build to build.  [default: the time]",
)
@click.option(
    "--prove-runtime",
    "prove_runtimes",
    multiple=True,
    metavar="VERSION",
    help="Also replay the golden inputs in this ONNX Runtime, fetched with pip, and allow it on devices. Repeatable.",
)
@click.option("--require-int8", is_flag=True, help="Fail if INT8 does not pass the gates, instead of carrying FP32.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    help="How many models are made and measured at once, each in a process.",
)
@click.option("--scheduler", metavar="URL", help="Make and measure the models on this Dask cluster: tcp://HOST:PORT.")
@click.option("--fresh", is_flag=True, help="Do every step again, also those that an earlier build has finished.")
@click.option(
    "--sizes",
    metavar="SIZES",
    help="Carry the model at other input sizes too, such as 416,320 or 640x384; each is calibrated for itself.",
)
@_precision_flags
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and a table.")
def command(
    model: Path,
    target: str,
    output: Path | None,
    jobs: int,
    scheduler: str | None,
    fresh: bool,
    sizes: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Check, quantize, convert and prove MODEL (a model.toml) and write a bundle for a device."""
    with host_tools("`edge-sdk build`"):
        from edge_sdk_tools.build.pipeline import build
        from edge_sdk_tools.build.variants import Request, parse_sizes
        from edge_sdk_tools.jobs.runner import JobRunner
        from edge_sdk_tools.packages import cache_folder
        from edge_sdk_tools.progress import StepProgress
    # Graphs of thousands of nodes have no reference cycles; a collection at every 700 objects takes 3 % of a build.
    gc.set_threshold(_GARBAGE_OBJECTS)
    precisions = frozenset(precision for precision in PRECISIONS if options.pop(precision, False))
    variants = Request(sizes=parse_sizes(sizes) if sizes is not None else (), precisions=precisions)
    store = None if fresh else cache_folder() / "builds"
    said: list[str] = []

    def say(warning: str) -> None:
        said.append(warning)
        if not as_json:
            warn(warning)

    with StepProgress(quiet=as_json) as progress, JobRunner(jobs=jobs, scheduler=scheduler, store=store) as job_runner:
        options |= {"job_runner": job_runner, "variants": variants, "on_progress": progress, "on_warning": say}
        report = build(model, target, output, **options)
    if as_json:
        echo_json(report)
    else:
        _show(report, said, load_target(target))


def _show(report: BuildResult, said: Sequence[str], device: Target) -> None:
    from edge_sdk_tools.arm_cost.counter import CPUS, find_counter

    for warning in report.warnings:
        if warning not in said:
            warn(warning)
    click.secho(f"{report.name} for {report.target}, measured on {report.measured_on}", bold=True)
    _show_figures(report)
    if band := report.verdict.band:
        remedy = (
            "; the gates in model.toml let it pass, --with-fp32 carries the float model beside it"
            if band == "bad" and not report.fallback_reason
            else ""
        )
        click.secho(folded(f"INT8 is {band}: {report.verdict.loss}{remedy}"), fg=_COLOURS[band])
    if report.fallback_reason:
        click.secho("THE BUNDLE CARRIES FP32", bold=True)
        click.echo(folded(f"  because {report.fallback_reason}"))
    _show_variants(report)
    if report.distillation:
        click.echo(folded(f"teacher {report.distillation.teacher}: {report.distillation.line}"))
    of = f" of {report.found_images}" if report.found_images > report.calibration_images else ""
    chose = f"; {len(report.split.choice)} others chose the recipe" if report.split and report.split.choice else ""
    tried = f"; best of {len(report.candidates)} recipes" if len(report.candidates) > 1 else ""
    left = f"; {report.float_nodes} nodes in float" if report.float_nodes else ""
    click.echo(f"calibrated with {report.calibration_images}{of} images{chose}{tried}{left}")
    if report.remembered_steps:
        finished = "1 finished step" if report.remembered_steps == 1 else f"{report.remembered_steps} finished steps"
        click.echo(f"{finished} came from an earlier build; --fresh does everything again")
    replaced = "" if report.replaced == "nothing" else ", replacing what was there"
    click.echo(
        f"wrote {report.bundle} (version {report.version}, budget {report.verdict.latency_budget_ms:g} ms){replaced}"
    )
    for board in report.boards:
        said = f"{board.million_instructions:.0f} million instructions, {board.low_ms:.0f} to {board.high_ms:.0f} ms"
        click.echo(f"estimate for {board.core}, one thread: {said}")
    if not report.boards and device.cpu in CPUS and not report.is_for_here and find_counter() is None:
        click.echo(
            f"these times are the workstation's; after `edge-sdk arm-cost setup` (22 s, 212 MB) a build estimates "
            f"those of {device.name}"
        )
    lowest, highest = report.onnxruntime
    click.echo(f"runs on ONNX Runtime {highest if lowest == highest else f'{lowest} to {highest}'}")
    click.echo(f"all figures, recipes, and pictures of where the models differ: {report.bundle}/report.html")
    if report.is_for_here:
        click.echo(f"next: edge-sdk run {report.bundle} --source 0 --mqtt mqtt://BROKER")
    else:
        click.echo(f"next: edge-sdk sign {report.bundle} --key KEY, copy it to the device, and there:")
        click.echo(f"      edge-sdk run {report.bundle} --trust KEY.pub --source 0 --mqtt mqtt://BROKER")


_OF_ANY_MODEL = 2  # rows of a table without figures by labels


def _show_figures(report: BuildResult) -> None:
    """Show what INT8 loses, how fast it is and how large, beside FP32."""
    from edge_sdk_tools.evaluate.statistics import Interval
    from edge_sdk_tools.evaluate.tasks import AGREEMENTS

    agreement = report.agreement

    def beside(name: str, fp32: float, int8: float, unit: str) -> tuple[str, ...]:
        return name, f"{fp32:.2f} {unit}", f"{int8:.2f} {unit}", f"{int8 / fp32:.2f}x"

    missing = Interval(agreement.value - 1, agreement.low - 1, agreement.high - 1).on_other_images((-1.0, 0.0))
    time_row = "latency here, 1 thread" if report.is_for_here else "latency on this workstation"
    rows = [
        *(
            (f.name, f"{f.reference.value:.1%}", f"{f.value.value:.1%}", points_of(f.difference.on_other_images()))
            for f in report.quality
            if f.reference is not None and f.difference is not None
        ),
        beside(time_row, report.fp32_latency_ms, report.int8_latency_ms, "ms"),
        beside("model file", report.fp32_mb, report.int8_mb, "MB"),
    ]
    if len(rows) == _OF_ANY_MODEL:
        rows.insert(0, (AGREEMENTS[agreement.metric].agreement_name, "", f"{agreement.value:.1%}", points_of(missing)))
    _show_rows(("", "FP32", "INT8", "difference"), rows)
    click.echo("differences in points of 100; 95 of 100 measurements on as many such images lie in the brackets")


def _show_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table without lines: the first and the last column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for first, *middle, last in (columns, *rows):
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False))]
        click.echo(f"  {'   '.join([*cells, last])}".rstrip())


def _show_variants(report: BuildResult) -> None:
    """Show all variants of the bundle compared with FP32 at model.toml's size, where there are several."""
    if len(report.variants) < 2:
        return
    columns = ("variant", "input", "file", "time", report.variants[0].metric, "carried", "against FP32")
    rows = [
        (
            row.name,
            f"{row.size_wh[0]}x{row.size_wh[1]}",
            f"{row.model_mb:.2f} MB",
            f"{row.latency_ratio:.2f}x",
            f"{row.value:.1%}",
            "no" if row.problem else "yes",
            points_of(row.change),
        )
        for row in report.variants
    ]
    click.echo("variants; time against the FP32 model as given, here, one thread")
    _show_rows(columns, rows)
    for row in report.variants:
        if row.problem:
            click.echo(folded(f"{row.name} IS LEFT OUT because {row.problem}"))
        elif row.doubt:
            click.echo(folded(f"{row.name}: {row.doubt}"))
