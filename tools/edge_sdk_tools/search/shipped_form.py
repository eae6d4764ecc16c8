"""The form of the chosen model that ships: for the target's core, and with integers or floats as its input.

`fit_to_core` rewrites the INT8 model into a form that computes the same with less work on the target's core. It is used
only if its outputs equal those of the chosen model, except for integers that are rounded to the other side of a tie,
and if at least the same share of its convolutions runs in integers.

`choose_input` decides which input the model takes. Integers must be equal to the last bit, run nothing more, and be
faster in the median of a race of both on this machine: an error costs only time, and no gain is beyond doubt beside
other programs. The difference is a part of a millisecond in ten, which the noise of a whole inference would hide:
preparation is timed whole, and of the inference those kernels that differ, by ONNX Runtime's own profile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cv2
import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from edge_sdk.bundle.bundle import NOISE_SHARE, energies_of, largest_difference, noise_of
from edge_sdk.bundle.manifest import Golden, InputTensor, InputType, TensorColor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.bundle.target import OPENVINO, Target
from edge_sdk.core.errors import ModelError, SessionError
from edge_sdk.core.frame import Frame, Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk.inference.runtime import SessionSettings
from edge_sdk.inference.session import Session
from edge_sdk_tools.graph.profile import ProfiledSession
from edge_sdk_tools.quantize.convert import Converted, convert, integer_mac_share
from edge_sdk_tools.quantize.forms import LevelGraph, core_form, in_blocks, level_graphs, with_fourth_channel
from edge_sdk_tools.search.variant import ModelVariant

_TOLERANCE = Golden(file="", count=1, absolute=0.0, relative=1e-6, noise_share=NOISE_SHARE)
_COMPARED_IMAGES = 2  # few, because a workstation takes ten times as long with signed activations
T = TypeVar("T")
_RUN = "model_run"
_LEAST_ROUNDS, _MOST_ROUNDS, _SECONDS = 3, 12, 0.5  # of a race
_FRAMES = 5  # prepared in each round, for one that is run: they cost little and are noisier
_CAMERA_WH = (1280, 720)
_MORE_ARE_FASTER = ("x86_64",)
"""Machines whose integer convolutions may be faster with four channels, or more, than with three: docs/adr/0012."""


def fit_to_core(variant: ModelVariant, target: Target, folder: Path) -> ModelVariant:
    """Return the variant in the form that its target's core runs fastest, written to `folder`, or as it is."""
    proto = core_form(onnx.load(variant.onnx), target.cpu) if variant.precision == "int8" else None
    if proto is None:
        return variant
    work = folder / "core"
    work.mkdir()
    path = work / "int8.onnx"
    onnx.save(proto, path)
    try:
        converted = convert(path, target, work)
        share = integer_mac_share(converted.model, variant.macs, work)
        if share < variant.proof.integer_mac_share or not _computes_the_same(converted.model, variant):
            return variant
    except (ModelError, SessionError):
        return variant  # the chosen model runs everywhere
    size_mb = converted.model.stat().st_size / 1e6
    return msgspec.structs.replace(
        variant,
        converted=converted,
        proof=msgspec.structs.replace(variant.proof, integer_mac_share=share, model_mb=size_mb),
        recipe=msgspec.structs.replace(variant.recipe, core_form=target.cpu),
        timed=variant.converted.model,
    )


def _computes_the_same(model: Path, variant: ModelVariant) -> bool:
    one, other = (Session(f.read_bytes(), SessionSettings(), f.name) for f in (model, variant.converted.model))
    reference, spec = variant.fp32.clone(), variant.spec.input
    floats, taken = Prepare(spec), Prepare(spec, variant.tensor)
    for file in variant.proof.images.spread(_COMPARED_IMAGES).images:
        image = file.read()
        tensor = taken.normalise(taken.resize(image))
        expected, unquantized = other.run(tensor), reference.run(floats.normalise(floats.resize(image)))
        noise = noise_of([[energies_of(a, b) for a, b in zip(expected, unquantized, strict=True)]])
        if isinstance(largest_difference(one.run(tensor), expected, _TOLERANCE, noise), str):
            return False
    return True


class KernelRun(msgspec.Struct, frozen=True):
    """One inference: runs and milliseconds of each kernel, by its operator, and what it reads and makes."""

    counts: Counter[str]
    ms: dict[str, float]

    @property
    def operators(self) -> Counter[str]:
        """The number of runs of each operator."""
        return Counter(name.split()[0] for name in self.counts.elements())


def kernel_runs(session: ProfiledSession) -> list[KernelRun]:
    """End a session's profile and return all its runs, in their order."""
    events = session.stop_profile()
    found = []
    for run in sorted((event for event in events if event.name == _RUN), key=lambda event: event.ts):
        counts: Counter[str] = Counter()
        ms: dict[str, float] = {}
        for kernel in events:
            if kernel.is_kernel and run.ts <= kernel.ts < run.ts + run.dur:
                name = _name(kernel)
                counts[name] += 1
                ms[name] = ms.get(name, 0.0) + kernel.dur / 1e3
        found.append(KernelRun(counts, ms))
    return found


def _name(kernel: ProfileEvent) -> str:
    """Name a kernel with types and shapes: a convolution of four channels is another kernel than one of three."""
    sides = (kernel.args.get(key, []) for key in ("input_type_shape", "output_type_shape"))
    return f"{kernel.args['op_name']} {msgspec.json.encode(list(sides)).decode()}"


class Way(msgspec.Struct, frozen=True):
    """Medians here, one thread: a frame's preparation, the kernels that differ between both ways, and one whole run."""

    prepare_ms: float
    kernels_ms: float
    run_ms: float


class Race(msgspec.Struct, frozen=True):
    """The outcome of timing two models against each other.

    `saved_ms` is what a frame takes less with levels: medians of preparation and of the kernels that differ. `more` are
    operators of which levels run more than floats; they should run fewer only, but for Reshape, which copies nothing.
    """

    floats: Way
    levels: Way
    saved_ms: float
    more: tuple[str, ...]
    rounds: int


def race(floats: tuple[ProfiledSession, Prepare], levels: tuple[ProfiledSession, Prepare], image: Image) -> Race:
    """Let both ways have the same frame in turn; each is a warmed-up model and what prepares frames for it."""
    frame = Frame(image, 0, 0.0, 0, "race")
    prepare_ms, run_ms = list[list[float]](), list[list[float]]()
    for _, prepare in (floats, levels):
        prepare(frame)  # the first frame of a size paints the padding
    deadline = time.process_time() + _SECONDS  # on a busy machine seconds pass without a round
    while len(run_ms) < _LEAST_ROUNDS or (len(run_ms) < _MOST_ROUNDS and time.process_time() < deadline):
        prepare_ms += [[_ms(prepare, frame) for _, prepare in (floats, levels)] for _ in range(_FRAMES)]
        run_ms.append([_ms(session.run, prepare.tensor) for session, prepare in (floats, levels)])
    float_runs, level_runs = (kernel_runs(session)[-len(run_ms) :] for session, _ in (floats, levels))
    return judged(np.array(prepare_ms), np.array(run_ms), float_runs, level_runs)


def judged(
    prepare_ms: NDArray[np.float64],
    run_ms: NDArray[np.float64],
    float_runs: Sequence[KernelRun],
    level_runs: Sequence[KernelRun],
) -> Race:
    """Judge the rounds: float64 (frames, 2) and (rounds, 2) ms of floats and of levels, and the kernels of each."""
    more = level_runs[0].operators - float_runs[0].operators
    of_floats, of_levels = float_runs[0].counts, level_runs[0].counts
    differ = {*(of_levels - of_floats), *(of_floats - of_levels)}
    both = (float_runs, level_runs)
    kernels_ms = np.array([[sum(run.ms.get(name, 0.0) for name in differ) for run in runs] for runs in both]).T
    parts_ms = (prepare_ms, kernels_ms, run_ms)
    floats, levels = (Way(*(round(float(np.median(part[:, way])), 3) for part in parts_ms)) for way in (0, 1))
    gains_ms = [part[:, 0] - part[:, 1] for part in (prepare_ms, kernels_ms)]
    return Race(
        floats,
        levels,
        round(float(sum(np.median(gains) for gains in gains_ms)), 3),
        tuple(sorted(set(more) - {"Reshape"})),
        len(run_ms),
    )


def _ms(call: Callable[[T], object], argument: T) -> float:
    start = time.perf_counter()
    call(argument)
    return (time.perf_counter() - start) * 1e3


class InputTrial(msgspec.Struct, frozen=True):
    """The outcome of choosing the model's input: which it takes, and why, in words.

    `floats`, `levels` and `saved_ms` are what a frame of 1280x720 takes here; None where nothing was compared.
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
        """All of it in one line, but for the figures."""
        return f"{self.dtype} {self.layout} {self.color}: {self.line}"


class LevelModel(msgspec.Struct, frozen=True, eq=False):
    """A model that takes a picture's integers; where those that ship are signed, `onnx` takes the unsigned ones."""

    onnx: Path
    converted: Converted
    tensor: InputTensor


def choose_input(variant: ModelVariant, target: Target, folder: Path) -> tuple[ModelVariant, InputTrial]:
    """Return the variant with the model that takes integers, where that is better, and why."""
    spec = variant.spec.input

    def stays(line: str, *figures: Any) -> tuple[ModelVariant, InputTrial]:
        return variant, InputTrial("float32", spec.layout, spec.color, line, *figures)

    chosen = proto = onnx.load(variant.onnx)
    if variant.timed is not None:  # what ships is written for another core, and its integers may be others
        proto = core_form(chosen, target.cpu) or chosen
    graphs = _keeps_floats(variant, target) or level_graphs(proto, spec)
    if isinstance(graphs, str):
        return stays(graphs)
    pictures = [file.read() for file in variant.proof.images.spread(_COMPARED_IMAGES).images]
    floats = variant.converted.model
    reason = ""
    for number, graph in enumerate(graphs):
        model = level_model(graph, target, folder / f"levels_{number}")
        if graph.tensor.layout == "NHWC" and target.machine in _MORE_ARE_FASTER:
            four = with_fourth_channel(proto, spec, graph.tensor)
            others = {"four": four, "blocks": in_blocks(graph)}
            made = [level_model(other, target, folder / name) for name, other in others.items() if other is not None]
            model = _fastest([model, *made], spec, pictures)
        outcome = _raced(floats, None, model, spec, pictures)
        if isinstance(outcome, str):
            reason = outcome
            continue
        figures = (outcome.floats, outcome.levels, outcome.saved_ms)
        if outcome.saved_ms <= 0:
            rounds = f"{outcome.saved_ms:+.3f} ms a frame in {outcome.rounds} rounds"
            return stays(f"integers are not faster here ({rounds})", *figures)
        tensor = model.tensor
        why = "the device makes the integers" if tensor.scale else "the first QuantizeLinear gave every level back"
        line = f"{why}; {outcome.saved_ms:.2f} ms a frame less here"
        if proto is not chosen and not isinstance(same := level_graphs(chosen, spec), str):
            onnx.save(same[number].proto, model.onnx)
        trial = InputTrial(tensor.dtype, tensor.layout, tensor.color, line, *figures)
        return _taking_levels(variant, model, outcome), trial
    return stays(reason)


def _keeps_floats(variant: ModelVariant, target: Target) -> str:
    """Say why no integers are tried as the input; empty where they are."""
    if variant.precision == "fp32":
        return "an FP32 model computes with normalised floats"
    if OPENVINO in target.providers:
        return "forms of the input are compared on ONNX Runtime's own kernels, and OpenVINO has others"
    return ""


def level_model(graph: LevelGraph, target: Target, folder: Path) -> LevelModel:
    """Convert a graph that takes levels, in a new `folder`."""
    folder.mkdir()
    path = folder / "levels.onnx"
    onnx.save(graph.proto, path)
    return LevelModel(path, convert(path, target, folder), graph.tensor)


def _fastest(models: Sequence[LevelModel], spec: InputSpec, pictures: Sequence[Image]) -> LevelModel:
    """Return the first model, or a later one that is faster than the fastest before it."""
    best = models[0]
    for model in models[1:]:
        outcome = _raced(best.converted.model, best.tensor, model, spec, pictures)
        best = model if isinstance(outcome, Race) and outcome.saved_ms > 0 else best
    return best


def _raced(
    file: Path, taken: InputTensor | None, model: LevelModel, spec: InputSpec, pictures: Sequence[Image]
) -> Race | str:
    """Race a model that takes integers against another file; in words, return why it is no choice."""
    folder = model.converted.model.parent
    one = (ProfiledSession(file, folder), Prepare(spec, taken))
    other = (ProfiledSession(model.converted.model, folder), Prepare(spec, model.tensor))
    for number, picture in enumerate(pictures):
        expected, got = (session.run(prepare.normalise(prepare.resize(picture))) for session, prepare in (one, other))
        if [output.tobytes() for output in got] != [output.tobytes() for output in expected]:
            return f"integers give other results on image {number} of {len(pictures)}"
    outcome = race(one, other, np.asarray(cv2.resize(pictures[0], _CAMERA_WH), np.uint8))
    if outcome.more:
        return f"a graph that takes integers runs more of {', '.join(outcome.more)}"
    return outcome


def _taking_levels(variant: ModelVariant, model: LevelModel, outcome: Race) -> ModelVariant:
    # FP32 was not in the race: what levels save of the run is taken from what was measured beside it.
    run_saved_ms = outcome.floats.kernels_ms - outcome.levels.kernels_ms
    latency_ms = max(0.0, variant.proof.latency_ms - run_saved_ms)
    size_mb = model.converted.model.stat().st_size / 1e6
    proof = msgspec.structs.replace(variant.proof, latency_ms=latency_ms, model_mb=size_mb)
    file, made, tensor = model.onnx, model.converted, model.tensor
    return msgspec.structs.replace(variant, onnx=file, converted=made, proof=proof, tensor=tensor)
