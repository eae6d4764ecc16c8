"""`edge-sdk targets`: the devices that edge-sdk can build for."""

from __future__ import annotations

import click

from edge_sdk.bundle.target import load_target, target_names
from edge_sdk.cli.options import echo_json


@click.command("targets")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """List the devices that edge-sdk can build for."""
    targets = [load_target(name) for name in target_names()]
    if as_json:
        echo_json(targets)
        return
    width = max(len(t.name) for t in targets)
    for target in targets:
        click.echo(f"{target.name:<{width}}  {target.description}")
