"""`edge-sdk import`: a model from where it was trained to the ONNX file that model.toml names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from edge_sdk.cli.host_tools import host_tools
from edge_sdk.errors import UsageError

if TYPE_CHECKING:
    from edge_sdk_tools.importing.import_report import ImportReport

_MODEL = click.option(
    "--model",
    "model_toml",
    required=True,
    metavar="MODEL_TOML",
    type=click.Path(path_type=Path),
    help="Describes the model's input, and names the .onnx to write.",
)
_IMAGES = click.option(
    "--images",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder of images to compare on; [data] calibration of MODEL_TOML by default. Repeatable.",
)
_TARGET = click.option("--target", help="The device, whose ONNX Runtime limits the opset.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and a table.")


@click.group("import", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Bring in a model from where it was trained, and prove that it still computes the same."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("pytorch", short_help="A torch.nn.Module, a torch.export archive or TorchScript.")
@click.argument("source")
@_MODEL
@click.option("--weights", type=click.Path(path_type=Path), help="A state dict for the function's module.")
@_TARGET
@_IMAGES
@click.option("--dynamic-batch", is_flag=True, help="Leave the batch free; a build fixes it to 1 again.")
@_JSON
def pytorch(
    source: str,
    model_toml: Path,
    weights: Path | None,
    target: str | None,
    images: tuple[Path, ...],
    dynamic_batch: bool,
    as_json: bool,
) -> None:
    """Export SOURCE: FILE.py:FUNCTION that returns a torch.nn.Module, a .pt2 (torch.export) or a .pt (TorchScript)."""
    with host_tools("import pytorch", "torch"):
        from edge_sdk_tools.importing.pytorch import import_pytorch
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        report = import_pytorch(
            source,
            model_toml,
            weights=weights,
            target_name=target,
            images=images,
            dynamic_batch=dynamic_batch,
            on_progress=progress,
        )
    _show(report, model_toml, as_json=as_json)


@command.command("onnx", short_help="An .onnx of opset 7 or more, made ready for a build.")
@click.argument("source", type=click.Path(path_type=Path))
@_MODEL
@_TARGET
@_IMAGES
@_JSON
def onnx(source: Path, model_toml: Path, target: str | None, images: tuple[Path, ...], as_json: bool) -> None:
    """Rewrite SOURCE, an .onnx of opset 7 or more: opset raised, weights inside, shapes fixed."""
    with host_tools("import onnx"):
        from edge_sdk_tools.importing.onnx_model import import_onnx
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        report = import_onnx(source, model_toml, target_name=target, images=images, on_progress=progress)
    _show(report, model_toml, as_json=as_json)


@command.command("tensorflow", short_help="A .tflite, .keras or .h5 file, or a SavedModel.")
@click.argument("source", type=click.Path(path_type=Path))
@_MODEL
@_TARGET
@_IMAGES
@_JSON
def tensorflow(source: Path, model_toml: Path, target: str | None, images: tuple[Path, ...], as_json: bool) -> None:
    """Convert SOURCE with tf2onnx: a .tflite, .keras or .h5 file, or the folder of a SavedModel."""
    with host_tools("import tensorflow"):
        from edge_sdk_tools.importing.tensorflow import import_tensorflow
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        report = import_tensorflow(source, model_toml, target_name=target, images=images, on_progress=progress)
    _show(report, model_toml, as_json=as_json)


@command.command("darknet", short_help="A detector's .cfg and .weights.")
@click.argument("cfg", type=click.Path(path_type=Path))
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--labels", required=True, type=click.Path(path_type=Path), help="One class a line, in output order.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write into.")
@click.option("--name", help="Of the model; the name of CFG without its ending by default.")
@_JSON
def darknet(cfg: Path, weights: Path, labels: Path, output: Path, name: str | None, as_json: bool) -> None:
    """Convert the detector of CFG and WEIGHTS; writes the .onnx, labels.txt and a model.toml that describes them."""
    with host_tools("import darknet"):
        from edge_sdk_tools.importing import import_darknet
    if (output / "model.toml").exists():
        raise UsageError(f"{output / 'model.toml'}: exists; choose another folder with -o, or move it away")
    model_toml = import_darknet(cfg, weights, labels, output, name=name)
    if as_json:
        click.echo(msgspec.json.encode({"model_toml": str(model_toml)}))
        return
    click.echo(f"wrote {model_toml}, its .onnx and labels.txt")
    _say_next(model_toml)


def _show(report: ImportReport, model_toml: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    from edge_sdk_tools.progress import print_table

    for warning in report.warnings:
        click.echo(f"edge-sdk: warning: {warning}", err=True)
    rows = [
        (
            output.name,
            "x".join(map(str, output.shape)),
            f"{output.absolute:.2g}",
            output.probe,
            f"{output.relative:.2g}",
            "" if output.on_images is None else f"{output.on_images:.2g}",
        )
        for output in report.outputs
    ]
    columns = ("output", "shape", "largest difference", "on input", "relative", "on images")
    print_table(f"{report.source} in ONNX Runtime", columns, rows)
    images = f"{report.images} of them real images" if report.images else "none of them a real image"
    click.echo(f"compared on {report.probes} inputs, {images}; made by {report.exporter}")
    shape = "x".join(map(str, report.input_shape))
    replaced = ", replacing what was there" if report.replaced else ""
    click.echo(
        f"wrote {report.model} ({report.size_mb:.2f} MB, opset {report.opset}, {report.nodes} nodes, "
        f"input {shape} {report.layout}){replaced}"
    )
    _say_next(model_toml)


def _say_next(model_toml: Path) -> None:
    click.echo(f"next: edge-sdk build {model_toml} --target TARGET --calibration FOLDER")
