"""Does what a build claims hold on images that it never saw?

Run as `python -m benchmarks.experiments.claims --data LABELLED MODEL.toml ...`.

The labelled images are dealt out in two halves. A build has one half, from which it takes what chooses and claims, and
what calibrates too where no images are given for that; the other half measures the bundle beside FP32. Then the halves
change places. Of each figure by labels: the claimed difference to FP32 with its interval, in which 95 of 100
measurements on as many other images should lie, what was measured, and whether it lies in the interval.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.core.errors import EdgeError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.datasets.dataset import BoxTruth, ClassTruth, Dataset
from edge_sdk_tools.datasets.reading import read_dataset
from edge_sdk_tools.evaluate.evaluation import evaluate
from edge_sdk_tools.evaluate.statistics import Figure


def write(dataset: Dataset, folder: Path) -> Path:
    """Write links to the images, with their labels as labels.csv or as YOLO has them."""
    (folder / "images").mkdir(parents=True)
    lines = ["file,class_id"]
    for image, truth in zip(dataset.images.images, dataset.truths or (), strict=True):
        (folder / "images" / image.path.name).symlink_to(image.path.resolve())
        if isinstance(truth, ClassTruth):
            lines.append(f"images/{image.path.name},{truth.class_id}")
        elif isinstance(truth, BoxTruth):
            width, height = image.size_wh
            rows = [
                f"{c} {(x1 + x2) / 2 / width} {(y1 + y2) / 2 / height} {(x2 - x1) / width} {(y2 - y1) / height}\n"
                for c, (x1, y1, x2, y2) in zip(truth.class_ids, truth.in_pixels(image.size_wh).boxes_xyxy, strict=True)
            ]
            (folder / "labels").mkdir(exist_ok=True)
            (folder / "labels" / f"{image.path.stem}.txt").write_text("".join(rows))
    if len(lines) > 1:
        (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def row(name: str, claimed: Figure, measured: Figure) -> str:
    """Return one line of the table."""
    if claimed.difference is None or measured.difference is None:
        raise ValueError(f"{name}: {claimed.name} has no reference")
    claim, found = claimed.difference.on_other_images(), measured.difference.value
    return (
        f"{name:24} {claimed.name:9} {100 * claim.value:+6.2f} [{100 * claim.low:+6.2f} to {100 * claim.high:+6.2f}]  "
        f"{100 * found:+6.2f}  {'covered' if claim.low <= found <= claim.high else 'missed'}"
    )


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Labelled images.")
@click.option("--calibration", type=click.Path(exists=True, path_type=Path), help="Other images.")
@click.option("--target", default="x86_64", show_default=True)
def main(models: tuple[Path, ...], data: Path, calibration: Path | None, target: str) -> None:
    """Build each of MODELS from one half of the images, and measure the bundle on the other."""
    for model in models:
        spec = load_model_spec(model)
        labels = check_model(spec, None).labels
        background = bool(spec.classification.background_class)
        halves = read_dataset(data, labels, spec.task, background_class=background).stratified_split(2)
        with tempfile.TemporaryDirectory() as name:
            folders = [write(half, Path(name) / str(number)) for number, half in enumerate(halves)]
            for seen, unseen in (folders, folders[::-1]):
                bundle = Path(name) / "a.edge"
                try:
                    measures = [seen] if calibration else []
                    built = build(model, target, bundle, calibration=[calibration or seen], evaluation=measures)
                except EdgeError as error:
                    click.echo(f"{spec.name:24} {error}")
                    continue
                click.echo(f"{spec.name:24} {built.measured_on}; {len(built.candidates)} recipes; {built.precision}")
                if built.precision != "int8":
                    click.echo(f"{'':24} {built.fallback_reason}")
                    continue
                measured = evaluate(bundle, unseen, reference=model).quality
                for claimed, found in zip(built.quality, measured, strict=True):
                    click.echo(row(spec.name, claimed, found))


if __name__ == "__main__":
    main()
