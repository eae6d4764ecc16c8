"""What a reader should know of the images that calibrated, before believing their ranges."""

from __future__ import annotations

from collections.abc import Sequence

from edge_sdk_tools.quantize.activations import Activations

ENOUGH_IMAGES = 10
_NAMED = 3


def doubts_about_calibration(
    activations: Activations, labels: Sequence[str] = (), known: Sequence[str] = ()
) -> tuple[str, ...]:
    """One line each.

    Args:
        activations: of the calibration images.
        labels: of a classifier, in output order; nothing is said of classes without.
        known: classes of the images, where files say them.
    """
    lines = (
        _same_picture(activations) or _few(activations),
        _one_class(activations, labels, known),
        _constants(activations),
    )
    return tuple(line for line in lines if line)


def _same_picture(activations: Activations) -> str:
    if activations.images == 1 or activations.different > 1:
        return ""
    return (
        f"all {activations.images} calibration images are the same once prepared, so ranges ({_span(activations)}) are "
        "those of one picture: give images like those that the camera sees"
    )


def _few(activations: Activations) -> str:
    if activations.images >= ENOUGH_IMAGES:
        return ""
    return f"few images calibrate: {activations.images}, give {ENOUGH_IMAGES} or more, better 100"


def _one_class(activations: Activations, labels: Sequence[str], known: Sequence[str]) -> str:
    """What files say of the classes goes before what the model sees."""
    if len(labels) < 2 or activations.different < 2:
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
    """Tensors whose range has no width; the quantizer gives them a scale that holds their value."""
    values = {h: (name, h.low) for name, h in activations.histograms.items() if h.is_constant}
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
