"""The verdict on a student: passed or not, by what, and whether the images were enough to tell.

Owns the rule: the figure itself is judged, its interval says how sure that is.
"""

from __future__ import annotations

import msgspec

from edge_sdk.model_spec import Gates
from edge_sdk_tools.evaluate import Figure

_CLOSE = 0.1  # points: so near the limit one digit would not show on which side
_ROUNDING = 1e-9  # what lies at the limit keeps it, however floating point has it


class Verdict(msgspec.Struct, frozen=True):
    """What the gate says.

    Attributes:
        passed: whether the figure keeps the limit.
        metric: what was judged.
        value: student less teacher in points (hundredths), or their agreement, 0-1.
        low, high: 95 % interval of `value`.
        limit: points that the student may lie below its teacher, or least agreement.
        within_noise: the interval of the difference holds zero: on these images the two cannot be told apart. None
            where agreement was judged.
        inconclusive: the limit lies inside the interval: other images might have given the other verdict.
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


def judge_drop(figure: Figure, gates: Gates) -> Verdict:
    """Judge a student by labels: how far it lies below its teacher.

    Raises:
        ValueError: a figure without reference.
    """
    if figure.reference is None or figure.difference is None:
        raise ValueError(f"{figure.name} has no reference")
    limit = gates.distill_max_drop_points
    points, low, high = (100 * x for x in (figure.difference.value, figure.difference.low, figure.difference.high))
    noise = figure.difference.contains_zero
    digits = 2 if abs(points + limit) < _CLOSE else 1
    line = (
        f"{figure.name} {figure.value.value:.1%}, the teacher's {figure.reference.value:.1%}: "
        f"{_signed(points, digits)} points [{_signed(low, digits)} to {_signed(high, digits)}], "
        f"at most {limit:g} below allowed" + ("; within noise of its teacher" if noise else "")
    )
    inconclusive = low < -limit < high
    return Verdict(
        points >= -limit - _ROUNDING,
        figure.name,
        points,
        low,
        high,
        limit,
        noise,
        inconclusive,
        line + _doubt(inconclusive),
    )


def judge_agreement(figure: Figure, gates: Gates) -> Verdict:
    """Judge a student without labels: how often it says what its teacher says."""
    value, limit = figure.value, gates.distill_min_agreement
    line = f"{figure.name} {value.value:.1%} [{value.low:.1%} to {value.high:.1%}], at least {limit:.1%} expected"
    inconclusive = value.low < limit < value.high
    line += _doubt(inconclusive)
    return Verdict(
        value.value >= limit - _ROUNDING,
        figure.name,
        value.value,
        value.low,
        value.high,
        limit,
        None,
        inconclusive,
        line,
    )


def _doubt(inconclusive: bool) -> str:
    return "; inconclusive: the limit lies inside the interval, more images would tell" if inconclusive else ""


def _signed(points: float, digits: int) -> str:
    """`+0.2`, `-19.4`, and never a minus before zero."""
    return f"{round(points, digits) + 0.0:+.{digits}f}"
