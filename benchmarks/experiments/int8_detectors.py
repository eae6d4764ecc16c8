"""INT8 of detectors.

Run as `python -m benchmarks.experiments.int8_detectors --model MODEL.toml --data IMAGES --calibration IMAGES`.

FP32, the model that `edge-sdk build` chooses, and the whole graph in INT8 by hand (benchmarks/rivals/by_hand.py:
unsigned activations, signed weights, per channel and per tensor, smallest and largest values). On labelled images
mAP50 and mAP50-95, and how far each lies from FP32 with a paired interval; on others the detections that are FP32's.
One thread; rounds alternate. The limit: at most .02 of mAP50 lost, or FP32 carried. The images that measure are those
by which the build chose.
"""

from __future__ import annotations

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
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.evaluate.evaluation import summarise
from edge_sdk_tools.evaluate.model import OutputMemory, Subject
from edge_sdk_tools.evaluate.participants import choose_images, pair_up
from edge_sdk_tools.evaluate.predictions import observe
from edge_sdk_tools.evaluate.statistics import Figure

LIMIT = 0.02
_BY_HAND = (ByHand(), ByHand(per_channel=False))


class Row(msgspec.Struct, frozen=True):
    """One model beside FP32.

    Attributes:
        name: of the model.
        figures: against the labels, each with FP32's and the difference, and the agreement with FP32.
        to_fp32: its time over FP32's, each round.
    """

    name: str
    figures: tuple[Figure, ...]
    to_fp32: tuple[float, ...]


class Found(msgspec.Struct, frozen=True):
    """What was measured of a detector.

    Attributes:
        model: its name.
        images, rounds: that quality and time were measured on.
        carries: the recipe of the INT8 model that was chosen, or that FP32 was kept and why.
        float_nodes: nodes of the carried INT8 model that are float on purpose.
        lost: mAP50 of FP32 less that of the carried model; None without labels.
        held: the limit.
        rows: what was chosen, then by hand.
    """

    model: str
    images: int
    rounds: int
    carries: str
    float_nodes: int
    lost: float | None
    held: bool
    rows: tuple[Row, ...]


@click.command()
@click.option("--model", "models", required=True, multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Labelled images, or images.")
@click.option("--calibration", required=True, type=click.Path(exists=True, path_type=Path), help="Other images.")
@click.option("--rounds", default=40, show_default=True)
@click.option("--target", default="x86_64", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    models: tuple[Path, ...], data: Path, calibration: Path, rounds: int, target: str, json_file: Path | None
) -> None:
    """Measure and print a table for each model.toml."""
    results = []
    for model in models:
        with tempfile.TemporaryDirectory() as work:
            results.append(_measure(model, data, calibration, rounds, target, Path(work)))
        _show(results[-1])
    if json_file is not None:
        json_file.write_text(json.dumps(msgspec.to_builtins(results), indent=2) + "\n")


def _measure(model: Path, data: Path, calibration: Path, rounds: int, target: str, work: Path) -> Found:
    spec = load_model_spec(model)
    report = build(model, target, work / "a.edge", calibration=[calibration], evaluation=[data])
    bundle = Bundle.open(work / "a.edge")
    models = open_models(spec, bundle, _BY_HAND, calibration, work)
    figures, images = _figures(spec, bundle, models, data)
    taken = time_runs(spec, models, rounds)
    rows = tuple(Row(name, figures[name], ratios(taken[name], taken[FLOAT])) for name in figures)
    lost = next((-f.difference.value for f in rows[0].figures if f.name == "mAP50" and f.difference), None)
    return Found(
        spec.name,
        images,
        rounds,
        _carried(report),
        report.float_nodes,
        lost,
        report.precision == "fp32" or lost is None or lost <= LIMIT,
        rows,
    )


def _figures(spec: ModelSpec, bundle: Bundle, models: Models, data: Path) -> tuple[dict[str, tuple[Figure, ...]], int]:
    """Of every model but FP32, beside FP32; and on how many images."""
    memory = OutputMemory()
    reference = Subject(FLOAT, spec, bundle.labels(), models[FLOAT][0], FLOAT, memory=memory)
    found, images = {}, 0
    for name, (session, _) in models.items():
        if name == FLOAT:
            continue
        described = bundle.manifest if name == OURS else spec
        subject = Subject(
            name, described, bundle.labels(), session, name, bundle.manifest.provenance.calibration_digests
        )
        dataset, _ = choose_images([subject], data)
        evaluation = summarise(observe(pair_up([subject, reference]), dataset, lambda _done: None), str(data))
        found[name], images = (*evaluation.quality, *evaluation.agreement), evaluation.images
    return found, images


def _carried(report: BuildResult) -> str:
    """The recipe, or why there is none."""
    if report.fallback_reason is not None:
        return f"FP32 kept: {report.fallback_reason}"
    return next(one.recipe for one in report.candidates if one.chosen)


def _show(found: Found) -> None:
    print(f"\n{found.model}: {found.images} images, {found.rounds} rounds, {found.float_nodes} nodes float")
    print(f"edge-sdk build carries: {found.carries}\n")
    named = found.rows[0].figures
    heads = [f"{f.name} | to FP32 [95 %]" if f.difference else f"{f.name} [95 %]" for f in named]
    print(f"| | {' | '.join(heads)} | time over FP32 |")
    print("|---|" + "---|" * (sum(2 if f.difference else 1 for f in named) + 1))
    alone = [f"{f.reference.value:.3f} | " if f.reference else "" for f in named]
    print(f"| {FLOAT} | {' | '.join(alone)} | 1 |")
    for row in found.rows:
        print(f"| {row.name} | {' | '.join(_text(f) for f in row.figures)} | {spread(row.to_fp32)} |")
    if found.lost is not None:
        verdict = "held" if found.held else "NOT held"
        print(f"\nlost of mAP50: {found.lost:.3f}, limit {LIMIT} or FP32 kept: {verdict}")
    print(f"time over FP32: {statistics.median(found.rows[0].to_fp32):.3f}", flush=True)


def _text(figure: Figure) -> str:
    change = figure.difference
    if change is None:
        return f"{figure.value.value:.3f} [{figure.value.low:.3f} to {figure.value.high:.3f}]"
    return f"{figure.value.value:.3f} | {change.value:+.3f} [{change.low:+.3f} to {change.high:+.3f}]"


if __name__ == "__main__":
    main()
