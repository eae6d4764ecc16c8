"""Integers or floats: which of them the bundle's model takes, and of how many channels.

Owns the conditions: equal to the last bit, nothing more to run, and faster in the race.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.manifest import InputTensor, InputType, TensorColor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.frame import Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.convert import Converted, convert
from edge_sdk_tools.pixel_input.kernels import KernelClock
from edge_sdk_tools.pixel_input.level_graph import LevelGraph, level_graphs, with_fourth_channel
from edge_sdk_tools.pixel_input.race import Race, Way, race
from edge_sdk_tools.search import Choice

_COMPARED_IMAGES = 2  # all levels were compared one by one; these are for the rest of the graph
_CAMERA_WH = (1280, 720)
_FOUR_ARE_FASTER = ("x86_64",)
"""Machines whose integer convolutions may be faster with four channels than with three: docs/adr/0025."""


class InputTrial(msgspec.Struct, frozen=True):
    """Which input was chosen.

    Attributes:
        dtype: `uint8` where the model takes integers, `float32` where it takes normalised values.
        layout, color: of the tensor.
        line: why, for people.
        floats, levels: what a frame of 1280x720 takes here with floats and with integers; None where there was nothing
            to compare.
        saved_ms: of a frame, by integers; None likewise.
    """

    dtype: InputType
    layout: str
    color: TensorColor
    line: str
    floats: Way | None = None
    levels: Way | None = None
    saved_ms: float | None = None

    @property
    def text(self) -> str:
        """All of it but the figures, in one line."""
        return f"{self.dtype} {self.layout} {self.color}: {self.line}"


class LevelModel(msgspec.Struct, frozen=True, eq=False):
    """A model that takes a picture's integers.

    Attributes:
        onnx: before conversion.
        converted: the .ort file.
        tensor: what it takes.
    """

    onnx: Path
    converted: Converted
    tensor: InputTensor


def choose_input(choice: Choice, spec: InputSpec, target: Target, folder: Path) -> tuple[Choice, InputTrial]:
    """Find out whether the model had better take integers.

    Args:
        choice: the model that a bundle would carry.
        spec: of the model's own input.
        target: what is built for.
        folder: for files; must exist.

    Returns:
        The same choice, with the model that takes integers where that is better; and why.
    """
    floats = InputTrial("float32", spec.layout, spec.color, "")
    if choice.precision == "fp32":
        return choice, _said(floats, "an FP32 model computes with normalised floats")
    if choice.timed is not None:
        return choice, _said(floats, f"the integers for {target.cpu} are signed, pixels are not")
    proto = onnx.load(choice.onnx)
    graphs = level_graphs(proto, spec)
    if isinstance(graphs, str):
        return choice, _said(floats, graphs)
    pictures = [file.read() for file in choice.proof.images.spread(_COMPARED_IMAGES).images]
    trial = _Trial(choice.converted.model, spec, pictures)
    reason = ""
    for number, graph in enumerate(graphs):
        model = level_model(graph, target, _new(folder / f"levels_{number}"))
        if graph.tensor.layout == "NHWC" and target.machine in _FOUR_ARE_FASTER:
            four = with_fourth_channel(proto, spec)
            model = trial.faster(model, level_model(four, target, _new(folder / "four"))) if four else model
        outcome = trial.race(model)
        if not isinstance(outcome, str):
            return _faster_of(choice, floats, model, outcome)
        reason = outcome
    return choice, _said(floats, reason)


def level_model(graph: LevelGraph, target: Target, folder: Path) -> LevelModel:
    """Convert a graph that takes levels, in `folder`, which must exist."""
    path = folder / "levels.onnx"
    onnx.save(graph.proto, path)
    return LevelModel(path, convert(path, target, folder), graph.tensor)


class _Trial(msgspec.Struct, frozen=True):
    """What models that take integers are compared with: the one that takes floats, and pictures."""

    floats: Path
    spec: InputSpec
    pictures: Sequence[Image]

    def faster(self, three: LevelModel, four: LevelModel) -> LevelModel:
        """The one of four channels where it is clearly faster and gives the same."""
        outcome = self._raced(three.converted.model, three.tensor, four)
        return three if isinstance(outcome, str) or not outcome.clear else four

    def race(self, model: LevelModel) -> Race | str:
        """Against floats; in words, why a model is no choice."""
        return self._raced(self.floats, None, model)

    def _raced(self, file: Path, taken: InputTensor | None, model: LevelModel) -> Race | str:
        folder = model.converted.model.parent
        one = (KernelClock(file, folder), Prepare(self.spec, taken))
        other = (KernelClock(model.converted.model, folder), Prepare(self.spec, model.tensor))
        for number, picture in enumerate(self.pictures):
            expected, got = (clock.run(prepare.normalise(prepare.resize(picture))) for clock, prepare in (one, other))
            if [output.tobytes() for output in got] != [output.tobytes() for output in expected]:
                return f"integers give other results on image {number} of {len(self.pictures)}"
        outcome = race(one, other, np.asarray(cv2.resize(self.pictures[0], _CAMERA_WH), np.uint8))
        if outcome.more:
            return f"a graph that takes integers runs more of {', '.join(outcome.more)}"
        return outcome


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _faster_of(choice: Choice, floats: InputTrial, model: LevelModel, outcome: Race) -> tuple[Choice, InputTrial]:
    figures = (outcome.floats, outcome.levels, outcome.saved_ms)
    if outcome.clear:
        tensor = model.tensor
        why = "the device makes the integers" if tensor.scale else "the first QuantizeLinear gave every level back"
        line = f"{why}; {outcome.saved_ms:.2f} ms a frame less here"
        trial = InputTrial(tensor.dtype, tensor.layout, tensor.color, line, *figures)
        return _taking_levels(choice, model, outcome), trial
    line = f"integers are not clearly faster here ({outcome.saved_ms:+.3f} ms a frame in {outcome.rounds} rounds)"
    return choice, InputTrial(floats.dtype, floats.layout, floats.color, line, *figures)


def _taking_levels(choice: Choice, model: LevelModel, outcome: Race) -> Choice:
    # FP32 was not in the race: what levels save of the run is taken from what was measured beside it.
    run_saved_ms = outcome.floats.kernels_ms - outcome.levels.kernels_ms
    latency_ms = max(0.0, choice.proof.latency_ms - run_saved_ms)
    size_mb = model.converted.model.stat().st_size / 1e6
    proof = msgspec.structs.replace(choice.proof, latency_ms=latency_ms, model_mb=size_mb)
    return msgspec.structs.replace(choice, onnx=model.onnx, converted=model.converted, proof=proof, tensor=model.tensor)


def _said(trial: InputTrial, line: str) -> InputTrial:
    return msgspec.structs.replace(trial, line=line)
