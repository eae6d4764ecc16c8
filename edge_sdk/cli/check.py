"""`edge-sdk check`: everything that is to be said of a model before it is built."""

from __future__ import annotations

from pathlib import Path

import click

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target
from edge_sdk.cli.options import PATH, echo_json
from edge_sdk.core.errors import ModelError, UsageError, host_tools


@click.command("check")
@click.argument("model", type=PATH)
@click.option(
    "--target",
    help="The device: a name from `edge-sdk targets`, or a path to a .toml.  [default: this machine's ONNX Runtime]",
)
@click.option(
    "--prove-runtime",
    "prove_runtimes",
    multiple=True,
    metavar="VERSION",
    help="As of `build`: check for this older ONNX Runtime, which the bundle will admit too. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(model: Path, target: str | None, prove_runtimes: tuple[str, ...], as_json: bool) -> None:
    """Check whether a device can run MODEL (a model.toml), what it costs there, and what is wrong with it."""
    with host_tools("`edge-sdk check`"):
        from edge_sdk_tools.check.gate import as_admitted, examine
        from edge_sdk_tools.check.screen import render
        from edge_sdk_tools.evaluate.model import from_checked
    if model.suffix != ".toml":
        raise UsageError(f"{model}: expected a model.toml; `edge-sdk init MODEL.onnx` writes one")
    if prove_runtimes and target is None:
        raise UsageError("--prove-runtime says what a bundle for a device admits: give --target too")
    spec = load_model_spec(model)
    admitted = as_admitted(load_target(target), prove_runtimes) if target else None
    report = examine(spec, admitted, lambda checked: from_checked(spec.name, spec, checked))
    if as_json:
        echo_json(report)
    else:
        click.echo(render(report))
    errors = len(report.of("error"))
    if errors:
        said = "1 error" if errors == 1 else f"{errors} errors"
        raise ModelError(f"{model}: {said}, named {'in the JSON' if as_json else 'above'}")
