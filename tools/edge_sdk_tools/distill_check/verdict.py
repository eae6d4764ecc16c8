"""The verdict on a student: passed or not, by what, and whether the images were enough to tell.

Owns the rule: the figure itself is judged, its interval says how sure that is.
"""

from __future__ import annotations

import msgspec

from edge_sdk.bundle.model_spec import Gates
from edge_sdk_tools.evaluate import ENOUGH_IMAGES, Evaluation, Figure, Interval

_CLOSE_POINTS = 0.1  # so near the limit one digit would not show on which side
_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it


class Verdict(msgspec.Struct, frozen=True):
    """What the gate says.

    Attributes:
        passed: whether the figure keeps the limit.
        metric: what was judged.
        value: student less teacher, -1 to 1, or their agreement, 0-1.
        low, high: 95 % interval of `value`.
        limit: least `value` that passes.
        within_noise: the interval of the difference holds zero: on these images the two cannot be told apart. None
            where agreement was judged.
        inconclusive: the limit lies inside the interval, or the images are too few for any interval: others might have
            given the other verdict.
        line: all of it, for people.
    """

    passed: bool
    metric: str
    value: float
    low: float
    high: float
    limit: float
    within_noise: bool | None
    inconclusive: bool
    line: str


def judge(evaluation: Evaluation, gates: Gates) -> Verdict:
    """Judge a student: by labels where there are any, else by how often it says what its teacher says.

    Args:
        evaluation: of the student, beside its teacher.
        gates: `distill_max_drop_points` or `distill_min_agreement` counts.
    """
    if evaluation.quality:
        return _judge_drop(evaluation.quality[0], evaluation.images, gates.distill_max_drop_points)
    return _judge_agreement(evaluation.agreement[0], evaluation.images, gates.distill_min_agreement)


def _judge_drop(figure: Figure, images: int, allowed_points: float) -> Verdict:
    if figure.reference is None or figure.difference is None:
        raise ValueError(f"{figure.name} has no reference")
    found, limit = figure.difference, -allowed_points / 100
    points, low, high = (100 * x for x in (found.value, found.low, found.high))
    digits = 2 if abs(points + allowed_points) < _CLOSE_POINTS else 1
    doubt = _doubt(found, limit, images)
    line = (
        f"{figure.name} {figure.value.value:.1%}, the teacher's {figure.reference.value:.1%}: "
        f"{_signed(points, digits)} points [{_signed(low, digits)} to {_signed(high, digits)}], "
        f"at most {allowed_points:g} below allowed"
        f"{'; within noise of its teacher' if found.contains_zero else ''}{doubt}"
    )
    passed = found.value >= limit - _ROUNDING
    return Verdict(
        passed, figure.name, found.value, found.low, found.high, limit, found.contains_zero, bool(doubt), line
    )


def _judge_agreement(figure: Figure, images: int, limit: float) -> Verdict:
    found = figure.value
    doubt = _doubt(found, limit, images)
    line = (
        f"{figure.name} {found.value:.1%} [{found.low:.1%} to {found.high:.1%}], at least {limit:.1%} expected{doubt}"
    )
    passed = found.value >= limit - _ROUNDING
    return Verdict(passed, figure.name, found.value, found.low, found.high, limit, None, bool(doubt), line)


def _doubt(found: Interval, limit: float, images: int) -> str:
    if found.low < limit < found.high:
        return "; inconclusive: the limit lies inside the interval, more images would tell"
    if images < ENOUGH_IMAGES:
        return f"; inconclusive: {images} images tell little, {ENOUGH_IMAGES} or more would"
    return ""


def _signed(points: float, digits: int) -> str:
    """`+0.2`, `-19.4`, and never a minus before zero."""
    return f"{round(points, digits) + 0.0:+.{digits}f}"
