"""Whether INT8 pays, and who notices.

Run as `python -m benchmarks.experiments.int8_time --model MODEL.toml --calibration IMAGES`.

For each model: what `edge-sdk build` chooses by itself, the time of INT8 over FP32's as the build measured it, and,
in alternating rounds on one thread, in CPU time, that of the chosen model, of the whole graph in INT8 by hand, and of
what OpenVINO and NNCF make of it, where the rivals' environment is there (`make .venv-rivals/.ready`). Weights may be
random: give `int8_min_agreement = 0` and `int8_max_drop_relative = 1` in [gates] then, so that time alone decides.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.experiments.models import FLOAT, OPENVINO, OURS, open_models, openvino_runs, ratios, spread, time_runs
from benchmarks.rivals.by_hand import ByHand
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk_tools.build.pipeline import build


class Row(msgspec.Struct, frozen=True):
    """One model.

    Attributes:
        model: its name.
        carries: int8 or fp32.
        reason: why it is FP32; None for INT8.
        built_to_fp32: time of the build's INT8 over FP32's, by the build, whatever was chosen.
        chosen_to_fp32, by_hand_to_fp32, openvino_to_fp32: CPU time over FP32's, each round; the last is empty without
            the rivals' environment.
        float_nodes: nodes of the carried INT8 model that are float on purpose.
    """

    model: str
    carries: str
    reason: str | None
    built_to_fp32: float
    chosen_to_fp32: tuple[float, ...]
    by_hand_to_fp32: tuple[float, ...]
    openvino_to_fp32: tuple[float, ...]
    float_nodes: int


@click.command()
@click.option("--model", "models", required=True, multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--calibration", required=True, type=click.Path(exists=True, path_type=Path), help="Images.")
@click.option("--rounds", default=40, show_default=True)
@click.option("--target", default="x86_64", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(models: tuple[Path, ...], calibration: Path, rounds: int, target: str, json_file: Path | None) -> None:
    """Measure and print a table."""
    columns = ["carries", "nodes float", "INT8, by the build", "what is carried", "INT8 by hand", OPENVINO]
    print(f"| time over FP32 of | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}", flush=True)
    rows = []
    for model in models:
        with tempfile.TemporaryDirectory() as work:
            rows.append(_measure(model, calibration, rounds, target, Path(work)))
        print(_line(rows[-1]), flush=True)
    for row in rows:
        if row.reason is not None:
            print(f"\n{row.model} carries FP32 because {row.reason}")
    if json_file is not None:
        json_file.write_text(json.dumps({"rounds": rounds, "rows": msgspec.to_builtins(rows)}, indent=2) + "\n")


def _measure(model: Path, calibration: Path, rounds: int, target: str, work: Path) -> Row:
    spec, by_hand = load_model_spec(model), ByHand()
    report = build(model, target, work / "a.edge", calibration=[calibration])
    models = open_models(spec, Bundle.open(work / "a.edge"), [by_hand], calibration, work)
    with openvino_runs(spec, calibration, work) as others:
        taken = time_runs(spec, models, rounds, others)
    return Row(
        spec.name,
        report.precision,
        report.fallback_reason,
        report.int8_latency_ms / report.fp32_latency_ms,
        ratios(taken[OURS], taken[FLOAT]),
        ratios(taken[by_hand.text], taken[FLOAT]),
        ratios(taken[OPENVINO], taken[FLOAT]) if OPENVINO in taken else (),
        report.float_nodes,
    )


def _line(row: Row) -> str:
    taken = (row.chosen_to_fp32, row.by_hand_to_fp32, row.openvino_to_fp32)
    measured = " | ".join(spread(ratio) if ratio else "" for ratio in taken)
    return f"| {row.model} | {row.carries.upper()} | {row.float_nodes} | {row.built_to_fp32:.2f} | {measured} |"


if __name__ == "__main__":
    main()
