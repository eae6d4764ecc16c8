"""Kept: what calibration saw, remembered between builds."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk_tools.candidates import Workshop, key_of
from edge_sdk_tools.dataset import ImageSet, Skipped
from edge_sdk_tools.quantize.activations import Activations, watch_activations
from edge_sdk_tools.quantize.histogram import BINS, Histogram
from edge_sdk_tools.quantize.simplified import Simplified


class _KeptHistogram(msgspec.Struct, frozen=True, array_like=True):
    """The bins that are not empty: their places as uint16, their counts as int64."""

    low: float
    high: float
    places: bytes
    counts: bytes


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """What was seen; `same` has tensors that are quantized with another one, by that one's name."""

    histograms: dict[str, _KeptHistogram]
    images: int
    different: int
    answers: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    same: dict[str, str]
    known: dict[str, tuple[float, float]]


def watch_once(
    workshop: Workshop,
    model: Simplified,
    images: ImageSet,
    spec: InputSpec,
    *,
    symmetric: bool,
    on_image: Callable[[int], None] = lambda _: None,
) -> Activations:
    """As `watch_activations`, unless the workshop's store remembers it of the same model and images."""
    kept = workshop.once(
        lambda: _packed(watch_activations(model, images, spec, symmetric=symmetric, on_image=on_image)),
        key=key_of(
            "calibration-2",
            spec,
            symmetric,
            images,
            model.tail,
            model.proto.SerializeToString(deterministic=True),
        ),
        result=_Kept,
    )
    histograms = {name: _unpacked(one) for name, one in kept.histograms.items()}
    histograms |= {name: histograms[other] for name, other in kept.same.items()}
    return Activations(histograms, kept.images, kept.different, kept.answers, kept.skipped, kept.known)


def _packed(seen: Activations) -> _Kept:
    histograms: dict[str, _KeptHistogram] = {}
    names: dict[int, str] = {}
    same: dict[str, str] = {}
    for name, one in seen.histograms.items():
        if names.setdefault(id(one), name) != name:
            same[name] = names[id(one)]
            continue
        places = one.counts.nonzero()[0]
        counts = one.counts[places].tobytes()
        histograms[name] = _KeptHistogram(one.low, one.high, places.astype(np.uint16).tobytes(), counts)
    return _Kept(histograms, seen.images, seen.different, seen.answers, seen.skipped, same, seen.known)


def _unpacked(kept: _KeptHistogram) -> Histogram:
    counts = np.zeros(BINS, np.int64)
    counts[np.frombuffer(kept.places, np.uint16)] = np.frombuffer(kept.counts, np.int64)
    return Histogram(counts, kept.low, kept.high)
