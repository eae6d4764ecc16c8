"""Quality: by which one figure the variants of a bundle are compared."""

from __future__ import annotations

from edge_sdk.manifest import Manifest, Variant

AGREEMENT = "agreement with FP32"


def qualities(manifest: Manifest) -> tuple[str, dict[str, float | None]]:
    """The metric, and each variant's value of it by name, 0-1; None where nobody measured it.

    It is quality by labels where every variant has it, in one metric; else agreement with FP32, whose own is 1.
    """
    by_labels = {v.name: v.quality for v in manifest.variants}
    metrics = {q.metric for q in by_labels.values() if q is not None}
    if None not in by_labels.values() and len(metrics) == 1:
        return metrics.pop(), {name: q.value for name, q in by_labels.items() if q is not None}
    return AGREEMENT, {v.name: _agreement(v) for v in manifest.variants}


def _agreement(variant: Variant) -> float | None:
    if variant.agreement is not None:
        return variant.agreement.value
    return 1.0 if variant.precision == "fp32" else None
