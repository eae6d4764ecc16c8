"""The report page: closed, escaped, the same every time, and charts whose marks lie on them."""

import base64
import hashlib
import math
import re

import msgspec
import pytest

from edge_sdk.bundle.manifest import BoardEstimate
from edge_sdk_tools.evaluate.statistics import Interval
from edge_sdk_tools.prove.parity import OutputChange
from edge_sdk_tools.report import charts
from edge_sdk_tools.report.page import render_html
from edge_sdk_tools.report.schema import (
    BuildReport,
    Candidate,
    LayerSensitivity,
    Measure,
    OperatorSize,
    Step,
    Verdict,
    WorstImage,
)
from edge_sdk_tools.search.sensitivity import LayerNoise
from tests.support.reports import Page, change, empty_report, full_report, jpeg, noisy_layers, output_change, top1


def _hostile(text: str) -> BuildReport:
    """Every text of the record is `text`."""
    return BuildReport(
        name=text, target=text, task=text, data=text,
        verdict=Verdict(carries="int8", why=text, next_steps=(text,)),
        steps=(
            Step(kind="fp32", name=text, what=text, quality=Measure(text, Interval(0.5, 0.4, 0.6)), shipped=True),
            Step(
                kind="int8", name=text, what=text, change=change(-0.1), outputs=output_change("fp32", 0.1, 0.1),
            ),
            Step(kind="arm", name=text, what=text, left_out=text),
        ),
        candidates=(
            Candidate(recipe=text, change=change(-0.1), latency_ratio=0.5, held=False, why=text),
        ),
        sensitivity=(LayerSensitivity(node=text, operator=text, sqnr_db=20.0, is_integer=True),),
        local_noise=(LayerNoise(node=text, operator=text, sqnr_db=20.0),),
        sizes=(OperatorSize(text, 5, 1),),
        worst_images=(WorstImage(image=text, truth=text, fp32=text, int8=text, picture=jpeg()),),
        boards=(BoardEstimate(text, 79.0, 15.2, 13.1, 17.7),),
        warnings=(text,), command=(text,), libraries={text: text}, created_at=text, host_cpu=text,
    )  # fmt: skip


_SCRIPT = "</svg></style>\"'<script>alert(1)</script>&"


@pytest.mark.parametrize("report", [full_report(), empty_report(), _hostile(_SCRIPT)], ids=["full", "empty", "hostile"])
def test_the_page_is_whole_and_closed(report: BuildReport) -> None:
    html = render_html(report)
    page = Page(html)
    assert (page.faults, page.open) == ([], [])
    assert html.startswith("<!DOCTYPE html>\n<html")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base", "a", "use", "image"}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "style", "srcset")], tag
        assert attributes.get("src", "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
    assert not [word for word in ("url(", "@import", "://") if word in html]


def test_every_text_is_escaped_and_no_text_is_a_template() -> None:
    for text in (_SCRIPT, "{{ 7 * 7 }}", "{% include 'style.css' %}", "%s {0} \\n"):
        html = render_html(_hostile(text))
        assert "<script" not in html
        page = Page(html)
        assert page.text.count(text) > 20
        [picture] = [attributes for tag, attributes in page.tags if tag == "img"]
        assert picture["alt"] == f"left: FP32 sees {text}; right: INT8 sees {text}"


def test_the_policy_allows_this_very_style_sheet() -> None:
    html = render_html(full_report())
    [policy] = [a["content"] for tag, a in Page(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    [style] = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_the_same_record_gives_the_same_page() -> None:
    report = full_report()
    backwards = msgspec.structs.replace(report, libraries=dict(reversed(report.libraries.items())))
    assert render_html(report) == render_html(full_report()) == render_html(backwards)


def test_what_was_not_measured_says_so_and_a_zero_is_a_zero() -> None:
    text = Page(render_html(full_report())).text
    assert not [word for word in ("None", "nan") if word in text]
    assert "0.00x" in text  # simplified
    assert "not run: too large" in text
    bare = msgspec.structs.replace(empty_report(), steps=(Step(kind="int8", name="INT8", size_mb=0.0),))
    row = Page(render_html(bare)).text.split("peak memory")[1].split("How good")[0]
    assert row.split("INT8")[1].count("–") == 4 + 1  # cells, and what the sign means
    assert "0.00 MB" in row
    unmeasured = msgspec.structs.replace(empty_report(), steps=(Step(kind="arm", name="ARM"),))
    assert Page(render_html(unmeasured)).text.split("peak memory")[1].split("–")[0].count("not measured") == 1


def test_the_verdict_stands_on_top() -> None:
    for carries, band, words_there, state in (
        ("int8", "ok", "The bundle carries INT8", "good"),
        ("int8", "worse", "The loss is worse : F1 lost much", "fair"),
        ("int8", "bad", "The loss is bad : F1 lost much", "bad"),
        ("fp32", None, "The bundle carries FP32", "fair"),
        (None, None, "no bundle", "bad"),
    ):
        verdict = msgspec.convert(
            {
                "carries": carries, "why": "top-1 fell", "next_steps": ["calibrate with more", "leave it float"],
                "band": band, "loss": "F1 lost much",
            }, Verdict,
        )  # fmt: skip
        html = render_html(msgspec.structs.replace(full_report(), verdict=verdict))
        top = html.split("Every step")[0]
        assert f'<section class="verdict {state}">' in top
        text = Page(top).text
        for expected in (words_there, "top-1 fell", "What to change", "calibrate with more", "leave it float"):
            assert expected in text
        assert "82.5% [79.5\u00a0to\u00a085.5]" in top  # of the file that ships
        assert "4.99\u00a0MB" in top


def test_the_verdict_has_what_a_board_will_take_and_is_said_once() -> None:
    report = full_report()
    html = render_html(report)
    assert '<section class="verdict good">' in html
    text = Page(html).text
    for expected in ("estimate for cortex-a76", "13 to 18 ms", "left out: it is too slow", "yes; noise"):
        assert expected in text
    missed = msgspec.structs.replace(report.candidates[0], held=False, why="lost 2.0 points")
    doubt = "lost 2.0 points, which may be noise"
    verdict = msgspec.structs.replace(report.verdict, why=doubt)
    html = render_html(msgspec.structs.replace(report, verdict=verdict, warnings=(doubt,), candidates=(missed,)))
    assert '<section class="verdict fair">' in html
    assert (html.count(doubt), "Before you believe it" in html) == (1, False)


def _check_bars(chart: charts.BarChart) -> None:
    assert len(chart.ticks) <= 6
    assert all(0 <= at <= 100 for at in (chart.zero, *(tick.at for tick in chart.ticks)))
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


def test_charts_of_steps_at_their_edges() -> None:
    for steps in (
        (),
        _steps(None, 0.0),
        _steps(None, -0.66, None, -0.66, 0.66, 0.66),
        _steps(None, 1e-300, -1e-300),
        (Step(kind="int8", name="INT8", change=change(0.01), against="fp32"),),
        (Step(kind="fp32", name="FP32", quality=Measure("top-1", Interval(1.0, 1.0, 1.0))),),
    ):
        _check_bars(charts.ladder(steps))
        _check_bars(charts.waterfall(steps))
        assert Page(render_html(msgspec.structs.replace(empty_report(), steps=steps))).faults == []


def test_losses_add_up_from_where_the_compared_step_ended() -> None:
    steps = (
        Step(kind="fp32", name="FP32", quality=top1(0.8)),
        Step(kind="simplified", name="simplified", change=change(-0.1, 0.0)),
        Step(kind="int8", name="INT8", change=change(-0.1, 0.05)),
        Step(kind="ort", name="ORT", change=change(-0.05, 0.1), against="simplified"),
        Step(kind="arm", name="ARM"),
    )
    chart = charts.waterfall(steps)
    # From -25 points, the end of INT8's whisker, to 0.
    assert [[(bar.start, bar.width, bar.tone) for bar in row.bars] for row in chart.rows] == [
        [],
        [(60.0, 40.0, "loss")],
        [(20.0, 40.0, "loss")],
        [(40.0, 20.0, "loss")],
        [],
    ]
    assert [row.value for row in chart.rows][::4] == ["where it starts", None]
    assert [row.detail for row in chart.rows] == ["", "", "", "other images may show none", ""]
    assert chart.zero == 100


def test_without_labels_steps_are_drawn_by_agreement() -> None:
    further = (Measure("distance", Interval(0.5, 0.4, 0.6), "nats"),)
    int8 = Step(kind="int8", name="INT8", agreement=top1(0.9), change=change(-0.1), further=further)
    steps = (Step(kind="fp32", name="FP32"), int8)
    assert [len(row.bars) for row in charts.ladder(steps).rows] == [0, 1]
    assert charts.waterfall(steps).rows[0].value == "where it starts"
    html = render_html(msgspec.structs.replace(empty_report(), steps=steps))
    assert "agreement with FP32, for there are no labels" in html
    assert "<small>distance 0.5 [0.4" in html


_ONE = Candidate(recipe="a", change=change(-0.01), latency_ratio=0.5, held=True)


def test_recipes_lie_on_the_chart() -> None:
    for candidates, gate in (
        ((_ONE,), None),
        ((_ONE, _ONE, msgspec.structs.replace(_ONE, chosen=True)), 0.0),
        ((Candidate(recipe="zero", change=Interval(0.0, 0.0, 0.0), latency_ratio=0.0, held=True),), -1.0),
        ((Candidate(recipe="slow", change=change(1.0, 0.0), latency_ratio=1e9, held=True), _ONE), -0.01),
        (tuple(msgspec.structs.replace(_ONE, latency_ratio=0.5 + i / 1e9) for i in range(40)), -0.01),
    ):
        chart = charts.scatter(candidates, gate)
        assert [*sorted(point.number for point in chart.points)] == [*range(1, len(candidates) + 1)]
        for point in chart.points:
            assert 0 < point.top_px <= point.y_px <= point.bottom_px < charts.HEIGHT_PX
        assert all(0 < at < 100 for at in (*(point.x for point in chart.points), *(tick.at for tick in chart.x_ticks)))
        assert all(0 < tick.at < charts.HEIGHT_PX for tick in chart.y_ticks)
        assert gate is None or (chart.gate_px is not None and 0 < chart.gate_px < charts.HEIGHT_PX)


def test_the_better_recipe_is_above_and_the_faster_left_and_the_chosen_on_top() -> None:
    better = Candidate(recipe="b", change=change(0.0), latency_ratio=0.9, held=True, chosen=True)
    missing = Candidate(recipe="c", held=False)
    chart = charts.scatter((better, _ONE, missing), -0.005)
    one, chosen = chart.points
    assert (one.number, chosen.number, chart.left_out) == (2, 1, 1)
    assert chosen.y_px < one.y_px
    assert one.x < chosen.x
    assert chosen.y_px < chart.gate_px < one.y_px
    assert charts.scatter((missing,), None) is None


def test_the_layer_that_loses_most_stands_first() -> None:
    noisy = [LayerSensitivity(node=n, operator="Conv", sqnr_db=db, is_integer=True) for n, db in
             (("a", 40.0), ("b", None), ("c", 20.0))]  # fmt: skip
    chart = charts.sensitivity(noisy)
    assert [row.label for row in chart.rows] == ["c", "a", "b"]
    assert [row.value for row in chart.rows] == ["20.0\u00a0dB", "40.0\u00a0dB", None]
    assert chart.rows[0].bars[0].width == pytest.approx(10 * chart.rows[1].bars[0].width, rel=0.01)


def test_sizes_stand_side_by_side() -> None:
    for one in ((0, 0), (10**12, 1)):
        _check_bars(charts.sizes((OperatorSize("Conv", *one),)))
    [row] = charts.sizes((OperatorSize("a", 4, 1),)).rows
    assert ([bar.tone for bar in row.bars], _text(row.value)) == (["fp32", "int8"], "4 B → 1 B")
    costs = {row.label: _text(row.value) for row in charts.costs(full_report().steps).rows}
    assert (costs["ORT file"], costs["INT8"]) == ("4.99 MB / 88.40 MB", "5.00 MB / not measured")


def test_figures_as_words() -> None:
    assert charts.points(Interval(-0.0001, -0.02, 0.0)) == "+0.0 [-2.0\u00a0to\u00a0+0.0]"
    assert [_text(charts.megabytes(mb)) for mb in (1234.5, 0.05, 0.0)] == ["1,234 MB", "50.0 kB", "0.00 MB"]
    assert [_text(charts.milliseconds(low, 17.7)) for low in (4.14, None)] == ["4.1 to 18 ms", "18 ms"]
    assert [charts.percent(0.8284), _text(charts.decibels(-0.01)), charts.percent(None)] == ["82.8%", "0.0 dB", None]


def _text(value: str | None) -> str | None:
    return value and value.replace("\u00a0", " ")


def test_errors_of_steps_their_sum_and_what_was_measured() -> None:
    rows = charts.errors(full_report().steps).rows
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
    assert [_text(row.value) for row in charts.errors(steps).rows[-2:]] == ["below 0.001% (140.0 dB)"] * 2


def test_without_outputs_there_is_no_chart_of_them() -> None:
    bare = (Step(kind="fp32", name="FP32"), Step(kind="ort", name="ORT file"))
    assert charts.errors(bare).rows == charts.costs(bare).rows == charts.noise(()).rows == ()
    classes = OutputChange(against="fp32", images=3, inputs=3, identical=False, largest=2.0)
    [row] = charts.errors((*bare[:1], Step(kind="ort", name="ORT file", outputs=classes))).rows
    assert row.value == "largest difference 2"


def test_a_step_that_the_chart_of_errors_tells_of_is_not_missing_in_those_of_quality() -> None:
    for chart in (charts.ladder(full_report().steps), charts.waterfall(full_report().steps)):
        assert [row.label for row in chart.rows] == ["teacher", "FP32", "INT8", "ORT file"]


def test_the_noisiest_layer_stands_first() -> None:
    chart = charts.noise(noisy_layers(30))
    assert [row.label for row in chart.rows] == [f"noisy_{index}" for index in range(charts.MOST_NOISY)]
    assert len(chart.folded) == 30 - charts.MOST_NOISY
    assert [[bar.tone for bar in chart.rows[at].bars] for at in (0, 3)] == [["int8", "float"], ["int8"]]
    _check_bars(chart)
