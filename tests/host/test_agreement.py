"""Agreement: pairs counted by hand, figures by scipy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from edge_sdk_tools.evaluate import evaluate
from edge_sdk_tools.evaluate.agreement import match
from edge_sdk_tools.evaluate.average_precision import Boxes
from tests.device import tiny
from tests.host.images import write_pictures
from tests.host.labelled import hand_written_scores
from tests.host.projects import write_project
from tests.host.test_evaluate import changed

Box = tuple[float, float, float, float, float, int]


def _boxes(items: list[Box]) -> Boxes:
    rows = np.array(sorted(items, key=lambda item: -item[4]), np.float64).reshape(-1, 6)
    return Boxes(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))


@pytest.mark.parametrize(
    ("got", "expected", "matched"),
    [
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 10, 0.5, 1)], [(0, 0)]),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 10, 0.5, 2)], []),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 20, 0.5, 1)], [(0, 0)]),
        ([(0, 0, 10, 10, 0.9, 1)], [(0, 0, 10, 21, 0.5, 1)], []),
        ([(0, 0, 10, 10, 0.9, 1), (0, 0, 10, 10, 0.8, 1)], [(0, 0, 10, 10, 0.5, 1)], [(0, 0)]),
        (
            [(0, 0, 10, 10, 0.8, 1), (0, 0, 10, 9, 0.9, 1)],
            [(0, 0, 10, 10, 0.5, 1), (0, 0, 10, 8, 0.5, 1)],
            [(0, 0), (1, 1)],
        ),
        ([], [(0, 0, 10, 10, 0.5, 1)], []),
        ([(0, 0, 10, 10, 0.9, 1)], [], []),
    ],
)
def test_matching_is_one_to_one(got: list[Box], expected: list[Box], matched: list[tuple[int, int]]) -> None:
    assert match(_boxes(got), _boxes(expected)) == matched


def test_divergence_is_from_the_reference_to_the_model(tmp_path: Path) -> None:
    model = write_project(tmp_path / "model", pictures=0)
    reference = write_project(tmp_path / "reference", model=changed(1), pictures=0)
    data = write_pictures(tmp_path / "data", 30)
    mine, theirs = (hand_written_scores(m, data) for m in (tiny.classifier(), changed(1)))
    [_, divergence] = evaluate(model, data, reference=reference).agreement
    assert divergence.name == "KL divergence (nats)"
    assert divergence.value.value == pytest.approx(entropy(theirs, mine, axis=1).mean(), rel=1e-4)
    assert divergence.value.value != pytest.approx(entropy(mine, theirs, axis=1).mean(), rel=1e-2)
