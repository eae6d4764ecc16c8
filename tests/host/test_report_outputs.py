"""Charts of what each step adds to the error, of what it takes, and of the noise at the layers themselves."""

from __future__ import annotations

import math

import msgspec
import pytest

from edge_sdk_tools.chain import OutputChange
from edge_sdk_tools.ledger import LayerNoise, Step
from edge_sdk_tools.report import render_html, words
from edge_sdk_tools.report.model_charts import MOST_NOISY, noise
from edge_sdk_tools.report.output_charts import costs, errors
from edge_sdk_tools.report.step_charts import ladder, waterfall
from tests.host.html_page import Page
from tests.host.ledgers import change, empty_ledger, full_ledger, noisy_layers, output_change, top1


def _text(value: str | None) -> str | None:
    return value and value.replace("\u00a0", " ")


def test_errors_of_steps_their_sum_and_what_was_measured() -> None:
    rows = errors(full_ledger().steps).rows
    assert [(row.label, row.detail, _text(row.value)) for row in rows] == [
        ("FP32", "beside PyTorch, 24 inputs, 16 of them images", "largest difference 1.2e-06"),
        ("simplified", "beside FP32, 8 images", "not a bit differs"),
        ("INT8", "beside simplified, 8 images", "9.0% (20.9 dB)"),
        ("ORT file", "beside INT8, 8 images", "1.0% (40.0 dB)"),
        ("sum of these steps", "root of the sum of squares", f"{100 * math.hypot(0.09, 0.01):.1f}% (20.9 dB)"),
        ("measured in all", "FP32 to ORT file, which ships", "9.1% (20.8 dB)"),
    ]
    widths = [row.bars[0].width if row.bars else None for row in rows]
    assert widths[:2] == [None, 0.0]
    assert widths[2] == pytest.approx(9 * (widths[3] or 0), rel=0.01)
    assert widths[5] == 100


def test_a_model_that_was_not_carried_is_no_part_of_the_sum() -> None:
    steps = (
        Step(kind="fp32", name="FP32"),
        Step(kind="simplified", name="simplified", outputs=output_change("fp32", 0.0, 0.0)),
        Step(kind="int8", name="INT8", outputs=output_change("simplified", 0.5, 0.5)),
        Step(kind="ort", name="ORT file", outputs=output_change("simplified", 1e-7, 1e-7), shipped=True),
    )
    *_, summed, total = errors(steps).rows
    assert (_text(summed.value), _text(total.value)) == ("below 0.001% (140.0 dB)",) * 2


def test_without_outputs_there_is_no_chart_of_them() -> None:
    bare = (Step(kind="fp32", name="FP32"), Step(kind="ort", name="ORT file"))
    assert errors(bare).rows == costs(bare).rows == noise(()).rows == ()
    classes = OutputChange(against="fp32", images=3, inputs=3, identical=False, largest=2.0)
    [row] = errors((*bare[:1], Step(kind="ort", name="ORT file", outputs=classes))).rows
    assert row.value == "largest difference 2"
    page = Page(render_html(msgspec.structs.replace(empty_ledger(), steps=bare)))
    assert (page.faults, page.open) == ([], [])


def test_file_and_memory_stand_side_by_side() -> None:
    rows = {row.label: row for row in costs(full_ledger().steps).rows}
    assert _text(rows["ORT file"].value) == "4.99 MB / 88.40 MB"
    assert _text(rows["INT8"].value) == "5.00 MB / not measured"
    assert [bar.tone for bar in rows["INT8"].bars] == ["fp32"]
    assert "ARM" not in rows


def test_a_step_that_the_chart_of_errors_tells_of_is_not_missing_in_those_of_quality() -> None:
    steps = full_ledger().steps
    assert [row.label for row in ladder(steps).rows] == ["teacher", "FP32", "INT8", "ORT file"]
    assert [row.label for row in waterfall(steps).rows] == ["teacher", "FP32", "INT8", "ORT file"]
    unknown = (Step(kind="fp32", name="FP32", quality=top1(0.8)), Step(kind="int8", name="INT8", change=change(-0.1)),
               Step(kind="arm", name="ARM"))  # fmt: skip
    assert [(row.label, row.value) for row in waterfall(unknown).rows][-1] == ("ARM", None)


def test_the_noisiest_layer_stands_first() -> None:
    chart = noise(noisy_layers(30))
    assert [row.label for row in chart.rows] == [f"noisy_{index}" for index in range(MOST_NOISY)]
    assert len(chart.folded) == 30 - MOST_NOISY
    assert [bar.tone for bar in chart.rows[0].bars] == ["int8", "float"]
    assert [bar.tone for bar in chart.rows[3].bars] == ["int8"]
    for row in (*chart.rows, *chart.folded):
        for bar in row.bars:
            assert 0 <= bar.start <= bar.start + bar.width <= 100.01
    [unknown] = noise((LayerNoise(node="a", operator="Conv"),)).rows
    assert (unknown.bars, unknown.value) == ((), None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, None),
        (0.0, "0%"),
        (0.09049, "9.0% (20.9 dB)"),
        (0.001234, "0.12% (58.2 dB)"),
        (1e-6, "below 0.001% (120.0 dB)"),
        (2.0, "200.0% (-6.0 dB)"),
    ],
)
def test_an_error_as_words(error: float | None, expected: str | None) -> None:
    assert _text(words.relative(error)) == expected
