"""record: what the steps of a build gave, as the ledger has it.

Owns what is left out: a figure that nobody measured is None there, and never zero.
"""

from __future__ import annotations

import datetime
import math
import sys
from importlib.metadata import version
from pathlib import Path

import onnx

from edge_sdk.core.machine import Cpu
from edge_sdk_tools.evaluate import Figure
from edge_sdk_tools.ledger import Candidate, LayerNoise, LayerSensitivity, Ledger, Verdict, operator_sizes
from edge_sdk_tools.promise import Steps
from edge_sdk_tools.prove import Proof
from edge_sdk_tools.quantize import LocalNoise
from edge_sdk_tools.record.images import pictured
from edge_sdk_tools.record.step_rows import change_of, step_rows
from edge_sdk_tools.search import Sensitivity, Trial

_PICTURES = 6
_LIBRARIES = ("edge-sdk", "numpy", "onnx", "onnxruntime", "opencv-python-headless")


def record_of(steps: Steps) -> Ledger:
    """The record of a build."""
    search, choice = steps.search, steps.choice
    int8 = search.chosen or search.best
    evaluation = int8.proof.evaluation
    return Ledger(
        name=steps.spec.name,
        target=steps.target.name,
        task=steps.spec.task,
        data=str(steps.images.evaluation.format),
        images=evaluation.images,
        verdict=_verdict(steps, int8.proof),
        steps=step_rows(steps, int8),
        candidates=tuple(_candidate(trial, search.chosen) for trial in search.trials),
        sensitivity=tuple(_layer(layer, choice.float_nodes) for layer in search.sensitivities),
        local_noise=tuple(_noise(layer) for layer in steps.noise),
        sizes=operator_sizes(onnx.load(steps.simplified.path), onnx.load(int8.quantized.path)),
        worst_images=tuple(pictured(int8.proof.worst[:_PICTURES], steps, int8)),
        boards=(steps.board,) if steps.board else (),
        warnings=(*evaluation.warnings, *search.doubts, *steps.chain.doubts),
        command=(_program(Path(sys.argv[0]).name), *sys.argv[1:]),
        libraries={name: version(name) for name in _LIBRARIES},
        created_at=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        host_cpu=Cpu.read().name,
    )


def _verdict(steps: Steps, int8: Proof) -> Verdict:
    choice, gates = steps.choice, steps.spec.gates
    figure = next(iter((*int8.evaluation.quality, *int8.evaluation.agreement)))
    if figure.reference is not None:
        least = -gates.int8_max_drop_relative * figure.reference.value
    else:
        least = gates.int8_min_agreement - 1
    why = choice.fallback_reason or steps.search.doubt or f"INT8 holds its gates: {_change_line(figure)}"
    mend = (
        "check input.mean, std, color and resize",
        "calibrate with more images like those that the camera sees",
        "lower gates.int8_max_drop_relative or int8_min_agreement",
    )
    return Verdict(
        carries=choice.precision,
        why=why,
        next_steps=mend if choice.fallback_reason else (),
        least_change=least,
        latency_budget_ms=steps.latency_budget_ms,
    )


def _change_line(figure: Figure) -> str:
    if figure.difference is None:
        return f"{figure.name} {figure.value.value:.1%}"
    return f"{figure.name} changes by {100 * figure.difference.value + 0.0:+.1f} points"


def _candidate(trial: Trial, chosen: Trial | None) -> Candidate:
    return Candidate(
        recipe=trial.quantized.recipe.text,
        change=change_of(trial.proof),
        latency_ratio=trial.proof.latency_ms / trial.proof.fp32_latency_ms,
        held=trial.shortfall is None,
        why=trial.shortfall.line if trial.shortfall else "",
        chosen=trial is chosen,
        board_minstructions=trial.board.int8_millions if trial.board else None,
    )


def _layer(layer: Sensitivity, float_nodes: tuple[str, ...]) -> LayerSensitivity:
    """One row a layer; operators of a type that were judged together are one row too."""
    return LayerSensitivity(
        node=layer.nodes[0] if layer.macs_share else f"all {layer.operator}",
        operator=layer.operator,
        sqnr_db=_decibels(layer.noise),
        macs_share=layer.macs_share,
        is_integer=layer.nodes[0] not in float_nodes,
    )


def _noise(layer: LocalNoise) -> LayerNoise:
    return LayerNoise(
        node=layer.node,
        operator=layer.operator,
        activation_sqnr_db=_decibels(layer.activation_noise),
        weight_sqnr_db=_decibels(layer.weight_noise),
        sqnr_db=layer.sqnr_db,
        macs_share=layer.macs_share,
    )


def _decibels(noise: float | None) -> float | None:
    """Signal over noise; none where there is no noise."""
    return -10 * math.log10(noise) if noise else None


def _program(name: str) -> str:
    """As people start it; `python -m edge_sdk` has the name of a file inside."""
    return "edge-sdk" if name == "__main__.py" else name
