"""`edge-sdk check`: everything that is to be said of a model before it is built."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from edge_sdk.cli.host_tools import host_tools
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.model_spec import load_model_spec
from edge_sdk.target import load_target


@click.command("check")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--target",
    help="The device: a name from `edge-sdk targets`, or a path to a .toml.  [default: this machine's ONNX Runtime]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(model: Path, target: str | None, as_json: bool) -> None:
    """Check whether a device can run MODEL (a model.toml), what it costs there, and what is wrong with it."""
    with host_tools("check"):
        from edge_sdk_tools.check import examine
        from edge_sdk_tools.check.screen import render
    if model.suffix != ".toml":
        raise UsageError(f"{model}: expected a model.toml that describes the model, see README.md")
    report = examine(load_model_spec(model), load_target(target) if target else None)
    click.echo(msgspec.json.encode(report) if as_json else render(report))
    errors = len(report.of("error"))
    if errors:
        said = "1 error" if errors == 1 else f"{errors} errors"
        raise ModelError(f"{model}: {said}, named {'in the JSON' if as_json else 'above'}")
