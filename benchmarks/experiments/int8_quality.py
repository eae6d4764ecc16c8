"""Our INT8 beside others.

Run as `python -m benchmarks.experiments.int8_quality --model MODEL.toml --data LABELLED --calibration IMAGES`.

For a labelled classifier: FP32, the model that `edge-sdk build` chooses, and every recipe of a grid that a person
would try by hand (benchmarks/rivals/by_hand.py): integer types, scales per channel or per tensor, ways of
calibrating. Top-1 on all images; one thread; rounds alternate between all models. The limit: no more than 1.02 times
the fastest recipe by hand that loses a point at most.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.experiments.models import FLOAT, OURS, Models, open_models, ratios, spread, time_runs
from benchmarks.rivals.by_hand import ByHand
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.core.errors import DataError
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.datasets.dataset import ClassTruth
from edge_sdk_tools.datasets.reading import read_dataset

LIMIT, POINTS = 1.02, 1.0
_TYPES = ("QUInt8 QInt8", "QInt8 QInt8", "QUInt8 QUInt8")


class Row(msgspec.Struct, frozen=True):
    """One model.

    Attributes:
        name: of the recipe.
        top1: 0-1.
        points: above FP32, in percent of images.
        to_fp32: its time over FP32's, median over rounds.
        ours_to_it: our time over its, each round.
    """

    name: str
    top1: float
    points: float
    to_fp32: float
    ours_to_it: tuple[float, ...]


@click.command()
@click.option("--model", required=True, type=click.Path(exists=True, path_type=Path), help="A classifier's model.toml.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Labelled images.")
@click.option("--calibration", required=True, type=click.Path(exists=True, path_type=Path), help="Other images.")
@click.option("--images", type=int, help="Labelled images, evenly spread; all of them by default.")
@click.option("--method", "methods", multiple=True, default=("MinMax", "Percentile", "Entropy"), show_default=True)
@click.option("--types", multiple=True, type=click.Choice(_TYPES), default=_TYPES, show_default=True)
@click.option("--rounds", default=50, show_default=True)
@click.option("--target", default="x86_64", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    model: Path,
    data: Path,
    calibration: Path,
    images: int | None,
    methods: tuple[str, ...],
    types: tuple[str, ...],
    rounds: int,
    target: str,
    json_file: Path | None,
) -> None:
    """Measure and print a table."""
    spec = load_model_spec(model)
    with tempfile.TemporaryDirectory() as work:
        report = build(model, target, Path(work) / "a.edge", calibration=[calibration], evaluation=[data])
        bundle = Bundle.open(Path(report.bundle))
        models = open_models(spec, bundle, _grid(types, methods), calibration, Path(work))
        top1, count = _top1(spec, models, data, images)
        taken = time_runs(spec, models, rounds)
    rows = [
        Row(
            name,
            top1[name],
            100 * (top1[name] - top1[FLOAT]),
            statistics.median(ratios(times, taken[FLOAT])),
            ratios(taken[OURS], times),
        )
        for name, times in taken.items()
    ]
    found = {"model": spec.name, "images": count, "rounds": rounds, "carries": report.precision, **_verdict(rows)}
    _show(rows, found)
    if json_file is not None:
        json_file.write_text(json.dumps({**found, "rows": msgspec.to_builtins(rows)}, indent=2) + "\n")


def _grid(types: tuple[str, ...], methods: tuple[str, ...]) -> list[ByHand]:
    return [
        ByHand(method, *kinds.split(), per_channel)
        for kinds, per_channel, method in itertools.product(types, (True, False), methods)
    ]


def _top1(spec: ModelSpec, models: Models, data: Path, images: int | None) -> tuple[dict[str, float], int]:
    """Share of images that each model gets right, and how many there were."""
    labels = tuple(Path(spec.labels).read_text(encoding="utf-8").splitlines())
    background = bool(spec.classification.background_class)
    dataset = read_dataset(data, labels, "classification", background_class=background)
    dataset = dataset if images is None else dataset.spread(images)
    right, count = dict.fromkeys(models, 0), 0
    for file, truth in zip(dataset.images.images, dataset.truths or (), strict=True):
        try:
            image = file.read()
        except DataError:
            continue
        count += 1
        for name, (session, prepare) in models.items():
            tensor = prepare.normalise(prepare.resize(image))
            place = int(session.run(tensor)[0].reshape(-1)[int(background) :].argmax())
            right[name] += isinstance(truth, ClassTruth) and place == truth.class_id
    return {name: value / max(count, 1) for name, value in right.items()}, count


def _verdict(rows: list[Row]) -> dict[str, object]:
    """The fastest recipe by hand within the limit of points, and how ours compares."""
    good = [row for row in rows if row.name not in (FLOAT, OURS) and row.points >= -POINTS]
    if not good:
        return {"fastest_by_hand": None, "ratio": None, "held": True}
    best = min(good, key=lambda row: row.to_fp32)
    ratio = statistics.median(best.ours_to_it)
    return {"fastest_by_hand": best.name, "ratio": ratio, "held": ratio <= LIMIT}


def _show(rows: list[Row], found: dict[str, object]) -> None:
    print(f"{found['model']}: {found['images']} images, {found['rounds']} rounds; ours carries {found['carries']}\n")
    print("| | top-1 | points to FP32 | time over FP32 | our time over it |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.name} | {row.top1:.1%} | {row.points:+.1f} | {row.to_fp32:.2f} | {spread(row.ours_to_it)} |")
    if found["fastest_by_hand"] is None:
        print(f"\nno recipe by hand loses {POINTS:g} point or less")
    else:
        verdict = "held" if found["held"] else "NOT held"
        print(
            f"\nfastest by hand within {POINTS:g} point: {found['fastest_by_hand']}; ours takes {found['ratio']:.3f} "
        )
        print(f"of its time, limit {LIMIT}: {verdict}")


if __name__ == "__main__":
    main()
