"""Charts: marks that lie on them whatever was measured, and that say what they should."""

from __future__ import annotations

import math

import msgspec
import pytest

from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import (
    Candidate,
    LayerSensitivity,
    Measure,
    OperatorSize,
    Step,
)
from edge_sdk_tools.report import render_html, words
from edge_sdk_tools.report.axis import Axis, axis_over
from edge_sdk_tools.report.bar_chart import BarChart
from edge_sdk_tools.report.model_charts import MOST_ROWS, sensitivity, sizes
from edge_sdk_tools.report.scatter import HEIGHT_PX, scatter
from edge_sdk_tools.report.step_charts import ladder, waterfall
from tests.host.html_page import Page
from tests.host.ledgers import change, empty_ledger, layers, top1


def _check_bars(chart: BarChart) -> None:
    assert 0 <= chart.zero <= 100
    assert all(0 <= tick.at <= 100 for tick in chart.ticks)
    assert len(chart.ticks) <= 6
    for row in (*chart.rows, *chart.folded):
        for bar in row.bars:
            assert 0 <= bar.start <= bar.start + bar.width <= 100.01
        if row.whisker:
            assert 0 <= row.whisker.low <= row.whisker.high <= 100


def _steps(*changes: float | None) -> tuple[Step, ...]:
    kinds = ("teacher", "fp32", "simplified", "int8", "ort", "arm")
    return tuple(
        msgspec.convert(
            {"kind": kind, "name": kind, "change": None if c is None else msgspec.to_builtins(change(c, abs(c) / 2))},
            Step,
        )
        for kind, c in zip(kinds, changes, strict=False)
    )


@pytest.mark.parametrize(
    "steps",
    [
        (),
        _steps(None),
        _steps(None, 0.0),
        _steps(0.0, 0.0, 0.0, 0.0),
        _steps(None, -0.66, None, -0.66, 0.66, 0.66),
        _steps(None, 1e-300, -1e-300),
        _steps(None, 1e-9),
        (Step(kind="int8", name="INT8", change=change(0.01), against="fp32"),),
        (Step(kind="fp32", name="FP32", quality=Measure("top-1", Interval(0.0, 0.0, 0.0))),),
        (Step(kind="fp32", name="FP32", quality=Measure("top-1", Interval(1.0, 1.0, 1.0))),),
    ],
)
def test_charts_of_steps_at_their_edges(steps: tuple[Step, ...]) -> None:
    _check_bars(ladder(steps))
    _check_bars(waterfall(steps))
    assert Page(render_html(msgspec.structs.replace(empty_ledger(), steps=steps))).faults == []


def test_losses_add_up_from_where_the_compared_step_ended() -> None:
    steps = (
        Step(kind="fp32", name="FP32", quality=top1(0.8)),
        Step(kind="simplified", name="simplified", change=change(-0.1, 0.0)),
        Step(kind="int8", name="INT8", change=change(-0.1, 0.05)),
        Step(kind="ort", name="ORT", change=change(-0.05, 0.1), against="simplified"),
        Step(kind="arm", name="ARM"),
    )
    chart = waterfall(steps)
    # From -25 points, the end of INT8's whisker, to 0.
    assert [[(bar.start, bar.width, bar.tone) for bar in row.bars] for row in chart.rows] == [
        [],
        [(60.0, 40.0, "loss")],
        [(20.0, 40.0, "loss")],
        [(40.0, 20.0, "loss")],
        [],
    ]
    assert [row.value for row in chart.rows][::4] == ["where it starts", None]
    assert [row.detail for row in chart.rows] == ["", "", "", "within noise", ""]
    assert chart.zero == 100


def test_without_labels_steps_are_drawn_by_agreement() -> None:
    steps = (Step(kind="fp32", name="FP32"), Step(kind="int8", name="INT8", agreement=top1(0.9), change=change(-0.1)))
    assert [len(row.bars) for row in ladder(steps).rows] == [0, 1]
    assert waterfall(steps).rows[0].value == "where it starts"
    html = render_html(msgspec.structs.replace(empty_ledger(), steps=steps))
    assert "agreement with FP32, for there are no labels" in html


_ONE = Candidate(recipe="a", change=change(-0.01), latency_ratio=0.5, held=True)


@pytest.mark.parametrize(
    ("candidates", "gate"),
    [
        ((_ONE,), None),
        ((_ONE,), -0.01),
        ((_ONE, _ONE, msgspec.structs.replace(_ONE, chosen=True)), 0.0),
        ((Candidate(recipe="zero", change=Interval(0.0, 0.0, 0.0), latency_ratio=0.0, held=True),), -1.0),
        ((Candidate(recipe="slow", change=change(1.0, 0.0), latency_ratio=1e9, held=True), _ONE), -0.01),
        (tuple(msgspec.structs.replace(_ONE, latency_ratio=0.5 + i / 1e9) for i in range(40)), -0.01),
    ],
)
def test_recipes_lie_on_the_chart(candidates: tuple[Candidate, ...], gate: float | None) -> None:
    chart = scatter(candidates, gate)
    assert chart is not None
    assert [*sorted(point.number for point in chart.points)] == [*range(1, len(candidates) + 1)]
    for point in chart.points:
        assert 0 < point.x < 100
        assert 0 < point.top_px <= point.y_px <= point.bottom_px < HEIGHT_PX
    for tick in chart.x_ticks:
        assert 0 < tick.at < 100
    for tick in chart.y_ticks:
        assert 0 < tick.at < HEIGHT_PX
    assert gate is None or (chart.gate_px is not None and 0 < chart.gate_px < HEIGHT_PX)


def test_the_better_recipe_is_above_and_the_faster_left_and_the_chosen_on_top() -> None:
    better = Candidate(recipe="b", change=change(0.0), latency_ratio=0.9, held=True, chosen=True)
    missing = Candidate(recipe="c", held=False)
    chart = scatter((better, _ONE, missing), -0.005)
    assert chart is not None
    one, chosen = chart.points
    assert (one.number, chosen.number, chart.left_out) == (2, 1, 1)
    assert chosen.y_px < one.y_px
    assert one.x < chosen.x
    assert chart.gate_px is not None
    assert chosen.y_px < chart.gate_px < one.y_px
    assert scatter((missing,), None) is None


@pytest.mark.parametrize(
    "layers_there",
    [
        layers(200),
        layers(1),
        (),
        (LayerSensitivity(node="a", operator="Conv", is_integer=False),),
        (LayerSensitivity(node="a", operator="Conv", sqnr_db=-1e6, is_integer=True),),
        (LayerSensitivity(node="a", operator="Conv", sqnr_db=1e6, is_integer=True),),
        (LayerSensitivity(node="a", operator="Conv", loss=0.0, is_integer=True),),
        (LayerSensitivity(node="a", operator="Conv", loss=-0.2, is_integer=True),),
    ],
)
def test_layers_at_their_edges(layers_there: tuple[LayerSensitivity, ...]) -> None:
    chart = sensitivity(layers_there)
    _check_bars(chart)
    assert len(chart.rows) == min(len(layers_there), MOST_ROWS)
    assert len(chart.rows) + len(chart.folded) == len(layers_there)
    html = render_html(msgspec.structs.replace(empty_ledger(), sensitivity=layers_there))
    assert Page(html).faults == []
    assert all(layer.node in html for layer in layers_there)


def test_the_layer_that_loses_most_stands_first() -> None:
    noisy = [LayerSensitivity(node=n, operator="Conv", sqnr_db=db, is_integer=True) for n, db in
             (("a", 40.0), ("b", None), ("c", 20.0))]  # fmt: skip
    chart = sensitivity(noisy)
    assert [row.label for row in chart.rows] == ["c", "a", "b"]
    assert [row.value for row in chart.rows] == ["20.0\u00a0dB", "40.0\u00a0dB", None]
    assert chart.rows[0].bars[0].width == pytest.approx(10 * chart.rows[1].bars[0].width, rel=0.01)
    by_loss = [
        msgspec.structs.replace(layer, loss=loss) for layer, loss in zip(noisy, (0.02, -0.01, None), strict=True)
    ]
    chart = sensitivity(by_loss)
    assert [(row.label, row.value) for row in chart.rows] == [("a", "-2.0 points"), ("b", "+1.0 points"), ("c", None)]
    assert [row.bars[0].tone for row in chart.rows[:2]] == ["loss", "gain"]


@pytest.mark.parametrize(
    "operators",
    [(), (OperatorSize("Conv", 0, 0),), (OperatorSize("Conv", None, None),), (OperatorSize("Conv", 10**12, 1),)],
)
def test_sizes_at_their_edges(operators: tuple[OperatorSize, ...]) -> None:
    _check_bars(sizes(operators))


def test_a_size_that_is_not_known_has_no_bar() -> None:
    conv, gemm, add = sizes(
        (OperatorSize("Conv", 4, 1), OperatorSize("Gemm", 4, None), OperatorSize("Add", None, None))
    ).rows
    assert ([bar.tone for bar in conv.bars], conv.value) == (["fp32", "int8"], "4\u00a0B → 1\u00a0B")
    assert ([bar.tone for bar in gemm.bars], gemm.value) == (["fp32"], "4\u00a0B → not measured")
    assert (add.bars, add.value) == ((), None)


@pytest.mark.parametrize("holds", [None, 0.0, 1.0])
@pytest.mark.parametrize("values", [[], [0.0], [0.5], [-3.0, 7.0], [1e-12, 2e-12], [1e12]])
def test_an_axis_holds_what_lies_on_it(values: list[float], holds: float | None) -> None:
    axis = axis_over(values, least=0.1, holds=holds)
    assert axis.high - axis.low >= 0.0999
    for value in values if holds is None else [*values, holds]:
        assert axis.low <= value <= axis.high
    ticks = axis.ticks(6)
    assert 1 <= len(ticks) <= 6
    assert all(math.isfinite(tick.at) and "e" not in tick.text[:1] for tick in ticks)


def test_ticks_are_round_and_zero_has_no_sign() -> None:
    assert [tick.text for tick in Axis(-4.9, 5.0).ticks(6, "{:+g}")] == ["-4", "-2", "0", "+2", "+4"]
    assert [(tick.at, tick.text) for tick in Axis(0, 1).ticks(3, "{:.0%}")] == [(0, "0%"), (50, "50%"), (100, "100%")]
    assert [tick.text for tick in Axis(0, 0.1).ticks(3, "{:+g}")] == ["0", "+0.05", "+0.1"]
    assert Axis(0, 10).at(-5) == 0
    assert Axis(0, 10).at(50) == 100


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.percent(0.8284), "82.8%"),
        (words.percent(None), None),
        (words.points(Interval(-0.0001, -0.02, 0.0)), "+0.0 [-2.0 to +0.0]"),
        (words.points(None), None),
        (words.points_alone(None), None),
        (words.times(0.0), "0.00x"),
        (words.times(None), None),
        (words.megabytes(1234.5), "1,234 MB"),
        (words.megabytes(0.05), "50.0 kB"),
        (words.megabytes(0.0), "0.00 MB"),
        (words.octets(999), "999 B"),
        (words.octets(1000), "1.0 kB"),
        (words.octets(None), None),
        (words.millions(79.04), "79.0 M"),
        (words.millions(None), None),
        (words.milliseconds(4.14, 17.7), "4.1 to 18 ms"),
        (words.milliseconds(None, 17.7), "18 ms"),
        (words.milliseconds(None, None), None),
        (words.decibels(-0.01), "0.0 dB"),
    ],
)  # fmt: skip
def test_figures_as_words(said: str | None, expected: str | None) -> None:
    assert (said and said.replace("\u00a0", " ")) == expected
