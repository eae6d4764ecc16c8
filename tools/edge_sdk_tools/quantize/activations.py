"""Activations: what every tensor of the float model holds on the calibration images.

One pass over the images, each thread with a session of its own. Owns which tensors are looked at; memory does not grow
with the number of images.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np
import onnx
import onnxruntime as ort

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.core.frame import Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.dataset import ImageSet, Skipped
from edge_sdk_tools.evaluate.workers import look_at
from edge_sdk_tools.extensions import register_extensions
from edge_sdk_tools.quantize.entrance import entrance
from edge_sdk_tools.quantize.histogram import Histogram
from edge_sdk_tools.quantize.pixel_range import pixel_range
from edge_sdk_tools.quantize.ranges import Calibration, ranges_of
from edge_sdk_tools.quantize.simplified import QUANTIZED_TYPES, Simplified

_FUSED = ("Relu", "Clip")
_ENOUGH = 2_000_000
"""Values of one tensor over all images: the range that leaves out one in a million then has two beyond it."""
_TWICE_MB = 100  # that may exist twice for the sake of time
_MEMORY_MB = 600
"""Activations of all threads together; a model that holds more is looked at by fewer of them."""


class Activations(msgspec.Struct, frozen=True, eq=False):
    """What was seen.

    Attributes:
        histograms: by tensor name.
        images: how many images were looked at.
        different: how many of them were different after preparation.
        answers: where the model's first output is largest, one an image: a classifier's class.
        skipped: images that cannot be read.
        known: ranges that need no images, by tensor name.
    """

    histograms: dict[str, Histogram]
    images: int
    different: int
    answers: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    known: dict[str, tuple[float, float]] = {}

    def ranges(self, calibration: Calibration) -> dict[str, tuple[float, float]]:
        """Low and high of every activation."""
        return {**ranges_of(self.histograms, calibration), **self.known}


def watch_activations(
    model: Simplified,
    images: ImageSet,
    spec: InputSpec,
    *,
    symmetric: bool,
    on_image: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Activations:
    """Run the float model on every image and count the values of all tensors that may be quantized.

    Args:
        model: simplified.
        images: to calibrate with.
        spec: how they are prepared.
        symmetric: whether activations before a Relu or Clip are wanted too: symmetric integers keep those nodes.
        on_image: called with the number done, for a progress bar.
        jobs: threads; one a core by default, fewer where their tensors would not fit.

    Raises:
        DataError: no image can be read.
        ModelError: a tensor holds what is no number.
    """
    names, followed = _tensors(model, symmetric=symmetric)
    held_mb = _held_mb(model.proto, names)
    session = _open(_with_outputs(model.proto, names), held_mb)
    histograms = {name: Histogram() for name in names}
    seen = look_at(
        images,
        lambda: _Watcher(session, spec, histograms, len(images)),
        on_image,
        min(max(1, int(_MEMORY_MB / max(held_mb, 1))), jobs or len(os.sched_getaffinity(0))),
    )
    if not seen.values:
        skipped = seen.skipped[0]
        raise DataError(f"none of {len(seen.skipped)} calibration images can be read; {skipped.path}: {skipped.reason}")
    for before, after in followed.items():
        histograms[before] = histograms[after]
    digests, answers = zip(*seen.values, strict=True)
    levels = pixel_range(spec)
    image = entrance(model.proto.graph).tensor
    known = {} if symmetric or isinstance(levels, str) or image not in histograms else {image: levels}
    return Activations(histograms, len(seen.values), len(set(digests)), answers, seen.skipped, known)


def _open(proto: onnx.ModelProto, held_mb: float) -> ort.InferenceSession:
    """One session for all threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if held_mb > _TWICE_MB:
        # One level below the highest, which lays tensors out in blocks: where all are outputs, each would exist twice.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    model = proto.SerializeToString()
    register_extensions(options, model)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class _Watcher:
    """What one thread works with."""

    def __init__(
        self,
        session: ort.InferenceSession,
        spec: InputSpec,
        histograms: dict[str, Histogram],
        images: int,
    ) -> None:
        self._session = session
        self._input = session.get_inputs()[0].name
        self._names = [output.name for output in session.get_outputs()]
        self._prepare = Prepare(spec)
        self._histograms, self._images = histograms, images

    def __call__(self, _index: int, image: Image) -> tuple[int, int]:
        tensor = self._prepare.normalise(self._prepare.resize(image))
        outputs = self._session.run(None, {self._input: tensor})
        values = dict(zip(self._names, outputs, strict=True))
        values[self._input] = tensor
        for name, histogram in self._histograms.items():
            value = values[name]
            low, high = histogram.add(value, every_of(value.size, self._images))
            if not math.isfinite(low) or not math.isfinite(high):
                raise ModelError(
                    f"tensor {name!r} holds values that are no numbers; check the weights with `edge-sdk check`, then "
                    "input.mean and input.std"
                )
        return zlib.crc32(tensor.data), int(outputs[0].argmax())


def every_of(size: int, images: int) -> int:
    """Of how many values in a row of a tensor of `size` one is counted, so that `images` of them give enough."""
    every = max(1, size * images // _ENOUGH)
    # With a divisor of the width in common some columns would never have their turn.
    while math.gcd(every, size) > 1:
        every += 1
    return every


def _tensors(model: Simplified, *, symmetric: bool) -> tuple[list[str], dict[str, str]]:
    """Names of the float tensors that may be quantized; and those that take the range of what follows them.

    A convolution whose only follower is a Relu or Clip is quantized together with it: its own output never exists.
    """
    graph = model.proto.graph
    weights = {w.name for w in graph.initializer}
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    outputs = {output.name for output in graph.output}
    wanted: dict[str, None] = {}
    followed: dict[str, str] = {}
    tail = set(model.tail)
    for node in graph.node:
        if node.op_type not in QUANTIZED_TYPES or node.name in tail:
            continue
        for name in (*node.input, *node.output):
            if not name or name in weights or kinds.get(name) != onnx.TensorProto.FLOAT:
                continue
            after = readers[name]
            if not symmetric and name not in outputs and len(after) == 1 and after[0].op_type in _FUSED:
                followed[name] = after[0].output[0]
                wanted[after[0].output[0]] = None
            else:
                wanted[name] = None
    return list(wanted), followed


def _with_outputs(proto: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy whose outputs are the model's first one, and these tensors."""
    augmented = onnx.ModelProto()
    augmented.CopyFrom(proto)
    known = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output)}
    first = proto.graph.output[0]
    there = {first.name, *(v.name for v in proto.graph.input)}
    del augmented.graph.output[1:]
    augmented.graph.output.extend(known[name] for name in names if name not in there)
    return augmented


def _held_mb(proto: onnx.ModelProto, names: list[str]) -> float:
    """What all of these tensors take for one image."""
    sizes = {
        v.name: int(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim])) * 4
        for v in (*proto.graph.value_info, *proto.graph.output)
    }
    return sum(sizes.get(name, 0) for name in names) / 1e6
