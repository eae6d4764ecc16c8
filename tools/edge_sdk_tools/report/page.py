"""Render a report as report.html: a page that runs no script and fetches nothing, by a policy for the browser.

Every text of the report is escaped by the templates, which see no text that is marked as safe but the style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from functools import lru_cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from edge_sdk.core.logs import counted
from edge_sdk_tools.report import charts
from edge_sdk_tools.report.schema import BuildReport, Step

_PACKAGE = "edge_sdk_tools.report"
_FILTERS = ("percent", "measure", "points", "times", "megabytes", "millions")
# Nothing is fetched or run. The hash allows this very style sheet and no other, and no style in an attribute.
_POLICY = "default-src 'none'; img-src data:; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
HTML_FILE = "report.html"
JSON_FILE = "report.json"


def render_html(report: BuildReport) -> str:
    """Return the whole page; equal reports give equal pages."""
    style = (resources.files(_PACKAGE) / "templates" / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    verdict, steps, candidates = report.verdict, report.steps, report.candidates
    template = _environment().get_template("page.html.j2")
    return template.render(
        report=report,
        facts=_facts(report),
        tone=_tone(report),
        # The verdict says it already.
        warnings=[warning for warning in report.warnings if warning != verdict.why],
        bare={step.kind: _in_place_of_figures(step) for step in steps if _is_bare(step)},
        left_float=any(not layer.is_integer for layer in report.sensitivity),
        labelled=any(step.quality for step in steps),
        names={step.kind: step.name for step in steps},
        ladder=charts.ladder(steps),
        waterfall=charts.waterfall(steps),
        errors=charts.errors(steps),
        costs=charts.costs(steps),
        # One dot says no more than its row in the table.
        scatter=charts.scatter(candidates, verdict.least_change) if len(candidates) > 1 else None,
        counted=any(candidate.board_minstructions is not None for candidate in candidates),
        compared=any(step.agreement for step in steps),
        scatter_px=charts.HEIGHT_PX,
        sensitivity=charts.sensitivity(report.sensitivity),
        noise=charts.noise(report.local_noise),
        sizes=charts.sizes(report.sizes),
        pictures=[base64.b64encode(worst.picture).decode() for worst in report.worst_images],
        latencies=[charts.milliseconds(b.low_ms, b.high_ms) for b in report.boards],
        command=shlex.join(report.command),
        style=Markup(style),  # noqa: S704 - a file of this package
        policy=_POLICY.format(digest),
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update({name: getattr(charts, name) for name in _FILTERS})
    return environment


def _tone(report: BuildReport) -> str:
    """Return the colour of the verdict: that of the loss; not the best one if the recipe failed where it was chosen."""
    if report.verdict.carries != "int8":
        return "fair" if report.verdict.carries else "bad"
    chose = report.split is None or not report.split.choice
    doubted = chose and any(candidate.chosen and not candidate.held for candidate in report.candidates)
    tone = {"worse": "fair", "bad": "bad"}.get(report.verdict.band or "ok", "good")
    return "fair" if doubted and tone == "good" else tone


def _facts(report: BuildReport) -> list[tuple[str, str | None]]:
    """Return the numbers of the verdict: of the file that ships, and what was promised."""
    step, budget = report.shipped, report.verdict.latency_budget_ms
    if step is None:
        return []
    figures = [(figure.name, charts.measure(figure)) for figure in (step.quality, step.agreement) if figure]
    return [
        *(figures or [("quality", None)]),
        ("model file", charts.megabytes(step.size_mb)),
        ("latency beside FP32, workstation", charts.times(step.latency_ratio)),
        ("memory at its peak", charts.megabytes(step.peak_memory_mb)),
        *((f"estimate for {b.core}", charts.milliseconds(b.low_ms, b.high_ms)) for b in report.boards),
        *([] if budget is None else [("latency budget", f"{budget:g} ms")]),
    ]


def _is_bare(step: Step) -> bool:
    told = (step.size_mb, step.quality, step.agreement, step.change, step.latency_ratio, step.peak_memory_mb)
    return all(value is None for value in told)


def _in_place_of_figures(step: Step) -> str | None:
    if step.left_out or step.kind == "source":
        return step.left_out or "where it comes from"
    if step.outputs is None:
        return None
    change = step.outputs
    images = f"on {counted(change.images, 'image')}"
    if change.identical:
        return f"not a bit of its outputs differs, {images}"
    error = f"{charts.relative(change.relative_error)}, " if change.relative_error is not None else ""
    return f"its outputs differ by {error}{change.largest:.2g} at most, {images}"
