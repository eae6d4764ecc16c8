"""`edge-sdk run`: a bundle on a source, results over MQTT or as lines of JSON."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import msgspec

from edge_sdk.ahead import Ahead
from edge_sdk.errors import PublishError, UsageError
from edge_sdk.garbage import no_collection
from edge_sdk.heap import share_one_heap
from edge_sdk.stop import stopping_on_signals

if TYPE_CHECKING:
    from edge_sdk.bundle import Bundle
    from edge_sdk.daemon.summary import RunSummary

_MQTT_PASSWORD_VARIABLE = "EDGE_SDK_MQTT_PASSWORD"  # noqa: S105 - the name of a variable, not a password
_PATH = click.Path(path_type=Path)
_READER_MS = 300  # a reader that works has taken something by then
POSITIVE = click.FloatRange(min=0, max=1e9, min_open=True)
"""Seconds, milliseconds, shares; a billion seconds are 30 years."""


def number(_context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN, which is in every range."""
    if value is not None and math.isnan(value):
        raise UsageError(f"{option.opts[0]} is nan, expected a number above 0")
    return value


@click.command("run")
@click.argument("bundle", type=_PATH)
@click.option("--source", required=True, help="Camera index or /dev path, rtsp:// or http:// URL, video file, images.")
@click.option("--source-password-file", type=_PATH, help="Password of the user in the source's URL.")
@click.option("--camera", default="camera", show_default=True, help="The source's name; each run needs its own.")
@click.option("--mqtt", "mqtt_url", help="mqtt://[user@]host[:port] or mqtts://...; without it results go to stdout.")
@click.option("--mqtt-password-file", type=_PATH, help=f"Or put it into ${_MQTT_PASSWORD_VARIABLE}.")
@click.option("--mqtt-ca-file", type=_PATH, help="Authorities to trust instead of the system's, PEM.")
@click.option("--mqtt-qos", type=click.IntRange(0, 1), default=0, show_default=True, help="QoS of results.")
@click.option("--mqtt-version", type=click.Choice(["5", "3.1.1"]), default="5", show_default=True)
@click.option("--mqtt-prefix", default="edge/v1", show_default=True, help="First levels of every topic.")
@click.option("--site", default="default", show_default=True, help="Where the device stands: one level of the topic.")
@click.option("--device", help="This device's name: one level of the topic.  [default: the host's name]")
@click.option("--trust", multiple=True, type=_PATH, help="Public key; then an unsigned bundle is refused. Repeatable.")
@click.option("--frames", type=click.IntRange(min=1), help="Stop after so many results.")
@click.option(
    "--run-limit",
    type=POSITIVE,
    callback=number,
    help="End a run of the model after so long.  [default: ten budgets, 5 s at least]",
)
@click.option("--every-frame", is_flag=True, help="Of a video file: each in turn, as fast as they can be worked on.")
@click.option("--duration", type=POSITIVE, callback=number, help="Stop after so many seconds.")
@click.option("--latency-ms", type=POSITIVE, callback=number, help="Overrides the bundle's budget.")
@click.option("--variant", metavar="NAME", help="One of the bundle's models and no other: int8.320x320, fp32.")
@click.option("--cpu-share", type=POSITIVE, callback=number, help="What tuning may use: 0.5 is half a core.")
@click.option("--no-tune", is_flag=True, help="Run what the bundle promises; neither measure nor remember.")
@click.option(
    "--trial-seconds",
    type=click.FloatRange(min=0, max=1e9),
    callback=number,
    help="How long a new bundle may be tried; 0: not at all.  [default: 60]",
)
@click.option("--best-effort", is_flag=True, help="Run although this board cannot keep the budget.")
@click.option("--annotate", type=_PATH, help="Write a new MP4 with the results drawn.")
@click.option("--json", "as_json", is_flag=True, help="End with a summary as JSON on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="No status lines on standard error.")
def command(**options: object) -> None:
    """Run BUNDLE on the freshest frames of a source and publish what it sees."""
    quiet = bool(options["quiet"])
    summaries = _run(options, quiet=quiet)
    for camera, summary in summaries.items():
        if options["as_json"] and not _would_hang(summary):
            click.echo(msgspec.json.encode(summary))
        elif not quiet:
            say((f"{camera}: " if len(summaries) > 1 else "") + _closing(summary))
        undelivered = _undelivered(summary)
        is_alone = len(summaries) == 1
        if (
            undelivered
            and is_alone
            and summary.publisher
            and not summary.publisher.sent
            and summary.ended_by != "signal"
        ):
            raise PublishError(undelivered)  # a script must see that all was for nothing
        if undelivered and not quiet:
            say(f"warning: {undelivered}")


def _run(options: dict[str, object], *, quiet: bool) -> dict[str, RunSummary]:
    # numpy's BLAS starts a thread a core, and each spins for as long as a model takes to load; a run needs none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    share_one_heap()
    with stopping_on_signals() as stop, contextlib.ExitStack() as stack:
        # A third of a start is modules. The bundle is verified beside ONNX Runtime's, the model loads beside OpenCV's.
        with no_collection():
            verified = stack.enter_context(Ahead(_verifying(options), "edge-verify"))
            from edge_sdk.cli.run_settings import run_settings
            from edge_sdk.daemon.loading import begin_loading

        settings = run_settings(options, _MQTT_PASSWORD_VARIABLE)
        status = _silence if quiet else say
        (pipeline,) = settings.pipelines
        loading = begin_loading(pipeline, verified, status, stop)
        if loading is not None:
            stack.enter_context(loading)
        with no_collection():
            from edge_sdk.daemon.daemon import Daemon
            from edge_sdk.daemon.outlet import open_outlet
            from edge_sdk.daemon.summary import RunSummary

        if loading is None:
            return {
                pipeline.camera: RunSummary.of_nothing(pipeline.camera, stop.reason or "signal", pipeline.latency_ms)
            }
        return Daemon(settings, lambda *_: loading, open_outlet(status, stop), status, stop).run()


def _verifying(options: dict[str, object]) -> Callable[[], Bundle]:
    from edge_sdk.bundle import Bundle
    from edge_sdk.signing import load_public_key

    path, key_files = cast("Path", options["bundle"]), cast("tuple[Path, ...]", options["trust"])
    return lambda: Bundle.open(path, [load_public_key(key) for key in key_files], keeps_model=True)


def _would_hang(summary: RunSummary) -> bool:
    """Whether nobody reads standard output, perhaps since the middle of a line, so that printing there never ends."""
    lines = summary.lines
    if lines is not None and lines.written + lines.dropped < lines.put:
        return True
    if summary.ended_by != "signal" or sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return not poll.poll(_READER_MS)


def _silence(_line: str) -> None:
    """No line for people."""


def say(line: str) -> None:
    """One line for people, on standard error."""
    click.echo(f"edge-sdk: {line}", err=True)


def _closing(summary: RunSummary) -> str:
    if summary.age is None or summary.inference is None:
        return f"stopped by {summary.ended_by}; no results, {summary.stale} stale frames"
    return (
        f"stopped by {summary.ended_by}; {summary.results} results, {summary.fps:.1f} a second; age "
        f"{summary.age.p50_ms:.1f} ms (p99 {summary.age.p99_ms:.1f}) of a budget of {summary.budget_ms:g}; "
        f"{summary.late} late, {summary.stale} dropped as too old, {summary.source.dropped} overtaken by newer frames"
        + (f", {summary.skipped} left out, as only every n-th ran" if summary.skipped else "")
        + (f"; {summary.hung} runs that came to no end" if summary.hung else "")
        + (f"; {summary.not_finite} results of outputs that were no numbers" if summary.not_finite else "")
    )


def _undelivered(summary: RunSummary) -> str | None:
    """What the broker or the reader did not get, or None."""
    if summary.lines and summary.lines.written < summary.lines.put:
        lost = summary.lines.put - summary.lines.written
        return f"{lost} of {summary.lines.put} results were not read from standard output"
    publisher = summary.publisher
    lost = publisher.put - publisher.sent + publisher.rejected if publisher else 0
    if publisher is None or lost <= 0:
        return None
    reason = f"; {publisher.last_error}" if publisher.last_error else ""
    return f"{lost} of {publisher.put} results did not reach the broker{reason}"
