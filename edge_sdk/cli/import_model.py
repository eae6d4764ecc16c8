"""`edge-sdk import`: convert a trained model to the ONNX file that model.toml names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_sdk.cli.options import PATH, echo_json, show_skipped, warn
from edge_sdk.core.errors import UsageError, host_tools

if TYPE_CHECKING:
    from edge_sdk_tools.importers.plan import ImportReport

_SHOWN = (  # options of every import
    click.option(
        "--images",
        multiple=True,
        type=PATH,
        help="Folder of images to compare on; [data] calibration of the model.toml by default. Repeatable.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of progress and a table."),
)
_INTO_MODEL_TOML = (
    click.option(
        "--model",
        "model_toml",
        required=True,
        metavar="MODEL_TOML",
        type=PATH,
        help="Describes the model's input, and names the .onnx to write.",
    ),
    click.option("--target", "target_name", help="The device, whose ONNX Runtime limits the opset."),
    *_SHOWN,
)


def _with(options: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


@click.group("import", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Bring in a model from where it was trained, and prove that it still computes the same."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@command.command("pytorch", short_help="A torch.nn.Module, a torch.export archive or TorchScript.")
@click.argument("source")
@_with(_INTO_MODEL_TOML)
@click.option("--weights", type=PATH, help="A state dict for the function's module.")
@click.option("--dynamic-batch", is_flag=True, help="Leave the batch free; a build fixes it to 1 again.")
def pytorch(source: str, weights: Path | None, dynamic_batch: bool, **options: Any) -> None:
    """Export SOURCE: FILE.py:FUNCTION that returns a torch.nn.Module, a .pt2 (torch.export) or a .pt (TorchScript)."""
    with host_tools("`edge-sdk import pytorch`", "torch"):
        from edge_sdk_tools.importers.pytorch import import_pytorch
    _run(functools.partial(import_pytorch, source, weights=weights, dynamic_batch=dynamic_batch), **options)


@command.command("onnx", short_help="An .onnx of opset 7 or more, made ready for a build.")
@click.argument("source", type=PATH)
@_with(_INTO_MODEL_TOML)
def onnx(source: Path, **options: Any) -> None:
    """Rewrite SOURCE, an .onnx of opset 7 or more: opset raised, weights inside, shapes fixed."""
    with host_tools("`edge-sdk import onnx`"):
        from edge_sdk_tools.importers.onnx_model import import_onnx
    _run(functools.partial(import_onnx, source), **options)


@command.command("tensorflow", short_help="A .tflite, .keras or .h5 file, or a SavedModel.")
@click.argument("source", type=PATH)
@_with(_INTO_MODEL_TOML)
def tensorflow(source: Path, **options: Any) -> None:
    """Convert SOURCE with tf2onnx: a .tflite, .keras or .h5 file, or the folder of a SavedModel."""
    with host_tools("`edge-sdk import tensorflow`"):
        from edge_sdk_tools.importers.tensorflow import import_tensorflow
    _run(functools.partial(import_tensorflow, source), **options)


@command.command("darknet", short_help="A detector's .cfg and .weights.")
@click.argument("cfg", type=PATH)
@click.argument("weights", type=PATH)
@click.option("--labels", required=True, type=PATH, help="One class a line, in output order.")
@click.option("-o", "--output", required=True, type=PATH, help="The folder to write into.")
@click.option("--name", help="The model's name.  [default: that of CFG without its ending]")
@_with(_SHOWN)
def darknet(cfg: Path, weights: Path, output: Path, **options: Any) -> None:
    """Convert the detector of CFG and WEIGHTS; writes the .onnx, labels.txt and a model.toml that describes them."""
    with host_tools("`edge-sdk import darknet`"):
        from edge_sdk_tools.importers.darknet import import_darknet
    if (output / "model.toml").exists():
        raise UsageError(f"{output / 'model.toml'}: exists; choose another folder with -o, or move it away")
    _run(functools.partial(import_darknet, cfg, weights, folder=output), **options)


def _run(importer: Callable[..., ImportReport], *, as_json: bool, **options: Any) -> None:
    """Run an importer with progress output, and print its report."""
    from edge_sdk_tools.progress import StepProgress

    with StepProgress(quiet=as_json) as progress:
        report = importer(**options, on_progress=progress)
    if as_json:
        echo_json(report)
    else:
        _show(report)


def _show(report: ImportReport) -> None:
    from edge_sdk_tools.progress import print_table

    for warning in report.warnings:
        warn(warning)
    show_skipped(report.skipped)
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
    click.echo(f"compared on {report.probes} inputs, {images}")
    click.echo(f"made by {report.exporter}")
    click.echo(f"wrote {report.model}{', replacing what was there' if report.replaced else ''}")
    shape = "x".join(map(str, report.input_shape))
    click.echo(f"{report.size_mb:.2f} MB, opset {report.opset}, {report.nodes} nodes, input {shape} {report.layout}")

    click.echo(f"next: edge-sdk build {report.model_toml} --target TARGET --calibration FOLDER")
