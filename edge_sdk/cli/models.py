"""`edge-sdk models`: list models that are ready to use, and fetch one."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from edge_sdk.cli.options import PATH, echo_json
from edge_sdk.core.errors import host_tools


@click.group("models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List models with a permissive licence that can be fetched: size, quality, and the cost on a board."""
    if context.invoked_subcommand is not None:
        return
    with host_tools("`edge-sdk models`"):
        from edge_sdk_tools.zoo import zoo
    models = zoo().values()
    if as_json:
        echo_json([msgspec.structs.asdict(model) for model in models])
        return
    width = max(len(model.name) for model in models)
    for model in models:
        click.echo(f"{model.name:<{width}}  {model.does}; {model.size_mb:g} MB, {model.licence}")
        click.echo(f"{'':<{width}}  quality: {model.quality}; cost: {model.cost}")
    click.echo("next: edge-sdk models fetch NAME")


@command.command("fetch")
@click.argument("name")
@click.option("-o", "--output", type=PATH, help="The folder to make.  [default: NAME]")
def _fetch(name: str, output: Path | None) -> None:
    """Download the package of model NAME, verify it, and write the model with its model.toml."""
    with host_tools("`edge-sdk models`"):
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.packages import cache_folder
        from edge_sdk_tools.zoo import fetch_model, zoo_model
    with interrupted_by_sigterm():
        toml = fetch_model(zoo_model(name), output or Path(name), cache_folder())
    pictures = sorted(toml.parent.glob("*.jpg"))
    click.echo(f"wrote {toml}")
    source = pictures[0] if pictures else "PICTURE"
    click.echo(f"next: edge-sdk run {toml} --source {source} --annotate found.jpg")
