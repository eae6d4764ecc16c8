"""Quality: by which one figure the variants of a bundle are compared, and which differences of it are noise."""

from __future__ import annotations

import msgspec

from edge_sdk.manifest import Manifest, Variant

AGREEMENT = "agreement with FP32"

# That some images do not tell two models apart proves them equal only where there are many: of 30 images a loss of ten
# points may be noise, and may be one. As far below may a distilled student lie by default.
_MOST_BELOW = 0.02
_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it


class Rating(msgspec.Struct, frozen=True):
    """What the bundle says of one variant.

    Attributes:
        value: 0-1; None where nobody measured it.
        like_reference: whether labels do not tell it apart from the reference, on the same images as all others of
            which that is said.
    """

    value: float | None
    like_reference: bool = False

    @property
    def rank(self) -> float:
        """The value, or less than any where there is none."""
        return -1.0 if self.value is None else self.value

    def is_as_good_as(self, best: Rating) -> bool:
        """Whether it is equal to the best, or lies below it by no more than noise."""
        if self.rank >= best.rank:
            return True
        below = best.rank - self.rank
        return self.like_reference and best.like_reference and below <= _MOST_BELOW + _ROUNDING


UNRATED = Rating(None)


def ratings(manifest: Manifest) -> tuple[str, dict[str, Rating]]:
    """The metric, and what is said of each variant by name.

    It is quality by labels where every variant has it, in one metric; else agreement with FP32, whose own is 1. Nothing
    below that 1 is noise: one image with another answer shows that the two are not the same. Of any other variant
    without a figure nothing is known, and it ranks last: nothing that was measured may give way to a guess.
    """
    by_labels = {v.name: v.quality for v in manifest.variants if v.quality is not None}
    metrics = {q.metric for q in by_labels.values()}
    if len(by_labels) < len(manifest.variants) or len(metrics) != 1:
        return AGREEMENT, {v.name: Rating(_agreement(v)) for v in manifest.variants}
    compared = [(q.difference.reference, q.fp32, q.images) for q in by_labels.values() if q.difference is not None]
    is_one_comparison = len(set(compared)) == 1
    return metrics.pop(), {
        name: Rating(q.value, is_one_comparison and q.difference is not None and q.difference.may_be_noise)
        for name, q in by_labels.items()
    }


def _agreement(variant: Variant) -> float | None:
    if variant.agreement is not None:
        return variant.agreement.value
    return 1.0 if variant.precision == "fp32" else None
