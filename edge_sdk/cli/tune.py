"""`edge-sdk tune`: measure which of a bundle's models and settings run best on this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.cli.options import PATH, POSITIVE, NumberRange, echo_json, key_option, logging_to_standard_error, warn
from edge_sdk.config.schema import PipelineConfig
from edge_sdk.core.errors import LatencyGateError, StoppedError, UsageError
from edge_sdk.core.opencv import cv2
from edge_sdk.core.protocols import Source
from edge_sdk.core.threads import Stop, stopping_on_signals
from edge_sdk.inference.runtime import ProviderWarnings, SessionSettings, check_device
from edge_sdk.inference.session import Stages
from edge_sdk.inference.trial import prove_here
from edge_sdk.messages.schema import check_name
from edge_sdk.publishing.settings import read_password
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import open_source, redact
from edge_sdk.tuning.candidates import SECONDS, Candidate, Limits, Measurement, Tuned, figures
from edge_sdk.tuning.tuning import TunedMachine, Tuning, golden_camera, tune

_FPS = 30.0
_SECONDS_HELP = (
    f"About how many seconds all measurements take together.  [default: {SECONDS:g}, more for a slow camera]"
)
_CLEAR = "\r\x1b[K"  # return to the start of the line and erase the line


@click.command("tune")
@click.argument("bundle", type=PATH)
@click.option("--source", help="A camera, stream or video file to measure on.  [default: a golden image at 1280x720]")
@click.option("--source-password-file", type=PATH, help="Password of the user in the source's URL.")
@key_option("--source-tls-fingerprint", "tls_fingerprint", PipelineConfig)
@key_option("--camera", "name", PipelineConfig, "camera", default="camera", show_default=True)
@click.option(
    "--fps",
    type=NumberRange(0.1, 1000),
    help=f"Frames a second that are made where there is no --source.  [default: {_FPS:g}]",
)
@key_option("--latency-ms", "latency_ms", PipelineConfig)
@key_option("--cpu-share", "cpu_share", PipelineConfig)
@click.option("--seconds", type=POSITIVE, help=_SECONDS_HELP)
@click.option("--variant", metavar="NAME", help="Only this one of the bundle's models.")
@click.option("--trust", multiple=True, type=PATH, help="Public key; requires a signature by it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    bundle: Path,
    source: str | None,
    source_password_file: Path | None,
    tls_fingerprint: str | None,
    camera: str,
    fps: float | None,
    latency_ms: float | None,
    cpu_share: float | None,
    seconds: float | None,
    variant: str | None,
    trust: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure which model and which settings of BUNDLE run best here, and remember it for `edge-sdk run`."""
    check_name("camera", camera)
    if source is not None and fps is not None:
        raise UsageError("--fps is of the pictures that come without --source; a source has its own rate")
    opened = Bundle.open(bundle, trust)
    check_device(opened)
    limits = Limits(latency_ms or opened.manifest.latency_budget_ms, cpu_share)
    cv2.setNumThreads(opened.manifest.intra_op_num_threads)  # as in a run
    with logging_to_standard_error(), stopping_on_signals() as stop, contextlib.ExitStack() as stack:
        tuning = Tuning(opened, limits, camera=camera, variant=variant, open_stages=_opening(stop))
        if source is None:
            shown: Source = stack.enter_context(contextlib.closing(golden_camera(opened, fps or _FPS, camera)))
            found = shown, fps or _FPS
        else:
            found = _opened(stack, source, source_password_file, tls_fingerprint, camera)
        try:
            with _progress(quiet=as_json) as show:
                tuned, remark = tune(tuning, limits, *found, seconds, show, is_stopped=stop.is_asked)
        except StoppedError:
            raise click.Abort from None
    if as_json:
        echo_json(tuned)
    else:
        _show(opened, tuned, only_variant=variant is not None)
    if remark:
        warn(f"not remembered: {remark}")
    elif not as_json:
        click.echo(f"next    `edge-sdk run --camera {camera}` starts with it, at about {tuned.fps:g} frames a second")
    if not tuned.meets_budget:
        raise LatencyGateError(f"{opened.path}: nothing keeps the limits here: {tuned.reason}")


def _opening(stop: Stop) -> Callable[[Bundle, Candidate], Stages]:
    provider_warnings = ProviderWarnings()

    def open_proved(bundle: Bundle, candidate: Candidate) -> Stages:
        led = bundle.with_primary(candidate.variant)
        if not prove_here(led, is_stopped=stop.is_asked):
            raise StoppedError
        stages = Stages.open(led, candidate.settings(SessionSettings.of(bundle.manifest)), most_golden=1)
        provider_warnings.tell(stages.variant, stages.session.providers)
        return stages

    return open_proved


def _opened(
    stack: contextlib.ExitStack, source: str, password: Path | None, fingerprint: str | None, camera: str
) -> tuple[Source, float]:
    secret = None if password is None else read_password(password, "the source's password").reveal()
    opened = open_source(source, camera=camera, password=secret, options=SourceOptions(tls_fingerprint=fingerprint))
    stack.callback(opened.close)
    if not opened.paced:
        raise UsageError(f"{redact(source)}: images have no pace to tune at; give a video or a camera, or no --source")
    return opened, opened.fps


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Candidate], None]]:
    """Show the candidate that is measured, on a terminal, in one line that is erased at the end."""
    if quiet or not sys.stderr.isatty():
        yield lambda _candidate: None
        return
    try:
        yield lambda candidate: click.echo(f"{_CLEAR}measuring {candidate}", nl=False, err=True)
    finally:
        click.echo(_CLEAR, nl=False, err=True)


def _show(bundle: Bundle, tuned: Tuned, *, only_variant: bool) -> None:
    limit = "" if tuned.limits.cpu_share is None else f", CPU at most {100 * tuned.limits.cpu_share:.0f} % of a core"
    click.echo(f"{bundle.manifest.name} {bundle.manifest.version} at {tuned.fps:g} frames a second")
    machine = TunedMachine.here()
    runtime = f"ONNX Runtime {machine.onnxruntime}"
    click.echo(f"{machine.cpu.name}, {machine.allowed} of {machine.logical} cores, {runtime}")
    click.echo(f"budget {tuned.limits.budget_ms:g} ms{limit}; quality is {tuned.metric}\n")
    width = max(len(str(m.candidate)) for m in tuned.measured) + 2
    click.echo(f"{'':<{width}}{'p50 ms':>9}{'p99 ms':>9}{'CPU':>7}{'quality':>10}")
    for measured in tuned.measured:
        click.echo(f"{measured.candidate!s:<{width}}{_figures(measured)}  {_remark(measured, tuned)}".rstrip())
    click.echo()
    if tuned.before is not None:
        click.echo(f"before  {tuned.before.candidate}: {figures(tuned.before)}")
    click.echo(f"after   {tuned.chosen.candidate}: {figures(tuned.chosen)}")
    click.echo(f"why     {tuned.reason}")
    if tuned.provisional:
        advice = "tune again when it is quiet" if only_variant else "`edge-sdk run` tunes again when it starts"
        click.echo(f"doubt   {tuned.doubt()}: {advice}")


def _figures(measured: Measurement) -> str:
    quality = "" if measured.quality is None else f"{100 * measured.quality:.1f} %"
    cpu = f"{100 * measured.cpu_share:.0f} %"
    return f"{measured.p50_ms:>9.2f}{measured.p99_ms:>9.2f}{cpu:>7}{quality:>10}"


def _remark(measured: Measurement, tuned: Tuned) -> str:
    words = []
    if tuned.before is not None and measured.candidate == tuned.before.candidate:
        words.append("promised")
    if measured.candidate == tuned.chosen.candidate:
        words.append("chosen")
    if tuned.is_within_noise(measured):
        words.append("as good within noise")
    if measured.given_up:
        words.append(f"left after {measured.frames} frames")
    return ", ".join(words)
