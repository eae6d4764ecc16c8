"""`edge-sdk run`: run a bundle on a source, and publish results over MQTT or print them as lines of JSON.

`command` takes the settings from its flags (`run_settings`) or from a configuration file (`config_file`). `_run` does
the slow parts of a start in parallel (imports, verification of the bundle, loading of the model) and runs the service.
`_end` reports the outcome. With `--check`, `_check` reports the planned run and all problems, and starts nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edge_sdk.cli.options import (
    PATH,
    POSITIVE,
    connection_options,
    echo_json,
    key_option,
    logging_to,
    logging_to_standard_error,
    mqtt_settings,
)
from edge_sdk.cli.root import unhurried
from edge_sdk.config.schema import DeviceConfig, PipelineConfig, ThenConfig, TrustConfig
from edge_sdk.core.errors import EdgeError, PublishError, UsageError, host_tools, printable
from edge_sdk.core.logs import counted, log_as_json
from edge_sdk.core.machine import no_collection, share_one_heap
from edge_sdk.core.threads import ignore_signals, stopping_on_signals
from edge_sdk.messages.schema import check_name, default_device
from edge_sdk.publishing.settings import BrokerSettings, read_password
from edge_sdk.service.process import Notifier, Start
from edge_sdk.service.runner import Progress
from edge_sdk.service.settings import PipelineSettings, RunSettings
from edge_sdk.sources.location import holds_password
from edge_sdk.sources.opening import FORMS, SOURCE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edge_sdk.inference.cascade import CropCounts
    from edge_sdk.service.check import Checked, CheckedPipeline
    from edge_sdk.service.runner import RunSummary

_log = logging.getLogger(__name__)
_READER_MS = 300  # milliseconds within which a working reader of standard output reads something
_WIDEST = 100  # most columns of the lines of --check
_LABEL = 11  # columns of the labels of --check


def _split(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


@click.command("run")
@click.argument("bundle", type=PATH, required=False)
@click.option("--config", "config_file", type=PATH, help="Run what this file says, instead of BUNDLE and flags.")
@click.option("--check", is_flag=True, help="Say what would run, and all that is wrong; start nothing.")
@click.option("--source", help=f"{FORMS[0].upper()}{FORMS[1:]}.")
@click.option("--source-password-file", type=PATH, help="Password of the user in the source's URL.")
@key_option("--source-tls-fingerprint", "tls_fingerprint", PipelineConfig)
@key_option("--camera", "name", PipelineConfig, "camera", default="camera", show_default=True)
@click.option("--mqtt", "mqtt_url", help="mqtt[s]:// or ws[s]://[user@]host[:port]; without it results go to stdout.")
@connection_options
@key_option("--mqtt-qos", "qos", BrokerSettings, "mqtt_qos")
@key_option("--mqtt-prefix", "prefix", BrokerSettings, "mqtt_prefix")
@key_option("--site", "site", DeviceConfig)
@key_option("--device", "name", DeviceConfig, "device")
@click.option("--trust", multiple=True, type=PATH, help="Public key; then an unsigned bundle is refused. Repeatable.")
@key_option("--allow-older", "allow_older", TrustConfig)
@click.option("--frames", type=click.IntRange(min=1), help="Stop after so many results.")
@key_option("--run-limit", "run_limit_s", PipelineConfig)
@click.option("--then", type=PATH, help="Second bundle (or model), which runs on each object that BUNDLE finds.")
@key_option("--every-frame", "every_frame", PipelineConfig)
@click.option("--duration", type=POSITIVE, help="Stop after so many seconds.")
@key_option("--latency-ms", "latency_ms", PipelineConfig)
@key_option("--confidence", "confidence", PipelineConfig)
@key_option("--iou", "iou", PipelineConfig)
@key_option("--labels", "labels", PipelineConfig, type=_split, metavar="NAME,NAME")
@key_option("--variant", "variant", PipelineConfig, metavar="NAME")
@key_option("--cpu-share", "cpu_share", PipelineConfig)
@click.option("--no-tune", is_flag=True, help="Run what the bundle promises; neither measure nor remember.")
@key_option("--trial-seconds", "trial_s", PipelineConfig)
@key_option("--best-effort", "best_effort", PipelineConfig)
@click.option(
    "--annotate",
    type=PATH,
    help="Draw the results into a new MP4, a JPEG or PNG of the last frame, or a new folder with all pictures.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Lines of JSON also on a terminal, and a summary as JSON at the end."
)
@click.option("-q", "--quiet", is_flag=True, help="No status lines on standard error.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Format of the status lines.  [default: text]",
)
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """Run BUNDLE on the freshest frames of a source and publish what it sees.

    A model.toml or an .onnx file in place of BUNDLE runs too: in float, and unproved. Without BUNDLE: what the
    configuration says, /etc/edge-sdk/config.toml or --config.
    """
    log_as_json(wanted=options["log_format"] == "json")
    config = config_file(context)
    with contextlib.ExitStack() as stack:
        if config is None:
            with logging_to_standard_error(quiet=options["quiet"]):
                for key in ("bundle", "then"):
                    options |= _of_model(key, options, stack)
        if options["check"]:
            _check(options, config)
            return
        # In this order: `unhurried` replaces descriptor 2 for everything that starts after it.
        stack.enter_context(logging_to_standard_error(quiet=options["quiet"]))
        stack.enter_context(unhurried())
        summaries, left_out = _run(options, config)
        if any(summary.ended_by == "signal" for summary in summaries):
            ignore_signals()
        if options["annotate"] is not None and any(summary.results for summary in summaries):
            _log.info("the results are drawn in %s", options["annotate"])
        _end(summaries, left_out, as_json=options["as_json"])


_UNPROVED_MS = 5000.0  # latency budget of a model without a measured one
_MODELS = (".onnx", ".toml", ".pt", ".tflite", ".keras", ".h5")


def _of_model(key: str, options: dict[str, Any], stack: contextlib.ExitStack) -> dict[str, object]:
    """Make a temporary bundle of a model.toml or .onnx, removed when `stack` closes; return the changed options."""
    path: Path | None = options[key]
    if path is None or path.suffix.lower() not in _MODELS or path.is_dir():
        return {}
    if options["cpu_share"] is not None:
        raise UsageError("--cpu-share is a limit that tuning keeps, and only a bundle is tuned: build one")
    if options["annotate"] is not None:
        from edge_sdk.events.annotate import AnnotatedFolder, is_folder, writer_of  # few runs need these

        annotated: Path = options["annotate"]  # what could not be written is an error before the model is examined
        _ = AnnotatedFolder(annotated) if is_folder(annotated) else writer_of(annotated, 1.0).close()
    if os.path.isdir(options["source"] or ""):  # noqa: PTH112 - Path.is_dir raises for names that are too long
        from edge_sdk.sources.files import image_paths

        image_paths(Path(options["source"]))  # raises early if there is none
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C here must still remove the temporary bundle
    with host_tools("`edge-sdk run MODEL`"):
        from edge_sdk_tools.build.unproved import UNPROVED, unproved_bundle
        from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-sdk-"))
    with interrupted_by_sigterm():
        bundle, description = unproved_bundle(path, Path(folder))
    for line in description.guesses() if description else ():
        _log.info(line)
    if "is_unproved" not in options:
        _log.info(UNPROVED)
    if key == "then":
        return {key: bundle}
    # The examination has run the model in a separate process, so no trial is needed; there is no measured budget.
    budget_ms = options["latency_ms"] or _UNPROVED_MS
    untried = {"best_effort": True, "no_tune": True, "trial_s": 0.0, "latency_ms": budget_ms}
    return {key: bundle, "is_unproved": True, **untried}


def run_settings(options: dict[str, Any]) -> RunSettings:
    """Return the settings from the flags of `edge-sdk run`; a flag for a configuration key has the key's name."""
    device = options["device"] or default_device()
    if holds_password(options["source"]):
        raise UsageError(
            "--source: a password on the command line can be read by every user of this machine; "
            "write rtsp://USER@HOST/... and give --source-password-file (an @ in the path is %40)"
        )
    if options["no_tune"] and options["cpu_share"] is not None:
        raise UsageError("--cpu-share is a limit that tuning keeps: it needs tuning, and --no-tune leaves that out")
    check_name("device", device)
    password, url = options["source_password_file"], options["mqtt_url"]
    keys = PipelineSettings.__struct_fields__
    given = {key: value for key, value in options.items() if key in keys and value is not None}
    if "then" in given:
        given["then"] = ThenConfig(bundle=given["then"])
    pipeline = PipelineSettings(
        **given,
        source_password=None if password is None else read_password(password, "the source's password"),
        trusted_keys=options["trust"],
        tune=not options["no_tune"],
    )
    return RunSettings(
        device=device,
        mqtt=None if url is None else mqtt_settings(options, url, site=options["site"], device=device),
        pipelines=(pipeline,),
        in_words=sys.stdout is not None and sys.stdout.isatty() and not options["as_json"],
        duration_s=options["duration"],
    )


_WITH_CONFIG = {"config_file", "check", "duration", "as_json", "quiet", "log_format"}


def config_file(context: click.Context) -> Path | None:
    """Return the configuration file to use; None if the flags have all settings; raise UsageError for a mixture."""
    options = context.params
    flags = [_flag(p) for p in context.command.params if _is_given(context, p) and p.name not in _WITH_CONFIG]
    given: Path | None = options["config_file"]
    if given is not None:
        if flags:
            raise UsageError(
                f"{flags[0]} and --config: expected one of them; what {given} says, it says alone "
                "(--check, --duration, --json, --log-format and -q go with it)"
            )
        return given
    if flags:
        _refuse_configuration(options["bundle"])
        missing = [name for name, key in (("BUNDLE", "bundle"), ("--source", "source")) if options[key] is None]
        if missing:
            raise UsageError(
                f"{missing[0]} is missing; expected `edge-sdk run BUNDLE --source SOURCE`, or all of it in a file: "
                "`edge-sdk run --config FILE`"
            )
        return None
    from edge_sdk.config import load  # imported late: slow, and not needed with flags

    if not load.DEFAULT_PATH.exists():
        raise UsageError(
            "nothing to run; expected `edge-sdk run BUNDLE --source SOURCE`, or `edge-sdk run --config FILE` "
            f"(there is no {load.DEFAULT_PATH}; docs/config.md says how to write one)"
        )
    return load.DEFAULT_PATH


def _refuse_configuration(bundle: Path | None) -> None:
    """Raise UsageError if the file that is given as a bundle or model is a configuration."""
    with contextlib.suppress(OSError, UnicodeDecodeError):  # whoever reads it later says what is wrong with it
        if bundle is not None and bundle.suffix == ".toml" and "\n[[pipelines]]" in bundle.read_text(encoding="utf-8"):
            raise UsageError(f"{bundle}: a configuration, no bundle; expected `edge-sdk run --config {bundle}`")


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _flag(parameter: click.Parameter) -> str:
    return parameter.human_readable_name if isinstance(parameter, click.Argument) else parameter.opts[0]


def _end(summaries: list[RunSummary], left_out: EdgeError | None, *, as_json: bool) -> None:
    """Report the outcome; raise an error if no result was delivered or a pipeline could not run."""
    is_read = as_json
    for summary in summaries:
        is_read = is_read and not _would_hang(summary)  # after one unread summary, do not wait for a reader again
        if is_read:
            echo_json(summary)
        else:
            _log.info((f"{summary.camera}: " if len(summaries) > 1 else "") + _closing(summary))
    last = summaries[-1]  # each summary has the delivery counts of all pipelines
    undelivered, waiting = _undelivered(last), _waiting(last)
    has_time = all(summary.ended_by != "signal" for summary in summaries)
    if undelivered and last.publisher and last.publisher.sent == last.publisher.rejected and has_time:
        # A script must see by the exit code that no result was delivered.
        raise PublishError("; ".join(filter(None, [undelivered, waiting])))
    for line in filter(None, [undelivered, waiting]):
        _log.warning(line)
    if left_out is not None:
        raise left_out


def _run(options: dict[str, Any], config: Path | None) -> tuple[list[RunSummary], EdgeError | None]:
    # numpy's BLAS would start one thread per core, which spin while the model loads; a run does not use them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    share_one_heap()
    start, notifier = Start(), Notifier.from_environment()  # before any child inherits the manager's variables
    with (
        stopping_on_signals(reloads=config is not None or notifier.has_manager) as stop,
        contextlib.ExitStack() as stack,
    ):
        # Imports are a third of a start: ONNX Runtime's runs beside the verification, OpenCV's beside the model's load.
        with no_collection():
            reread = None if config is None else _rereading(config, options["duration"])
            settings = run_settings(options) if reread is None else reread()
            first, *others = settings.pipelines  # further bundles are verified one after the other
            verified = None if others else stack.enter_context(first.begin_verifying())
            from edge_sdk.service.model_selector import begin_loading
            from edge_sdk.service.process import Shared

        shared = Shared(Progress(notifier.interval_s or math.inf))
        loading = None if verified is None else begin_loading(first, verified, stop, shared)
        if loading is not None:
            stack.enter_context(loading.selector)
        with no_collection():
            from edge_sdk.service.runner import RunSummary
            from edge_sdk.service.service import Service

        if stop.is_asked():
            pipelines = settings.pipelines
            return [RunSummary(camera=s.camera, ended_by="signal", budget_ms=s.latency_ms) for s in pipelines], None
        start.mark("modules")
        daemon = Service(settings, shared, stop, notifier, start, reread, loading)
        return list(daemon.run().values()), daemon.left_out


def _rereading(path: Path, duration_s: float | None) -> Callable[[], RunSettings]:
    """Return the function that reads a configuration file and its secrets."""
    from edge_sdk.config.load import read_config
    from edge_sdk.service.settings import run_settings_of

    return lambda: run_settings_of(read_config(path), duration_s=duration_s)


def _would_hang(summary: RunSummary) -> bool:
    """Tell whether printing would hang because standard output is no longer read, perhaps since mid-line."""
    lines = summary.lines
    if lines is not None and lines.written + lines.dropped < lines.put:
        return True
    if summary.ended_by != "signal" or sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return not poll.poll(_READER_MS)


def _closing(summary: RunSummary) -> str:
    unreadable = f", {summary.source.unreadable} could not be decoded" if summary.source.unreadable else ""
    if summary.age is None or summary.inference is None:
        return f"stopped by {summary.ended_by}; no results, {summary.stale} dropped as too old{unreadable}"
    limited = summary.delivery.limited if summary.delivery else 0
    return (
        f"stopped by {summary.ended_by}; {counted(summary.results, 'result')}, {summary.fps:.1f} a second; age "
        f"{summary.age.p50_ms:.1f} ms (p99 {summary.age.p99_ms:.1f}) of a budget of {summary.budget_ms:g}; "
        f"{summary.late} late, {summary.stale} dropped as too old, {summary.source.dropped} overtaken by newer frames"
        + unreadable
        + (f", {summary.skipped} left out on purpose" if summary.skipped else "")
        + (f", {limited} not published, as max_per_s says" if limited else "")
        + (f"; {summary.hung} runs that came to no end" if summary.hung else "")
        + (f"; {summary.not_finite} results of outputs that were no numbers" if summary.not_finite else "")
        + (f"; second model: {_of_second(summary.then)}" if summary.then else "")
    )


def _of_second(counts: CropCounts) -> str:
    return (
        f"{counted(counts.run, 'object')}"
        + (f", {counts.skipped} without time" if counts.skipped else "")
        + (f", {counts.failed} on which it failed" if counts.failed else "")
    )


def _undelivered(summary: RunSummary) -> str | None:
    """Return a text about results that the broker or the reader did not get; None if none are missing."""
    if summary.lines and summary.lines.written < summary.lines.put:
        lost = summary.lines.put - summary.lines.written
        return f"{lost} of {summary.lines.put} results were not read from standard output"
    publisher = summary.publisher
    lost = publisher.put - publisher.limited - publisher.sent + publisher.rejected if publisher else 0
    if publisher is None or lost <= 0:
        return None
    reason = f"; {publisher.last_error}" if publisher.last_error else ""
    return f"{lost} of {publisher.put} results did not reach the broker{reason}"


def _waiting(summary: RunSummary) -> str | None:
    """Return a text about the events that wait on disk for the broker; None without any."""
    events = summary.publisher.events if summary.publisher else None
    if events is None or not events.waiting or not events.is_durable:
        return None
    wait = "waits" if events.waiting == 1 else "wait"
    return f"{counted(events.waiting, 'event')} {wait} on disk for the next start"


# `edge-sdk run --check`.


def _check(options: dict[str, Any], config: Path | None) -> None:
    """Check a run by its flags or by `config`, print the result, and raise the worst problem with its exit code."""
    checked = _checked(options, config)
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
        error = EdgeError(f"{worst.text}{more}")
        error.exit_code = worst.exit_code
        raise error


def _checked(options: dict[str, Any], path: Path | None) -> Checked:
    from logging.handlers import BufferingHandler

    from edge_sdk.config.load import read_config
    from edge_sdk.service.check import Checked, ConfigProblem, check_run
    from edge_sdk.service.settings import run_settings_of

    warnings, problems = BufferingHandler(capacity=sys.maxsize), list[EdgeError]()
    try:
        with logging_to(warnings):
            settings = run_settings(options) if path is None else run_settings_of(read_config(path), problems=problems)
    except EdgeError as cause:
        return Checked(problems=tuple(ConfigProblem(cause.exit_code, line) for line in str(cause).splitlines()))
    return check_run(settings, problems, [record.getMessage() for record in warnings.buffer])


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
    kind = "".join(f" ({entry.words})" for entry in SOURCE_KINDS if entry.name == pipeline.kind)
    yield "source", f"{pipeline.source}{kind}{_options(pipeline)}"
    bundle = pipeline.bundle
    if bundle is None:
        yield "bundle", str(pipeline.path)
    else:
        yield "bundle", f"{pipeline.path}: {bundle.name} {bundle.version} for {bundle.target}"
        yield "", f"{bundle.task}, {counted(bundle.labels, 'label')}; signature {bundle.signature}"
        yield "models", ", ".join(bundle.variants)
    if pipeline.then is not None:
        settings, second = pipeline.then, pipeline.then_bundle
        about = f": {second.name} {second.version}, {second.task}; signature {second.signature}" if second else ""
        yield "then", f"{settings.bundle}{about}"
        only = f", only {', '.join(settings.labels)}" if settings.labels else ""
        yield "", f"on at most {counted(settings.max_crops, 'object')} of a frame{only}"
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
