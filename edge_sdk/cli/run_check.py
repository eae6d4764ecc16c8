"""`edge-sdk run --check`: what a run would do, and all that would keep it from it; nothing is started."""

from __future__ import annotations

import logging
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from edge_sdk.cli.options import echo_json, logging_to
from edge_sdk.config.load import read_config
from edge_sdk.core.errors import EdgeError, printable
from edge_sdk.core.logs import counted
from edge_sdk.service.check import Checked, CheckedPipeline, ConfigProblem, check_run
from edge_sdk.service.settings import RunSettings, run_settings_of
from edge_sdk.sources.opening import TABLE

_WIDEST = 100  # columns: longer lines are hard to read
_LABEL = 11  # columns


class NotReadyError(EdgeError):
    """The checked run cannot start; the exit code is that of the worst problem."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check(options: dict[str, object], config: Path | None, of_flags: Callable[[], RunSettings]) -> None:
    """Check a run, print the result, and raise an error with the exit code of the worst problem.

    Args:
        options: the options of `edge-sdk run`, by name.
        config: the configuration file; None: the run has flags instead.
        of_flags: returns the settings that the flags give.
    """
    checked = _checked(config, of_flags)
    if options["as_json"]:
        echo_json({"ok": not checked.exit_code, "exit_code": checked.exit_code, "found": checked})
    elif not options["quiet"]:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        for line in _lines(checked, config, width):
            click.echo(line)
    problems = checked.all_problems()
    if problems:
        worst = next(p for p in problems if p.exit_code == checked.exit_code)
        more = f" ({counted(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        raise NotReadyError(f"{worst.text}{more}", worst.exit_code)


class _Warnings(logging.Handler):
    """Keeps the lines that reading the settings logs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _checked(path: Path | None, of_flags: Callable[[], RunSettings]) -> Checked:

    warnings, problems = _Warnings(), list[EdgeError]()
    try:
        with logging_to(warnings):
            settings = of_flags() if path is None else run_settings_of(read_config(path), problems=problems)
    except EdgeError as cause:
        return Checked(problems=tuple(ConfigProblem(cause.exit_code, line) for line in str(cause).splitlines()))
    return check_run(settings, problems, warnings.lines)


def _lines(checked: Checked, config: Path | None, width: int) -> Iterator[str]:
    for label, text in _device(checked, config):
        yield _row(label, text, width)
    for warning in checked.warnings:
        yield _row("warning", warning, width, "yellow")
    for problem in checked.problems:
        yield _row("problem", problem.text.removeprefix(f"{config}: "), width, "red")
    for pipeline in checked.pipelines:
        yield ""
        yield click.style(pipeline.name, bold=True)
        for label, text in _pipeline(pipeline):
            yield _row(label, text, width, indent=2)
        for problem in pipeline.problems:
            yield _row("problem", problem.text, width, "red", indent=2)
    yield ""
    yield _verdict(checked)


def _device(checked: Checked, config: Path | None) -> Iterator[tuple[str, str]]:
    if config is not None:
        yield "config", str(config)
    if checked.device is None:
        return
    yield "device", checked.device
    broker = checked.broker
    if broker is None:
        yield "results", "lines of JSON on standard output"
    else:
        user = f"as {broker.username}" + (" with a password" if broker.has_password else ", no password")
        encrypted = f"TLS, by authorities of {broker.ca_file or 'the system'}" if broker.tls else "not encrypted"
        nobody = "by its certificate" if broker.cert_file else "anonymous"
        yield "broker", f"{broker.address}, {user if broker.username else nobody}; {encrypted}"
        if broker.cert_until is not None:
            yield "", f"with the certificate in {broker.cert_file}, valid until {broker.cert_until:%Y-%m-%d}"
        yield "", f"MQTT {broker.protocol}{' over websockets' if broker.websockets else ''}, QoS {broker.qos}"
        yield "status", broker.status_topic
        if checked.outbox is not None:
            yield "outbox", checked.outbox
        if checked.commands:
            yield "commands", ", ".join(checked.commands)
        if checked.home_assistant is not None:
            yield "home", checked.home_assistant
    if checked.trusted_keys:
        yield "trusts", ", ".join(map(str, checked.trusted_keys))


def _pipeline(pipeline: CheckedPipeline) -> Iterator[tuple[str, str]]:
    kind = "".join(f" ({entry.words})" for entry in TABLE if entry.name == pipeline.kind)
    yield "source", f"{pipeline.source}{kind}{_options(pipeline)}"
    bundle = pipeline.bundle
    if bundle is None:
        yield "bundle", str(pipeline.path)
    else:
        yield "bundle", f"{pipeline.path}: {bundle.name} {bundle.version} for {bundle.target}"
        yield "", f"{bundle.task}, {counted(bundle.labels, 'label')}; signature {bundle.signature}"
        yield "models", ", ".join(bundle.variants)
    if pipeline.budget_ms is not None:
        own = bundle.latency_budget_ms if bundle else pipeline.budget_ms
        promise = "" if own == pipeline.budget_ms else f"; the bundle says {own:g} ms"
        share = f", and {pipeline.cpu_share:g} cores" if pipeline.cpu_share else ""
        yield "budget", f"{pipeline.budget_ms:g} ms from capture to outbox{share}{promise}"
    if pipeline.runs is not None:
        yield "runs", f"{pipeline.runs} ({pipeline.reason})"
    if pipeline.result_topic:
        yield "results", pipeline.result_topic
    if pipeline.events:
        to = f"{pipeline.event_topic}: " if pipeline.event_topic else ""
        yield "events", f"{to}{', '.join(pipeline.events)}"
    if pipeline.snapshot_topic:
        yield "pictures", pipeline.snapshot_topic


def _options(pipeline: CheckedPipeline) -> str:
    asked = pipeline.options
    words = [
        f"{asked.size_wh[0]}x{asked.size_wh[1]}" if asked.size_wh else "",
        f"{asked.fps:g} frames a second" if asked.fps else "",
        asked.pixel_format or "",
        asked.transport if pipeline.kind == "stream" else "",
    ]
    return "".join(f", {word}" for word in words if word)


def _verdict(checked: Checked) -> str:
    problems = checked.all_problems()
    if problems:
        return click.style(counted(len(problems), "problem"), fg="red", bold=True) + "; nothing was started"
    pipelines = counted(len(checked.pipelines), "pipeline")
    return click.style("ready", fg="green", bold=True) + f": {pipelines}; cameras and broker were not contacted"


def _row(label: str, text: str, width: int, color: str | None = None, indent: int = 0) -> str:
    start = " " * indent + label.ljust(_LABEL)
    lines = textwrap.wrap(
        printable(text), max(width - len(start), 20), break_long_words=False, break_on_hyphens=False
    ) or [""]
    first = " " * indent + (click.style(label, fg=color, bold=True) if color else label) + " " * (_LABEL - len(label))
    return "\n".join([first + lines[0], *(" " * len(start) + line for line in lines[1:])])
