"""Commands on a workstation, from a model to a signed bundle, one function a command.

`build`, `import`, `runtime` and `arm-cost`, which have more options, have files of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from edge_sdk.bundle import signing
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import SIGNATURE_FILE
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.bundle.target import load_target, target_names
from edge_sdk.cli.options import PATH, NumberRange, echo_json, folded, measuring_options, show_figures, show_images
from edge_sdk.core.errors import AccuracyGateError, ModelError, OutputError, UsageError, host_tools, printable
from edge_sdk.core.logs import counted

if TYPE_CHECKING:
    from edge_sdk_tools.distillation.gate import ClassRow, DistillReport
    from edge_sdk_tools.evaluate.evaluation import Evaluation

_CLASSES, _WORST = 10, 5  # classes and images that `distill-check` shows


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
        click.echo(f"{'':<{width}}  quality: {model.quality}")
        click.echo(f"{'':<{width}}  estimated in INT8 on one thread: {model.cost}")
    click.echo("next: edge-sdk models fetch NAME")


@models.command("fetch")
@click.argument("name")
@click.option("-o", "--output", type=PATH, help="The folder to make.  [default: NAME]")
def _fetch(name: str, output: Path | None) -> None:
    """Download the package of model NAME, verify it, and write the model with its model.toml."""
    with host_tools("`edge-sdk models`"):
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
        from edge_sdk_tools.packages import cache_folder
        from edge_sdk_tools.progress import StepProgress
        from edge_sdk_tools.zoo import fetch_model, zoo_model
    with interrupted_by_sigterm(), StepProgress() as progress:
        toml = fetch_model(zoo_model(name), output or Path(name), cache_folder(), on_progress=progress)
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
        _show_evaluation(found)


def _show_evaluation(evaluation: Evaluation) -> None:
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
    summary = run_demo(output, frames, errors_only=as_json)
    if as_json:
        echo_json(summary)


@click.command("keygen")
@click.argument("path", type=PATH, default=Path("edge-sdk.key"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def keygen(path: Path, as_json: bool) -> None:
    """Make a key pair: keep PATH (edge-sdk.key by default) secret, and copy PATH.pub to every device."""
    public = signing.generate_key(path)
    if as_json:
        echo_json({"private_key": str(path), "public_key": str(public)})
        return
    width = len(str(public))
    click.echo(f"{path!s:<{width}}  private, keep it here:     edge-sdk sign NAME.edge --key {path}")
    click.echo(f"{public}  public, for every device:  edge-sdk run NAME.edge --trust {public} ...")


@click.command("sign")
@click.argument("bundle", type=PATH)
@click.option("--key", required=True, type=PATH, help="Private key from `edge-sdk keygen`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def sign_bundle(bundle: Path, key: Path, as_json: bool) -> None:
    """Verify BUNDLE and sign its manifest, which has the name and hash of every other file."""
    private_key = signing.load_private_key(key)
    opened = Bundle.open(bundle)
    signature = signing.sign(opened.manifest_bytes, private_key)
    bundle = bundle.absolute()
    partial = bundle.with_name(f".{bundle.name}.sig-{os.getpid()}")
    try:
        partial.write_bytes(signature)
        partial.replace(bundle / SIGNATURE_FILE)
    except OSError as cause:
        partial.unlink(missing_ok=True)
        raise OutputError(f"{bundle / SIGNATURE_FILE}: cannot be written: {cause.strerror}") from cause
    if as_json:
        echo_json({"bundle": str(bundle), "digest": opened.digest, "signed": True})
        return
    click.echo(f"signed {bundle} (digest {opened.digest[:12]}…)")


@click.command("distill-check")
@click.argument("student", type=PATH)
@click.option(
    "--teacher",
    type=PATH,
    help="The teacher: a model.toml or a bundle.  [default: [teacher] in the student's model.toml]",
)
@click.option(
    "--data", type=PATH, help="Images, with labels or without.  [default: [data] in the student's model.toml]"
)
@click.option(
    "--max-drop-points",
    type=NumberRange(0, 100),
    help="With labels: how many points it may fall below the teacher.  [default: [gates] in model.toml]",
)
@click.option(
    "--min-agreement",
    type=NumberRange(0, 1),
    help="Without labels: least agreement with the teacher, 0-1.  [default: [gates] in model.toml]",
)
@click.option(
    "--temperature", type=NumberRange(min=0.1, max=100), help="Another softmax temperature at which to compare."
)
@measuring_options
def distill_check(student: Path, teacher: Path | None, data: Path | None, as_json: bool, **options: Any) -> None:
    """Compare STUDENT, a model.toml or a bundle, with its teacher; exit with 3 if it falls short of the gates."""
    with host_tools("`edge-sdk distill-check`"):
        from edge_sdk_tools.distillation import gate
        from edge_sdk_tools.progress import StepProgress
    with StepProgress(quiet=as_json) as progress:
        report = gate.distill_check(student, teacher, data, **options, on_progress=progress)
    if as_json:
        echo_json(report)
    else:
        _show_distillation(report)
    if not report.verdict.passed:
        raise AccuracyGateError(f"distill-check: {report.evaluation.model} fails: {report.verdict.line}")


def _show_distillation(report: DistillReport) -> None:
    show_figures(report.evaluation, "student", "teacher")
    _show_probabilities(report)
    _show_classes(report)
    _show_worst(report)
    show_images(report.evaluation)
    if report.verdict.passed:
        click.echo(folded(f"passes: {report.verdict.line}"))


def _show_probabilities(report: DistillReport) -> None:
    if report.divergences:
        parts = [
            f"{d.nats:.3f} at T={d.temperature:g} (x T² {d.loss:.3f})" for d in report.divergences if d.temperature != 1
        ]
        click.echo(f"softened: {', '.join(parts)}")
    error = report.calibration
    if error is not None and error.teacher is not None:  # without labels there is no error to compare
        click.echo(f"calibration error: student {error.student:.1%}, teacher {error.teacher:.1%}")
    if report.p_value is not None:
        click.echo(f"McNemar's exact test: p = {report.p_value:.2g} that two equally good models differ so")


def _show_classes(report: DistillReport) -> None:
    from edge_sdk_tools.progress import print_table

    tested = [row for row in report.classes if row.p_value is not None]
    if not tested:
        if report.classes:
            click.echo("too few disagreements in each class to tell classes apart")
        return
    sure = sum(row.significant for row in tested)
    click.echo(f"classes that can be tested: {len(tested)} of {len(report.classes)}, surely different: {sure}")
    shown = [row for row in report.classes if row.significant or row.lost > 1][:_CLASSES]
    if shown:
        columns = ("class", "count", "teacher", "student", "lost", "p")
        print_table("classes that differ most", columns, [_class_row(row) for row in shown])


def _class_row(row: ClassRow) -> tuple[str, ...]:
    p_value = "" if row.p_value is None else f"{row.p_value:.2g}{' *' if row.significant else ''}"
    name = row.label.split(",")[0]
    return name, str(row.count), f"{row.teacher:.0%}", f"{row.student:.0%}", str(row.lost), p_value


def _show_worst(report: DistillReport) -> None:
    if report.worst:
        click.echo("images to look at:")
    for image in report.worst[:_WORST]:
        truth = f" ({image.truth})" if image.truth else ""
        click.echo(f"  {printable(image.file.name)}{truth}\n    teacher {image.teacher}, student {image.student}")
