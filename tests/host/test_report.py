"""The page: closed, escaped, the same every time, and charts whose marks lie on them."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import msgspec
import pytest

from edge_sdk.manifest import BoardEstimate
from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import (
    Candidate,
    LayerNoise,
    LayerSensitivity,
    Ledger,
    Measure,
    OperatorSize,
    Step,
    Verdict,
    WorstImage,
    from_json,
)
from edge_sdk_tools.report import HTML_FILE, JSON_FILE, render_html, write_report
from tests.host.html_page import Page
from tests.host.ledgers import change, empty_ledger, full_ledger, jpeg, output_change


def _hostile(text: str) -> Ledger:
    """Every text of the record is `text`."""
    return Ledger(
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


_LEDGERS = {
    "full": full_ledger(),
    "empty": empty_ledger(),
    "hostile": _hostile("</svg></style>\"'<script>alert(1)</script>&"),
}


@pytest.mark.parametrize("ledger", _LEDGERS.values(), ids=_LEDGERS)
def test_the_page_is_whole_and_closed(ledger: Ledger) -> None:
    html = render_html(ledger)
    page = Page(html)
    assert (page.faults, page.open) == ([], [])
    assert html.startswith("<!DOCTYPE html>\n<html")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "form", "base", "a", "use", "image"}
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "style", "srcset")], tag
        assert attributes.get("src", "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
    assert "url(" not in html
    assert "@import" not in html
    if ledger is not _LEDGERS["hostile"]:
        assert "://" not in html


def test_every_text_is_escaped() -> None:
    text = "</svg></style>\"'<script>alert(1)</script>&"
    html = render_html(_hostile(text))
    assert "<script" not in html
    page = Page(html)
    assert page.text.count(text) > 20
    [picture] = [attributes for tag, attributes in page.tags if tag == "img"]
    assert picture["alt"] == f"left: FP32 sees {text}; right: INT8 sees {text}"


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% include 'style.css' %}", "javascript:alert(1)", "%s {0} \\n"])
def test_text_is_no_template(text: str) -> None:
    page = Page(render_html(_hostile(text)))
    assert page.text.count(text) > 20


def test_the_policy_allows_this_very_style_sheet() -> None:
    html = render_html(full_ledger())
    [policy] = [a["content"] for tag, a in Page(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    [style] = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_the_same_record_gives_the_same_page() -> None:
    ledger = full_ledger()
    backwards = msgspec.structs.replace(ledger, libraries=dict(reversed(ledger.libraries.items())))
    assert render_html(ledger) == render_html(full_ledger()) == render_html(backwards)


def test_what_was_not_measured_says_so_and_a_zero_is_a_zero() -> None:
    text = Page(render_html(full_ledger())).text
    assert "None" not in text
    assert "nan" not in text.casefold()
    assert "0.00x" in text  # simplified
    bare = msgspec.structs.replace(empty_ledger(), steps=(Step(kind="int8", name="INT8", size_mb=0.0),))
    row = Page(render_html(bare)).text.split("peak memory")[1].split("How good")[0]
    assert row.split("INT8")[1].count("–") == 4 + 1  # cells, and what the sign means
    assert "0.00 MB" in row
    unmeasured = msgspec.structs.replace(empty_ledger(), steps=(Step(kind="arm", name="ARM"),))
    assert Page(render_html(unmeasured)).text.split("peak memory")[1].split("–")[0].count("not measured") == 1
    left_out = (Step(kind="arm", name="ARM", left_out="not run: too slow"),)
    assert "not run: too slow" in Page(render_html(msgspec.structs.replace(empty_ledger(), steps=left_out))).text


@pytest.mark.parametrize(
    ("carries", "words_there", "state"),
    [
        ("int8", "The bundle carries INT8", "good"),
        ("fp32", "The bundle carries FP32", "fair"),
        (None, "no bundle", "bad"),
    ],
)
def test_the_verdict_stands_on_top(carries: str | None, words_there: str, state: str) -> None:
    verdict = msgspec.convert(
        {"carries": carries, "why": "top-1 fell", "next_steps": ["calibrate with more", "leave it float"]}, Verdict
    )
    html = render_html(msgspec.structs.replace(full_ledger(), verdict=verdict))
    top = html.split("Every step")[0]
    assert f'<section class="verdict {state}">' in top
    text = Page(top).text
    for expected in (words_there, "top-1 fell", "What to change", "calibrate with more", "leave it float"):
        assert expected in text
    assert "82.5% [79.5\u00a0to\u00a085.5]" in top  # of the file that ships
    assert "4.99\u00a0MB" in top


def test_models_beside_the_first_have_a_table_of_their_own() -> None:
    page = render_html(full_ledger())
    assert "Models in the bundle" in page
    assert "left out: it is too slow" in page
    assert "yes; noise" in page
    alone = msgspec.structs.replace(full_ledger(), variants=full_ledger().variants[:1])
    assert "Models in the bundle" not in render_html(alone)


def test_both_files_are_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    write_report(full_ledger(), folder)
    assert {path.name for path in folder.iterdir()} == {HTML_FILE, JSON_FILE}
    assert (folder / HTML_FILE).read_text(encoding="utf-8") == render_html(full_ledger())
    assert from_json((folder / JSON_FILE).read_bytes()).steps == full_ledger().steps
    with pytest.raises(FileExistsError):
        write_report(empty_ledger(), folder)
    assert from_json((folder / JSON_FILE).read_bytes()).name == "tiny"


def test_the_verdict_has_what_a_board_will_take_and_is_said_once() -> None:
    ledger = full_ledger()
    page = Page(render_html(ledger))
    assert "estimate for cortex-a76" in page.text
    assert "13 to 18 ms" in page.text
    [section] = [a["class"] for tag, a in page.tags if tag == "section" and "verdict" in (a.get("class") or "")]
    assert section == "verdict good"
    missed = msgspec.structs.replace(ledger.candidates[0], held=False, why="lost 2.0 points")
    doubt = "lost 2.0 points, which may be noise"
    doubted = msgspec.structs.replace(
        ledger,
        verdict=msgspec.structs.replace(ledger.verdict, why=doubt),
        warnings=(doubt,),
        candidates=(missed, *ledger.candidates[1:]),
    )
    page = Page(render_html(doubted))
    [section] = [a["class"] for tag, a in page.tags if tag == "section" and "verdict" in (a.get("class") or "")]
    assert section == "verdict fair"
    assert page.text.count(doubt) == 1
    assert "Before you believe it" not in page.text
