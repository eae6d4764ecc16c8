"""`edge-sdk keygen`: a key pair for signing bundles."""

from __future__ import annotations

from pathlib import Path

import click

from edge_sdk.bundle.signing import generate_key
from edge_sdk.cli.options import PATH, echo_json


@click.command("keygen")
@click.argument("path", type=PATH, default=Path("edge-sdk.key"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(path: Path, as_json: bool) -> None:
    """Make a key pair: PATH (edge-sdk.key by default) stays secret here, PATH.pub goes to every device."""
    public = generate_key(path)
    if as_json:
        echo_json({"private_key": str(path), "public_key": str(public)})
        return
    width = len(str(public))
    click.echo(f"{path!s:<{width}}  private, keep it here:     edge-sdk sign NAME.edge --key {path}")
    click.echo(f"{public}  public, for every device:  edge-sdk run NAME.edge --trust {public} ...")
