"""Commands for models on a workstation: `models`, `init`, `check`, `evaluate`, `gallery`, `targets` and `demo`.

`build`, `import` and `distill-check`, which print more, have files of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target, target_names
from edge_sdk.cli.options import PATH, echo_json, measuring_options, show_figures, show_images
from edge_sdk.core.errors import ModelError, UsageError, host_tools
from edge_sdk.core.logs import counted

if TYPE_CHECKING:
    from edge_sdk_tools.evaluate.evaluation import Evaluation


@click.group("models", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List models with a permissive licence that can be fetched: size, quality, and the cost on a board."""
    if context.invoked_subcommand is not None:
        return
    with host_tools("`edge-sdk models`"):
        from edge_sdk_tools.zoo import zoo
    known = zoo().values()
    if as_json:
        echo_json([msgspec.structs.asdict(model) for model in known])
        return
    width = max(len(model.name) for model in known)
    for model in known:
        click.echo(f"{model.name:<{width}}  {model.does}; {model.size_mb:g} MB, {model.licence}")
        click.echo(f"{'':<{width}}  quality: {model.quality}; cost: {model.cost}")
    click.echo("next: edge-sdk models fetch NAME")


@models.command("fetch")
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


@click.command("init")
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, help="The folder to write into.  [default: the model's]")
@click.option("--task", help="What the model does, such as detection; docs/model-toml.md has the list.")
@click.option("--decoder", help="How its outputs are read; docs/model-toml.md has the list.")
@click.option(
    "--labels", type=PATH, help="A file with one label a line, or the name of a list, such as coco80 or imagenet1k."
)
@click.option("--size", help="The input's size where the file leaves it free, such as 640x384, or 416 for a square.")
def init(
    model: Path, output: Path | None, task: str | None, decoder: str | None, labels: Path | None, size: str | None
) -> None:
    """Describe MODEL, an .onnx file: write model.toml, and labels.txt where its labels are no known list, beside it."""
    with host_tools("`edge-sdk init`"):
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
    help="Also check for this older ONNX Runtime, as `build` with the same option would allow it. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def check(model: Path, target: str | None, prove_runtimes: tuple[str, ...], as_json: bool) -> None:
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


@click.command("evaluate")
@click.argument("model", type=PATH)
@click.option("--data", type=PATH, help="Images, labelled or not.  [default: model.toml's]")
@click.option(
    "--reference",
    type=PATH,
    help="Another model.toml or bundle: agreement with it, and on labels the difference.",
)
@measuring_options
def evaluate(model: Path, data: Path | None, as_json: bool, **options: Any) -> None:
    """Measure MODEL, a model.toml or a bundle, on images that did not calibrate it."""
    with host_tools("`edge-sdk evaluate`"):
        from edge_sdk_tools.evaluate import evaluation
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        found = evaluation.evaluate(model, data, **options, on_progress=progress)
    if as_json:
        echo_json(found)
    else:
        _show(found)


def _show(evaluation: Evaluation) -> None:
    show_figures(evaluation, "model", "reference")
    for output in evaluation.outputs:
        noise = "bit for bit the same" if output.sqnr_db is None else f"SQNR {output.sqnr_db:.1f} dB"
        click.echo(f"raw output {output.output} against the reference: cosine {output.cosine:.6f}, {noise}")
    show_images(evaluation)
    click.echo(f"{evaluation.images_per_second:.1f} images a second")


@click.command("gallery")
@click.argument("model", type=PATH)
@click.argument("folder", type=PATH)
@click.option("-o", "--output", type=PATH, help="The file to write.  [default: gallery.npz beside a model.toml]")
def gallery(model: Path, folder: Path, output: Path | None) -> None:
    """Make a gallery for MODEL, a model.toml or a bundle, of the pictures in FOLDER: one folder a name."""
    with host_tools("`edge-sdk gallery`"):
        from edge_sdk_tools.evaluate.embedding import make_gallery
        from edge_sdk_tools.progress import StepProgress
    output = output or (model.parent if model.suffix == ".toml" else Path()) / "gallery.npz"
    with StepProgress() as progress:
        made = make_gallery(model, folder, output, progress)
    for skipped in made.skipped:
        click.echo(f"skipped {skipped.path}: {skipped.reason}")
    click.echo(f"wrote {output}: {counted(made.names, 'name')}, {counted(made.vectors, 'vector')}")
    click.echo(f'next: labels = "{output.name}" in model.toml, then edge-sdk evaluate, and edge-sdk build')


@click.command("targets")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def targets(as_json: bool) -> None:
    """List the devices that edge-sdk can build for."""
    known = [load_target(name) for name in target_names()]
    if as_json:
        echo_json(known)
        return
    width = max(len(t.name) for t in known)
    for target in known:
        click.echo(f"{target.name:<{width}}  {target.description}")


@click.command("demo")
@click.option(
    "--output",
    type=PATH,
    default=Path("demo-output"),
    show_default=True,
    help="Folder for the annotated video and picture and the messages; an earlier demo's is replaced.",
)
@click.option("--frames", type=click.IntRange(min=1), help="End after so many frames; the whole video by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end, and progress on standard error only.")
def demo(output: Path, frames: int | None, as_json: bool) -> None:
    """Find people in a video with a detector built for this machine, and publish them over MQTT."""
    with host_tools("`edge-sdk demo`", "demo"):
        from edge_sdk_tools.demo.demo import run_demo
        from edge_sdk_tools.demo.show import make_show
    summary = run_demo(output, frames, make_show(errors_only=as_json))
    if as_json:
        echo_json(summary)
