"""Classes of one model found among those of another, by the text of their labels."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edge_sdk.core.errors import ModelError

_NAMED = 3


def align_labels(
    labels: Sequence[str], others: Sequence[str], renamed: Mapping[str, str] | None = None
) -> NDArray[np.int64]:
    """Where each of `labels` stands in `others`.

    Texts are equal when they are so without regard to case, or else by their first name ("tench" and "tench, Tinca
    tinca"). Of labels that occur several times ("crane" twice) the first is the other's first, and so on.

    Args:
        labels: the classes that are compared.
        others: the classes among which they are looked for; there may be more of them.
        renamed: a label -> what the others call it.

    Returns:
        int64 (len(labels),), indices into `others`.

    Raises:
        ModelError: one is not there.
    """
    renamed = {_key(mine): theirs for mine, theirs in (renamed or {}).items()}
    _check_renamed(renamed, labels, others)
    wanted = [renamed.get(_key(label), label) for label in labels]
    found = _look_up(wanted, others, [None] * len(wanted), _key)
    found = _look_up(wanted, others, found, lambda text: _key(text.split(",")[0]))
    missing = [label for label, index in zip(labels, found, strict=True) if index is None]
    if missing:
        raise ModelError(_missing(missing, labels, others))
    return np.array(found, np.int64)


def _key(text: str) -> str:
    return " ".join(text.replace("_", " ").split()).casefold()


def _look_up(
    wanted: Sequence[str], others: Sequence[str], found: Sequence[int | None], key: Callable[[str], str]
) -> list[int | None]:
    """Fill what is still missing, among what nobody has taken yet."""
    taken = {index for index in found if index is not None}
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, text in reversed(list(enumerate(others))):
        if index not in taken:
            places[key(text)].append(index)
    return [
        index if index is not None else (places[key(text)].pop() if places[key(text)] else None)
        for text, index in zip(wanted, found, strict=True)
    ]


def _check_renamed(renamed: Mapping[str, str], labels: Sequence[str], others: Sequence[str]) -> None:
    known, theirs = {_key(label) for label in labels}, {_key(label) for label in others}
    for mine, other in renamed.items():
        if mine not in known:
            raise ModelError(f"teacher.labels: {mine!r} is no label of this model{_near(mine, labels)}")
        if _key(other) not in theirs:
            raise ModelError(f"teacher.labels: {other!r} is no label of the teacher{_near(other, others)}")


def _missing(missing: Sequence[str], labels: Sequence[str], others: Sequence[str]) -> str:
    named = ", ".join(repr(label) for label in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return (
        f"labels do not match: {len(missing)} of {len(labels)} are none of the other model's {len(others)} "
        f"({named}{more}){_near(missing[0], others)}; expected the same (for a teacher: or pairs in [teacher.labels])"
    )


def _near(text: str, others: Sequence[str]) -> str:
    near = difflib.get_close_matches(text, others, n=1)
    return f", the nearest is {near[0]!r}" if near else ""
