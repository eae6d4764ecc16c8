"""The models of a comparison: FP32, what `edge-sdk build` chose, and INT8 by hand; run in turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.rivals.by_hand import ByHand, quantize_by_hand
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings
from edge_sdk_tools.check.gate import check_model

FLOAT, OURS = "FP32", "edge-sdk build"

Models: TypeAlias = dict[str, tuple[Session, Prepare]]
"""Loaded with one thread, each with the stage before it."""


def open_models(spec: ModelSpec, bundle: Bundle, grid: Sequence[ByHand], calibration: Path, work: Path) -> Models:
    """FP32, the model in front of a bundle, and one a recipe by hand.

    Args:
        spec: describes the float model.
        bundle: made of it.
        grid: recipes by hand.
        calibration: their images.
        work: a folder for files; must exist.
    """
    # With the shapes fixed and the opset raised, which a person would have to do as well.
    float_model = check_model(spec, None).proto.SerializeToString()
    checked = work / "checked.onnx"
    checked.write_bytes(float_model)
    found = {
        FLOAT: (Session(float_model, SessionSettings(), FLOAT), Prepare(spec.input)),
        OURS: (Session.open(bundle, SessionSettings()), Prepare.of(bundle.manifest)),
    }
    for settings in grid:
        print(f"by hand: {settings.text}", file=sys.stderr)
        path = quantize_by_hand(checked, spec, calibration, work, settings)
        found[settings.text] = (Session(path.read_bytes(), SessionSettings(), settings.text), Prepare(spec.input))
    return found


def time_runs(spec: ModelSpec, models: Models, rounds: int) -> dict[str, list[float]]:
    """Seconds of one run of each model, each round; every other round goes through them backwards."""
    image = np.random.default_rng(0).integers(0, 256, (*spec.input.size_wh[::-1], 3), np.uint8)
    taken: dict[str, list[float]] = {name: [] for name in models}
    tensors = {name: prepare.normalise(image) for name, (_, prepare) in models.items()}
    for name, (session, _) in models.items():
        session.run(tensors[name])
    for number in range(rounds):
        for name, (session, _) in list(models.items())[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            session.run(tensors[name])
            taken[name].append(time.perf_counter() - started)
    return taken


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Mine over theirs, each round."""
    return tuple(a / b for a, b in zip(mine, theirs, strict=True))


def spread(values: Sequence[float]) -> str:
    """The median, and the middle half in brackets."""
    return "{1:.3f} [{0:.3f}-{2:.3f}]".format(*np.percentile(values, [25, 50, 75]))
