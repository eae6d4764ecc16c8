"""The models of a comparison: FP32, what `edge-sdk build` chose, INT8 by hand and by OpenVINO; run in turn."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.rivals.by_hand import ByHand, Reader, quantize_by_hand
from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.check.gate import check_model

FLOAT, OURS, OPENVINO = "FP32", "edge-sdk build", "OpenVINO + NNCF"
RIVALS = Path(__file__).parents[2] / ".venv-rivals" / "bin" / "python"

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


@contextlib.contextmanager
def openvino_runs(spec: ModelSpec, calibration: Path, work: Path) -> Iterator[dict[str, Callable[[], float]]]:
    """Yield what runs the float model of `open_models` in INT8 by OpenVINO and NNCF, in a process of its own.

    Each call runs it once and returns its CPU seconds. Nothing is yielded without the rivals' environment.
    """
    if not RIVALS.exists():
        yield {}
        return
    tensors = work / "tensors.npy"
    np.save(tensors, [feed["images"] for feed in Reader(calibration, spec, "images").feeds])
    script = Path(__file__).parents[1] / "rivals" / "openvino_nncf.py"
    command = [str(part) for part in (RIVALS, script, work / "checked.onnx", tensors)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        told, says = process.stdin, process.stdout
        assert told is not None
        assert says is not None
        if not says.readline():
            raise RuntimeError(f"{script}: exit code {process.wait()}")

        def run() -> float:
            told.write("run\n")
            return float(says.readline())

        yield {OPENVINO: run}
        told.close()


def time_runs(
    spec: ModelSpec, models: Models, rounds: int, others: Mapping[str, Callable[[], float]] = {}
) -> dict[str, list[float]]:
    """CPU seconds of one run of each model, each round; every other round goes through them backwards.

    `others` run something else and return the CPU seconds that it took.
    """
    image = np.random.default_rng(0).integers(0, 256, (*spec.input.size_wh[::-1], 3), np.uint8)

    def timed(session: Session, prepare: Prepare) -> Callable[[], float]:
        tensor = prepare.normalise(image)

        def run() -> float:
            started = time.process_time()
            session.run(tensor)
            return time.process_time() - started

        return run

    calls = {**{name: timed(*model) for name, model in models.items()}, **others}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        for name, call in list(calls.items())[:: 1 if number % 2 else -1]:
            taken[name].append(call())
    return taken


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Mine over theirs, each round."""
    return tuple(a / b for a, b in zip(mine, theirs, strict=True))


def spread(values: Sequence[float]) -> str:
    """The median, and the middle half in brackets."""
    return "{1:.3f} [{0:.3f}-{2:.3f}]".format(*np.percentile(values, [25, 50, 75]))
