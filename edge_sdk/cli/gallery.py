"""`edge-sdk gallery`: the vectors by which a model of embeddings names what it sees."""

from __future__ import annotations

from pathlib import Path

import click

from edge_sdk.cli.options import PATH
from edge_sdk.core.errors import host_tools
from edge_sdk.core.logs import counted


@click.command("gallery")
@click.argument("model", type=PATH)
@click.argument("folder", type=PATH)
@click.option("-o", "--output", type=PATH, help="The file to write.  [default: gallery.npz beside a model.toml]")
def command(model: Path, folder: Path, output: Path | None) -> None:
    """Make a gallery for MODEL, a model.toml or a bundle, of the pictures in FOLDER: one folder a name."""
    with host_tools("`edge-sdk gallery`"):
        from edge_sdk_tools.evaluate.gallery import make_gallery
        from edge_sdk_tools.progress import StepProgress
    output = output or (model.parent if model.suffix == ".toml" else Path()) / "gallery.npz"
    with StepProgress() as progress:
        made = make_gallery(model, folder, output, progress)
    for skipped in made.skipped:
        click.echo(f"skipped {skipped.path}: {skipped.reason}")
    click.echo(f"wrote {output}: {counted(made.names, 'name')}, {counted(made.vectors, 'vector')}")
    click.echo(f'next: labels = "{output.name}" in model.toml, then edge-sdk evaluate, and edge-sdk build')
