"""What every tensor of the float model holds on the calibration images, and the ranges that its integers span.

One pass over the images, each thread with a session of its own. Values are counted by the upper half of their bits, a
sign, an exponent and seven digits of a mantissa: bins 0.8 % wide at every size, in constant memory, whatever the range,
from which every way of calibrating reads its own. Where quantizing the normalised picture can give its 256 levels back,
the input has that range instead, which is better than any that images could teach.
"""

from __future__ import annotations

import math
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.core.frame import Image
from edge_sdk.inference.prepare import Prepare
from edge_sdk_tools.datasets.images import ImageSet, Skipped
from edge_sdk_tools.evaluate.predictions import look_at
from edge_sdk_tools.graph.index import GraphIndex, copy_of, graph_values
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import JobRunner
from edge_sdk_tools.quantize.forms import entrance
from edge_sdk_tools.quantize.simplified import QUANTIZED_TYPES, Simplified, open_session

BINS = 2**16  # of a histogram: one for every pattern of sixteen bits
_POSITIVE = BINS // 2
Calibration: TypeAlias = Literal["percentile 99.999", "percentile 99.99", "percentile 99.9999", "min-max", "entropy"]
"""A way to choose ranges; docs/adr/0011 has what they cost, and why the first is the first."""
CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)
# Entropy calibration: levels of an integer, bins that judge a range, and shares of the whole range that are tried.
_LEVELS, _BINS, _SHARES = 255, 2048, np.geomspace(1.0, 0.1, 64)
_TINY = 1e-12
_FUSED = ("Relu", "Clip")
_ENOUGH = 2_000_000
"""Values of one tensor over all images: the range that leaves out one in a million then has two beyond it."""
_TWICE_MB = 100  # that may exist twice for the sake of time
_MEMORY_MB = 600  # activations of all threads together; a model that holds more is looked at by fewer of them
_ENOUGH_IMAGES = 10
_NAMED = 3
_VALUES = (np.arange(_POSITIVE, dtype=np.uint32) << 16).view(np.float32)
_MAGNITUDES = np.append(np.where(np.isfinite(_VALUES), _VALUES, np.inf), np.inf).astype(np.float64)
_EDGES = np.concatenate([-_MAGNITUDES[:0:-1], _MAGNITUDES])
"""Of all bins in the order of their values: -inf, ..., -0, 0, ..., inf; patterns that are no numbers count nothing."""
_SMALLEST_SPAN = 255 * float(np.finfo(np.float32).tiny)
_ODD = 0.38196601125010515  # 2 - the golden ratio: no fraction with small numbers comes near it
_ORDER = np.concatenate([np.arange(BINS - 1, _POSITIVE - 1, -1), np.arange(_POSITIVE)])


class Histogram:
    """Counts of one tensor's values over many images; several threads may add to them.

    `counts` is int64 (65536,), by the upper half of the values' bits. `low` and `high` are the smallest and the largest
    value, exactly; inf and -inf before there are any.
    """

    def __init__(self, low: float = np.inf, high: float = -np.inf) -> None:
        self.counts: NDArray[np.int64] = np.zeros(BINS, np.int64)
        self.low, self.high = low, high
        self._adding = threading.Lock()

    def add(self, values: NDArray[np.float32], every: int = 1) -> tuple[float, float]:
        """Count every n-th of one or more float32 values; return the smallest and the largest of all, NaN if any is."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        upper = flat.view(np.uint16)[1 :: 2 * every]  # every machine that this runs on is little-endian
        low, high = float(flat.min()), float(flat.max())
        with self._adding:
            np.add.at(self.counts, upper, 1)  # in place: an array of counts an image would be new pages every time
            self.low, self.high = min(self.low, low), max(self.high, high)
        return low, high

    def packed(self) -> tuple[float, float, bytes, bytes]:
        """Return what `unpacked` takes: low, high, and the bins that are not empty, uint16, with their counts."""
        places = self.counts.nonzero()[0]
        return self.low, self.high, places.astype(np.uint16).tobytes(), self.counts[places].tobytes()

    @classmethod
    def unpacked(cls, kept: tuple[float, float, bytes, bytes]) -> Histogram:
        """Return the histogram that was packed."""
        histogram = cls(*kept[:2])
        histogram.counts[np.frombuffer(kept[2], np.uint16)] = np.frombuffer(kept[3], np.int64)
        return histogram

    def spanned(self, share: float) -> tuple[float, float]:
        """Return the range that holds a `share` (0-1) of the values, as many cut off below as above.

        Inside a bin its values are taken for evenly spread. Its edges would be round numbers, whose scales have simple
        ratios: sums of INT8 then lie half-way between two integers, and CPUs differ in where they round those.
        """
        counts = self.counts[_ORDER]
        until = np.cumsum(counts)
        cut = (1 - share) / 2 * until[-1]
        first = int(np.searchsorted(until, cut, side="right"))
        last = int(np.searchsorted(until, until[-1] - cut, side="left"))
        low = _inside(first, cut - (until[first] - counts[first]), counts[first])
        high = _inside(last, until[-1] - cut - (until[last] - counts[last]), counts[last])
        return float(max(low, self.low)), float(min(high, self.high))

    def values(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the middles of all bins that hold values, float64 in rising order, and how many each holds."""
        counts = self.counts[_ORDER]
        known = counts.nonzero()[0]
        bounds = np.clip(np.stack([_EDGES[known], _EDGES[known + 1]]), self.low, self.high)
        return bounds.mean(axis=0), counts[known]

    def linear(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return counts between other edges, float64 (len(edges) - 1,), as if values were even inside a bin."""
        counts = self.counts[_ORDER]
        known = counts.nonzero()[0]
        inner = slice(known[0], known[-1] + 2)
        until = np.concatenate([[0.0], np.cumsum(counts[known[0] : known[-1] + 1])])
        bounds = np.clip(_EDGES[inner], self.low, self.high)
        found: NDArray[np.float64] = np.diff(np.interp(edges, bounds, until))
        return found


def _inside(place: int, before: float, count: int) -> float:
    """Return the value with `before` of a bin's `count` values below it; it is never a round number."""
    low, high = float(_EDGES[place]), float(_EDGES[place + 1])
    if not np.isfinite(high - low):
        return high if np.isfinite(high) else low
    return low + (before + _ODD) / (count + 2 * _ODD) * (high - low)


def pixel_range(spec: InputSpec) -> tuple[float, float] | str:
    """Return low and high of (x - mean) / std, when 255 steps between them are the levels themselves; else why not.

    One scale and one zero point serve all channels: the mean must be a whole number of 0-255, and 1 / std the scale.
    """
    means, stds = set(spec.mean[: spec.channels]), set(spec.std[: spec.channels])
    if len(means) > 1 or len(stds) > 1:
        return "input.mean and input.std differ between channels, and the integers of an input have one scale"
    [mean], [std] = means, stds
    if std < 0:
        return f"input.std is {std:g}, and a scale is positive"
    if not float(mean).is_integer() or not 0 <= mean <= 255:
        return f"input.mean is {mean:g}, and a zero point is a whole number of 0-255"
    return (0 - mean) / std, (255 - mean) / std


def range_of(histogram: Histogram, calibration: Calibration) -> tuple[float, float]:
    """Return the range of one activation: low and high."""
    if calibration == "min-max" or histogram.low == histogram.high:
        return histogram.low, histogram.high
    if calibration == "entropy":
        return _least_divergent(histogram)
    return histogram.spanned(float(calibration.removeprefix("percentile ")) / 100)


def _least_divergent(histogram: Histogram) -> tuple[float, float]:
    """Return the range whose 255 levels are nearest to the values by Kullback-Leibler divergence.

    After Migacz, 8-bit Inference with TensorRT (2017); as ranges need not be symmetric, both ends are drawn in alike.
    """
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    counts = histogram.linear(np.linspace(low, high, _BINS + 1))
    middles = (np.arange(_BINS) + 0.5) / _BINS * (high - low) + low
    costs = [_divergence(counts, middles, low * share, high * share) for share in _SHARES]
    share = _SHARES[int(np.argmin(costs))]
    return max(float(low * share), histogram.low), min(float(high * share), histogram.high)


def _divergence(counts: NDArray[np.float64], middles: NDArray[np.float64], low: float, high: float) -> float:
    inside = (middles >= low) & (middles <= high)
    if np.count_nonzero(inside) < 2:
        return np.inf
    first, last = int(inside.argmax()), len(inside) - 1 - int(inside[::-1].argmax())
    expected = counts[first : last + 1].copy()
    shown = expected > 0
    levels = ((middles[first : last + 1] - low) / (high - low) * (_LEVELS - 1)).round().astype(np.int64)
    mass = np.bincount(levels, weights=expected, minlength=_LEVELS)
    bins = np.bincount(levels, weights=shown, minlength=_LEVELS)
    got = np.where(shown, mass[levels] / np.maximum(bins[levels], 1), 0.0)
    expected[0] += counts[:first].sum()  # what lies outside is clipped to the ends
    expected[-1] += counts[last + 1 :].sum()
    p, q = expected / expected.sum(), got / max(got.sum(), _TINY)
    where = p > 0
    return float((p[where] * np.log(p[where] / np.maximum(q[where], _TINY))).sum())


class Activations(msgspec.Struct, frozen=True, eq=False):
    """What the calibration images gave, by tensor name; `different` of them were different after preparation.

    `answers` are where the model's first output is largest, one an image: a classifier's class. `known` ranges need no
    images; what is the `same` as another tensor has that one's histogram.
    """

    own: dict[str, Histogram]
    images: int
    different: int
    answers: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    known: dict[str, tuple[float, float]] = {}
    same: dict[str, str] = {}

    @property
    def histograms(self) -> dict[str, Histogram]:
        """The histogram of every tensor."""
        return {**self.own, **{name: self.own[other] for name, other in self.same.items()}}

    def ranges(self, calibration: Calibration) -> dict[str, tuple[float, float]]:
        """Return low and high of every activation."""
        return {**{name: range_of(one, calibration) for name, one in self.histograms.items()}, **self.known}


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

    `symmetric` integers keep a Relu or Clip as a node, and activations before it are wanted too. `jobs` are threads:
    one for each core by default, fewer where their tensors would not fit. A DataError says that no image can be read, a
    ModelError that a tensor holds what is no number.
    """
    names, followed = _tensors(model, symmetric=symmetric)
    values, levels = graph_values(model.proto.graph), ort.GraphOptimizationLevel
    held_mb = sum(values[name].bytes or 0 for name in names) / 1e6
    # One level below the highest, which lays tensors out in blocks: where all are outputs, each would exist twice.
    level = levels.ORT_ENABLE_EXTENDED if held_mb > _TWICE_MB else levels.ORT_ENABLE_ALL
    augmented, graph = copy_of(model.proto), model.proto.graph
    known = {v.name: v for v in (*graph.value_info, *graph.output)}
    there = {graph.output[0].name, *(v.name for v in graph.input)}
    del augmented.graph.output[1:]
    augmented.graph.output.extend(known[name] for name in names if name not in there)
    session = open_session(augmented.SerializeToString(), level)
    histograms = {name: Histogram() for name in names}
    seen = look_at(
        images,
        lambda: _watcher(session, spec, histograms, len(images)),
        on_image,
        min(max(1, int(_MEMORY_MB / max(held_mb, 1))), jobs or len(os.sched_getaffinity(0))),
    )
    if not seen.values:
        skipped = seen.skipped[0]
        raise DataError(f"none of {len(seen.skipped)} calibration images can be read; {skipped.path}: {skipped.reason}")
    digests, answers = zip(*seen.values, strict=True)
    span, image = pixel_range(spec), entrance(model.proto.graph).tensor
    fixed = {} if symmetric or isinstance(span, str) or image not in histograms else {image: span}
    return Activations(histograms, len(seen.values), len(set(digests)), answers, seen.skipped, fixed, followed)


def _watcher(
    session: ort.InferenceSession, spec: InputSpec, histograms: dict[str, Histogram], images: int
) -> Callable[[int, Image], tuple[int, int]]:
    """Return a function that counts what one image gives, and returns a digest of its tensor and the first answer."""
    prepare, image_name = Prepare(spec), session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]

    def watch(_index: int, image: Image) -> tuple[int, int]:
        tensor = prepare.normalise(prepare.resize(image))
        outputs = session.run(None, {image_name: tensor})
        values = {**dict(zip(names, outputs, strict=True)), image_name: tensor}
        for name, histogram in histograms.items():
            low, high = histogram.add(values[name], every_of(values[name].size, images))
            if not math.isfinite(low) or not math.isfinite(high):
                raise ModelError(
                    f"tensor {name!r} holds values that are no numbers; check the weights with `edge-sdk check`, then "
                    "input.mean and input.std"
                )
        return zlib.crc32(tensor.data), int(outputs[0].argmax())

    return watch


def every_of(size: int, images: int) -> int:
    """Return n so that counting every n-th value of a tensor of `size` gives enough values over `images` images."""
    every = max(1, size * images // _ENOUGH)
    # With a divisor of the width in common some columns would never have their turn.
    while math.gcd(every, size) > 1:
        every += 1
    return every


def _tensors(model: Simplified, *, symmetric: bool) -> tuple[list[str], dict[str, str]]:
    graph, links, tail = model.proto.graph, GraphIndex(model.proto.graph), set(model.tail)
    values = (*graph.input, *graph.value_info, *graph.output)
    floats = {v.name for v in values if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT} - set(links.constants)
    wanted: dict[str, None] = {}
    followed: dict[str, str] = {}
    for node in graph.node:
        if node.op_type not in QUANTIZED_TYPES or node.name in tail:
            continue
        for name in (one for one in (*node.input, *node.output) if one in floats):
            after = None if symmetric else links.only_reader(name, *_FUSED)
            if after is not None:
                followed[name] = after.output[0]
            wanted[followed.get(name, name)] = None
    return list(wanted), followed


def calibration_warnings(
    activations: Activations, labels: Sequence[str] = (), known: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return one line for each warning about the calibration."""
    lines = (_few(activations), _one_class(activations, labels, known), _constants(activations))
    return tuple(line for line in lines if line)


def _few(activations: Activations) -> str:
    images = activations.images
    if images >= _ENOUGH_IMAGES and activations.different > 1:
        return ""
    if images > 1 and activations.different == 1:
        return (
            f"all {images} calibration images are the same once prepared, so ranges ({_span(activations)}) are those "
            "of one picture: give images like those that the camera sees"
        )
    return f"few images calibrate: {images}, give {_ENOUGH_IMAGES} or more, better 100"


def _one_class(activations: Activations, labels: Sequence[str], known: Sequence[str]) -> str:
    """Say so where all images are of one class, by their files or else by what the model sees."""
    if len(labels) < 2 or activations.different < 2 or not activations.histograms:
        return ""
    seen = set(known) or {labels[place] for place in activations.answers}
    if len(seen) > 1:
        return ""
    [name] = seen
    who = f"are labelled {name!r}" if known else f"look like {name!r} to FP32"
    return (
        f"all {activations.images} calibration images {who}, so ranges ({_span(activations)}) are those of one class: "
        "give images of all classes"
    )


def _constants(activations: Activations) -> str:
    """Name tensors whose range has no width, or so little that a float32 scale would be 0."""
    items = activations.histograms.items()
    values = {h: (name, h.low) for name, h in items if h.high - h.low <= _SMALLEST_SPAN}
    if not values:
        return ""
    named = ", ".join(f"{name!r} {value:.3g}" for name, value in list(values.values())[:_NAMED])
    more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
    return (
        f"tensors with one value on all {activations.images} calibration images: {named}{more}; dead layers, or images "
        "that are too alike"
    )


def _span(activations: Activations) -> str:
    histograms = activations.histograms.values()
    return f"from {min(h.low for h in histograms):.3g} to {max(h.high for h in histograms):.3g}"


def watch_once(
    job_runner: JobRunner,
    model: Simplified,
    images: ImageSet,
    spec: InputSpec,
    *,
    symmetric: bool,
    on_image: Callable[[int], None] = lambda _: None,
) -> Activations:
    """Return the activations of `watch_activations`, or the stored ones of the same model and images."""
    data = model.proto.SerializeToString(deterministic=True)
    return job_runner.once(
        lambda: watch_activations(model, images, spec, symmetric=symmetric, on_image=on_image),
        key=key_of("calibration-3", spec, symmetric, images, model.tail, data),
        result=Activations,
    )
