"""`edge-sdk evaluate`: measure a model on images, each figure with its interval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_sdk.cli.options import PATH, echo_json, measuring_options, show_figures, show_images
from edge_sdk.core.errors import host_tools

if TYPE_CHECKING:
    from edge_sdk_tools.evaluate.evaluation import Evaluation


@click.command("evaluate")
@click.argument("model", type=PATH)
@click.option("--data", type=PATH, help="Images, labelled or not.  [default: model.toml's]")
@click.option(
    "--reference",
    type=PATH,
    help="Another model.toml or bundle: agreement with it, and on labels the difference.",
)
@measuring_options
def command(model: Path, data: Path | None, as_json: bool, **options: Any) -> None:
    """Measure MODEL, a model.toml or a bundle, on images that did not calibrate it."""
    with host_tools("`edge-sdk evaluate`"):
        from edge_sdk_tools.evaluate.evaluation import evaluate
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        evaluation = evaluate(model, data, **options, on_progress=progress)
    if as_json:
        echo_json(evaluation)
    else:
        _show(evaluation)


def _show(evaluation: Evaluation) -> None:
    show_figures(evaluation, "model", "reference")
    for output in evaluation.outputs:
        noise = "bit for bit the same" if output.sqnr_db is None else f"SQNR {output.sqnr_db:.1f} dB"
        click.echo(f"raw output {output.output} against the reference: cosine {output.cosine:.6f}, {noise}")
    show_images(evaluation)
    click.echo(f"{evaluation.images_per_second:.1f} images a second")
