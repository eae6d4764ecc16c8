"""A check report as text for a terminal.

The module makes layout and text; it prints nothing.
"""

from __future__ import annotations

import io
import re
import shutil
from pathlib import PurePath

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from edge_sdk.bundle.target import CPU
from edge_sdk_tools.check.report import CheckReport, Finding, OperatorUse, ProviderCoverage, TensorInfo, show_shape

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_SPELLINGS = {"Tensorrt": "TensorRT"}
_MOST_ROWS = 24
_NARROWEST = 60
_SMALL = 1e5  # bytes: below it megabytes say nothing
_LINE_END = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)  # blanks, and the codes among them


def render(report: CheckReport) -> str:
    """Write a report for the terminal's width, with colours as ANSI sequences."""
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    where = report.target or "this machine"
    version = f", ONNX Runtime {report.onnxruntime}" if report.onnxruntime else ""
    parts: list[RenderableType] = [Text.assemble((report.name, "bold"), f" for {where}{version}")]
    if report.opset is not None:
        parts.append(_facts(report))
    if report.operators:
        parts += [Text(), _operators(report), _sources(report)]
    if report.findings:
        parts += [Text(), _findings(report.findings)]
    counts = [(len(report.of("error")), "error"), (len(report.of("warning")), "warning")]
    said = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)
    word, style = ("passed", "bold green") if report.passed else ("failed", "bold red")
    with console.capture() as capture:
        console.print(Group(*parts, Text(), Text(f"{word}: {said}", style=style)))
    return _LINE_END.sub(lambda end: end.group().replace(" ", ""), capture.get().rstrip("\n"))


def _facts(report: CheckReport) -> Table:
    raised = f", used as {report.used_opset}" if report.used_opset not in (None, report.opset) else ""
    costs, counts = report.costs, []
    if costs is not None:
        unknown = f", {costs.unknown_nodes} nodes of unknown shape left out" if costs.unknown_nodes else ""
        peak = costs.peak_activation_bytes
        counts = [
            ("parameters", f"{_count(costs.parameters)} in {_size(costs.weight_bytes)}"),
            ("multiply-accumulates", "unknown" if costs.macs is None else f"{_count(costs.macs)} an image{unknown}"),
            ("activations", "unknown" if peak is None else f"{_size(peak)} at their peak"),
        ]
    rows = [
        ("model", f"{PurePath(report.model).name}, {_size(report.size_mb * 1e6)}"),
        ("format", f"opset {report.opset}{raised}, IR version {report.ir_version}"),
        ("written by", report.producer),
        ("weights in", ", ".join(report.files)),
        ("input", _tensor(report.input) if report.input else ""),
        *(("output", _tensor(output)) for output in report.outputs),
        *counts,
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, text in rows:
        if text:
            grid.add_row(f"  {name}", text)
    return grid


def _operators(report: CheckReport) -> Table:
    table = Table()
    table.add_column("operator", overflow="fold")
    for column in ("nodes", "MACs", "share", *(_short(p) for p in report.providers)):
        table.add_column(column, justify="right")
    total = sum(use.macs or 0 for use in report.operators)
    for use in report.operators[:_MOST_ROWS]:
        macs = [_count(use.macs), f"{use.macs / total:.1%}"] if use.macs else ["?" if use.macs is None else "", ""]
        name = f"{use.domain}.{use.name}" if use.domain not in ("", "ai.onnx") else use.name
        table.add_row(name, str(use.nodes), *macs, *(_takes(provider, use) for provider in report.providers))
    more = len(report.operators) - _MOST_ROWS
    if more > 0:
        table.add_row(f"and {more} more", "", "", "", *("" for _ in report.providers))
    return table


def _takes(provider: ProviderCoverage, use: OperatorUse) -> Text:
    if use.name in provider.not_taken:
        return Text("no", style="red" if provider.provider == CPU else "yellow")
    return Text("?") if use.name in provider.unknown else Text("yes", style="green")


def _sources(report: CheckReport) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim")
    grid.add_column(style="dim")
    for provider in report.providers:
        # A line of its own for the source: together they are longer than most terminals are wide.
        text = f"{provider.taken} of {provider.nodes} nodes,\nby {provider.source}"
        grid.add_row(f"  {_short(provider)}:", text)
    return grid


def _findings(findings: tuple[Finding, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.severity]
        grid.add_row(Text(finding.severity, style=style), Text(finding.what))
        # A column of its own for the arrow: what follows it stays aligned when it wraps.
        step = Table.grid(padding=(0, 1))
        step.add_row(Text("→", style="cyan"), Text(finding.next_step, style="cyan", overflow="fold"))
        grid.add_row("", step)
    return grid


def _tensor(info: TensorInfo) -> str:
    return f"{info.name}: {info.type or 'of unknown type'} {show_shape(info.shape)}"


def _short(provider: ProviderCoverage) -> str:
    name = provider.provider.removesuffix("ExecutionProvider")
    return _SPELLINGS.get(name, name)


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.2f} MB" if size_bytes >= _SMALL else f"{size_bytes / 1e3:.1f} kB"


def _count(number: int) -> str:
    """Write three digits: `3.49 M`, `301 M`, `4.37 G`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:#.3g} {unit}".replace(". ", " ")
    return str(number)
