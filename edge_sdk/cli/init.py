"""`edge-sdk init`: write the model.toml and the labels of an ONNX file, from what the file says about itself."""

from __future__ import annotations

from pathlib import Path

import click

from edge_sdk.cli.options import PATH, host_tools
from edge_sdk.core.errors import UsageError
from edge_sdk.core.logs import counted


@click.command("init")
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, help="The folder to write into.  [default: the model's]")
@click.option("--task", help="What the model does, such as detection; docs/model-toml.md has the list.")
@click.option("--decoder", help="How its outputs are read; docs/model-toml.md has the list.")
@click.option("--labels", type=PATH, help="A file with one label a line, or coco80, imagenet1k or voc20.")
@click.option("--size", help="The input's size where the file leaves it free, such as 640x384, or 416 for a square.")
def command(
    model: Path, output: Path | None, task: str | None, decoder: str | None, labels: Path | None, size: str | None
) -> None:
    """Describe MODEL, an .onnx file: write model.toml, and labels.txt where its labels are no known list, beside it."""
    with host_tools("init"):
        from edge_sdk_tools.build.variants import parse_sizes
        from edge_sdk_tools.importers.describe import describe, write_description
    size_wh = None
    if size is not None:
        size_wh, *more = parse_sizes(size, "--size")
        if more:
            raise UsageError(f"--size {size}: expected one size, such as 416 or 640x384")
    description = describe(model, task=task, decoder=decoder, labels=labels, size_wh=size_wh)
    written = write_description(description, output or model.parent)
    spec = description.spec
    for line in description.read:
        click.echo(line)
    width, height = spec.input.size_wh
    click.echo(
        f"{spec.task} with decoder {spec.decoder}, {counted(len(description.labels), 'label')}, input {width}x{height}"
    )
    for line in description.guesses():
        click.echo(line)
    click.echo(f"wrote {' and '.join(map(str, written))}")
    toml = written[0]
    click.echo(f"next: edge-sdk check {toml}, then edge-sdk build {toml} --target arm64 --calibration IMAGES")
