"""The range of an input whose integers are the picture's own levels.

Owns which means and standard deviations have one. Where it exists it is better than any that images could teach: every
level of 0-255 has an integer of its own, and quantizing the normalised picture gives the picture back.
"""

from __future__ import annotations

from edge_sdk.bundle.model_spec import InputSpec

_HIGHEST = 255


def pixel_range(spec: InputSpec) -> tuple[float, float] | str:
    """Low and high of (x - mean) / std, when 255 steps between them are the levels themselves; else why not.

    An integer q means (q - zero point) * scale, one scale and one zero point for all channels: the mean must be the
    zero point, a whole number of 0-255, and 1 / std the scale.
    """
    means, stds = set(spec.mean[: spec.channels]), set(spec.std[: spec.channels])
    if len(means) > 1 or len(stds) > 1:
        return "input.mean and input.std differ between channels, and the integers of an input have one scale"
    [mean], [std] = means, stds
    if std < 0:
        return f"input.std is {std:g}, and a scale is positive"
    if not float(mean).is_integer() or not 0 <= mean <= _HIGHEST:
        return f"input.mean is {mean:g}, and a zero point is a whole number of 0-255"
    return (0 - mean) / std, (_HIGHEST - mean) / std
