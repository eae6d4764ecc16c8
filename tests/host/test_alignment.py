"""Classes of one model among another's, by text."""

from __future__ import annotations

import pytest

from edge_sdk.errors import ModelError
from edge_sdk_tools.evaluate.alignment import align_labels


@pytest.mark.parametrize(
    ("others", "renamed", "expected"),
    [
        (["c", "b", "a"], {}, [2, 1, 0]),
        (["A", "B", "C, the third"], {}, [0, 1, 2]),
        (["x", "a", "b", "c"], {}, [1, 2, 3]),
        (["alpha", "b", "c"], {"A": "Alpha"}, [0, 1, 2]),
        (["b", "a", "c"], {"a": "b", "b": "a"}, [0, 1, 2]),
    ],
)
def test_labels_are_matched_by_text(others: list[str], renamed: dict[str, str], expected: list[int]) -> None:
    assert align_labels(["a", "b", "c"], others, renamed).tolist() == expected


def test_labels_that_occur_twice_keep_their_order() -> None:
    assert align_labels(["crane", "crane", "dog"], ["dog", "Crane", "crane, a bird"]).tolist() == [1, 2, 0]


def test_underscores_and_spaces_are_the_same() -> None:
    assert align_labels(["traffic_light"], ["Traffic  light"]).tolist() == [0]


@pytest.mark.parametrize(
    ("others", "renamed", "expected"),
    [
        (["a", "b"], {}, r"1 of 3 are none of the other model's 2 \('c'\); expected the same"),
        (["a", "bb", "z"], {}, r"2 of 3 .* \('b', 'c'\), the nearest is 'bb'"),
        (["a", "b", "c"], {"d": "a"}, r"teacher.labels: 'd' is no label of this model"),
        (["a", "b", "c"], {"a": "cat"}, r"teacher.labels: 'cat' is no label of the teacher"),
        ([f"x{i}" for i in range(9)], {}, r"3 of 3"),
    ],
)
def test_what_cannot_be_matched_is_named(others: list[str], renamed: dict[str, str], expected: str) -> None:
    with pytest.raises(ModelError, match=expected):
        align_labels(["a", "b", "c"], others, renamed)
