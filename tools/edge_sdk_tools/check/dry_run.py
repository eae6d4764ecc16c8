"""A trial run of a skeleton in the ONNX Runtime that is installed here.

Weights and image are zeros, so that a run takes only the memory of its activations; real weights are used to compare
two models, or if shapes depend on values. It runs inside the limits of `sandbox`.
"""

from __future__ import annotations

import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.core.errors import raising
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk_tools.check.model_file import Weights
from edge_sdk_tools.check.report import RefusedModelError
from edge_sdk_tools.graph.index import Value, Values, nodes_of
from edge_sdk_tools.graph.profile import register_extensions

_QUIET = 4  # fatal only: what goes wrong becomes a finding
_LOOPS_CPU_S = 10.0  # of one image, in a model whose loops may have no end
_RUNTIME = f"ONNX Runtime {ort.__version__}"
_TOLERANCE = 1e-4  # of the largest output: the same kernels in the same order differ by rounding only
# onnxruntime's exceptions share no root of their own.
_told_as = partial(raising, partial(RefusedModelError, next_step="export the model again"), kinds=Exception)


def trial_run(proto: onnx.ModelProto, weights: Weights, values: Values) -> dict[str, Value]:
    """Load and run a skeleton once, on an image of zeros; a RefusedModelError says that ONNX Runtime does not.

    Return `values`, with the shapes that tensors took where inference did not know them.
    """
    level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED  # all of the default but layouts, which copy the weights
    session = _load(proto, level)
    has_loops = any(node.op_type in ("Loop", "Scan") for node in nodes_of(proto.graph.node))
    arrays = _run(session, weights, _LOOPS_CPU_S if has_loops else None)
    seen = {o.name: tuple(a.shape) for o, a in zip(session.get_outputs(), arrays, strict=True)}
    made = [name for node in proto.graph.node for name in node.output if name]
    is_open = any(name not in values or values[name].count is None for name in made)
    observed = _observed(proto, weights) if is_open else {}
    unknown, known = Value(None, None), dict(values)
    for name, shape in seen.items():
        observed[name] = Value(observed.get(name, unknown).element, shape)
    for name, found in observed.items():
        inferred = values.get(name, unknown)
        shown = inferred.shape if inferred.count is not None else found.shape
        known[name] = Value(inferred.element or found.element, shown)
    return known


def compare(original: onnx.ModelProto, converted: onnx.ModelProto, weights: Weights, image: NDArray[np.float32]) -> str:
    """Run two skeletons on the same image with their real weights; a RefusedModelError says that one does not run.

    What differs is returned in words; empty when nothing does.
    """
    results = []
    for proto in (original, converted):
        session = _load(proto, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        [name] = [i.name for i in session.get_inputs() if i.name not in weights]
        results.append(_run(session, {**weights, name: image}))
    for output, before, after in zip(original.graph.output, *results, strict=True):
        if before.shape != after.shape:
            return f"output {output.name!r} has shape {after.shape}, before {before.shape}"
        allowed = _TOLERANCE * max(1e-6, float(np.nanmax(np.abs(before), initial=0)))
        if not np.allclose(after, before, rtol=0, atol=allowed, equal_nan=True):
            worst = float(np.nanmax(np.abs(after.astype(np.float64) - before.astype(np.float64))))
            return f"output {output.name!r} is off by up to {worst:.3g}"
    return ""


def _observed(proto: onnx.ModelProto, weights: Weights) -> dict[str, Value]:
    with tempfile.TemporaryDirectory() as folder:
        level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # every node keeps its name
        session = _load(proto, level, Path(folder) / "shapes")
        _run(session, weights)
        try:
            events = msgspec.json.decode(Path(session.end_profiling()).read_bytes(), type=list[ProfileEvent])
        except (OSError, msgspec.DecodeError):  # no space for it: what cannot be seen stays unknown
            events = []
    shapes = {e.name.removesuffix("_kernel_time"): e.args.get("output_type_shape", []) for e in events}
    return {
        name: Value(*next((element, tuple(sides)) for element, sides in shape.items()))
        for node in proto.graph.node
        for name, shape in zip(filter(None, node.output), shapes.get(node.name, []), strict=False)
        if shape
    }


def _load(
    proto: onnx.ModelProto, level: ort.GraphOptimizationLevel, profile: Path | None = None
) -> ort.InferenceSession:
    """Open a skeleton; with `profile` its runs are noted in a file of that name and a time stamp."""
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    # Memory goes back as soon as it is free, no buffer waits for a later tensor, no weight is copied to another layout.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = options.enable_mem_reuse = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    model = proto.SerializeToString()
    register_extensions(options, model)
    with _told_as(f"{_RUNTIME} cannot load it"):
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: ort.InferenceSession, known: Weights, limit_s: float | None = None) -> list[NDArray[Any]]:
    """Run a session; a RefusedModelError says that it failed, or took more than `limit_s` seconds of CPU."""
    # Zeros, for what is not known, take no memory, because nobody writes them.
    feeds = {i.name: known.get(i.name, np.zeros(i.shape, np.float32)) for i in session.get_inputs()}
    run, ended = ort.RunOptions(), threading.Event()

    def watch(end_s: float) -> None:
        while not ended.wait(0.1):
            run.terminate = time.process_time() > end_s

    if limit_s is not None:
        threading.Thread(target=watch, args=(time.process_time() + limit_s,), daemon=True).start()
    try:
        with _told_as(f"{_RUNTIME} failed to run it"):
            return [np.asarray(array) for array in session.run(None, feeds, run)]
    except RefusedModelError as cause:
        if run.terminate:
            what = f"a model with a loop ran for {limit_s:g} s of CPU on one image and had not ended"
            raise RefusedModelError(what, "bound the number of rounds, and export the model again") from cause
        raise
    finally:
        ended.set()
