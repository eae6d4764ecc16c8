"""Video files: paced, drained, and refused where nothing can be read."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.camera import SourceStats, SourceStatus, open_source
from edge_sdk.camera.capture import OpenCvCapture
from edge_sdk.camera.every_frame import EveryFrame
from edge_sdk.camera.opencv import open_file
from edge_sdk.camera.threaded import ThreadedSource
from edge_sdk.camera.video import VideoFeed, VideoFile
from edge_sdk.errors import CameraError
from edge_sdk.frame import Image
from tests.device.numbered import drained, number_in, numbered_image, write_video


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_video_plays_in_real_time(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(30), fps=50.0)), camera="door")
    time.sleep(0.1)
    before_ns, before = time.monotonic_ns(), time.time()
    frames = drained(source)
    assert frames[0].seq == 0
    start_ns, start = frames[0].captured_ns, frames[0].captured_at
    # The clock starts with the first question, not with the opening.
    assert start_ns >= before_ns
    assert start >= before - 0.01
    for frame in frames:
        assert frame.captured_ns - start_ns == frame.seq * 20_000_000
        assert frame.captured_at - start == pytest.approx(frame.seq * 0.02, abs=1e-4)
        assert frame.camera == "door"
    assert time.monotonic_ns() >= frames[-1].captured_ns
    assert source.stats.delivered == len(frames)
    assert source.stats.delivered + source.stats.dropped == 30
    assert source.status is SourceStatus.ENDED
    assert source.latest(5) is None
    source.close()


def test_a_slow_consumer_gets_the_newest_and_the_last_frame(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(40), fps=200.0)))
    seqs = []
    while not source.ended:
        frame = source.latest(5)
        if frame is not None:
            seqs.append(frame.seq)
            time.sleep(0.03)
            assert number_in(frame.image) == frame.seq
    assert len(seqs) < 20
    assert seqs[-1] == 39
    assert source.stats == SourceStats(delivered=len(seqs), dropped=40 - len(seqs))
    source.close()


class _SlowCapture(OpenCvCapture):
    """Takes six and a half frame periods for each picture."""

    retrieved = 0

    def retrieve_into(self, buffer: Image) -> Image | None:
        self.retrieved += 1
        time.sleep(0.0325)
        return super().retrieve_into(buffer)


def test_a_reader_that_falls_behind_leaves_frames_out(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(120), fps=200.0)
    video = VideoFile(path)
    video.capture.release()
    slow = _SlowCapture(cv2.VideoCapture(str(path), cv2.CAP_FFMPEG))
    assert slow.grab()
    video.capture = slow
    source = ThreadedSource(VideoFeed(video), "c")
    frames = drained(source)
    assert slow.retrieved < 60
    assert source.stats.delivered + source.stats.dropped == 120
    assert frames[-1].seq == 119
    # In slow motion it would have decoded all of them.
    assert all(f.captured_ns - frames[0].captured_ns == f.seq * 5_000_000 for f in frames)
    source.close()


def test_every_frame_in_turn_where_real_time_is_not_wanted(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(40), fps=10.0)), realtime=False)
    before_ns = time.monotonic_ns()
    frames = drained(source)
    assert [f.seq for f in frames] == list(range(40))
    assert before_ns <= frames[0].captured_ns < frames[-1].captured_ns <= time.monotonic_ns()
    assert source.stats == SourceStats(delivered=40)
    assert source.status is SourceStatus.ENDED
    assert source.latest(5) is None
    source.close()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="FFmpeg decodes with one thread on one core anyway")
def test_a_file_is_decoded_by_one_thread_unless_the_user_says_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.mp4")
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), 25, (64, 48))
    for number in range(5):
        writer.write(numbered_image(number, size_wh=(64, 48)))
    writer.release()

    def decoders(expected: int) -> int:
        capture = open_file(path)
        assert capture
        assert capture.grab()
        deadline = time.monotonic() + 30
        while (found := _threads("av:mpeg4")) < expected and time.monotonic() < deadline:
            time.sleep(0.01)  # each gives itself its name once it runs
        capture.release()
        return found

    assert decoders(0) == 0  # it is the reader's own
    monkeypatch.setenv("OPENCV_FFMPEG_THREADS", "3")
    assert decoders(3) == 3


def _threads(prefix: str) -> int:
    return sum((task / "comm").read_text().startswith(prefix) for task in Path("/proc/self/task").iterdir())


def test_the_buffer_is_used_again(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(20))), realtime=False)
    assert len({f.image.ctypes.data for f in drained(source)}) <= 4


def test_a_frame_is_not_written_to_while_it_is_held(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(30))), realtime=False)
    for expected in range(30):
        frame = source.latest(5)
        assert frame is not None
        before = frame.image.copy()
        time.sleep(0.005)  # the reader goes on as far as it has buffers
        assert np.array_equal(frame.image, before)
        assert (frame.seq, number_in(frame.image)) == (expected, expected)
    source.close()


def test_a_reader_that_fails_is_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.avi", range(5))
    video = VideoFile(path)
    monkeypatch.setattr(video.capture, "grab", lambda: 1 / 0)
    source = EveryFrame(video, "gate")
    assert source.latest(5) is not None
    with pytest.raises(CameraError, match="camera gate: reading failed: ZeroDivisionError: division by zero"):
        source.latest(5)
    source.close()


@pytest.mark.parametrize("realtime", [True, False])
def test_close_in_the_middle(tmp_path: Path, realtime: bool) -> None:
    path = write_video(tmp_path / "a.avi", range(50), fps=1.0)
    descriptors = _descriptors()
    for asked in (False, True):
        source = open_source(str(path), realtime=realtime)
        if asked:
            assert source.latest(5) is not None
        source.close()
        source.close()
        assert source.ended
    assert _descriptors() <= descriptors
    assert not [t for t in threading.enumerate() if t.name.startswith("camera")]


def test_a_truncated_video_counts_what_is_missing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(50), fps=500.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    source = open_source(str(path), realtime=False)
    frames = drained(source)
    assert 10 < len(frames) < 40
    assert source.stats.unreadable == 50 - len(frames)


def _truncate(path: Path) -> None:
    path.write_bytes(write_video(path.with_suffix(".avi"), range(20)).read_bytes()[:2000])


@pytest.mark.parametrize(
    "damage",
    [_truncate, Path.touch, lambda path: path.write_bytes(b"no video" * 1000)],
    ids=["truncated", "empty", "rubbish"],
)
def test_a_video_without_a_frame_is_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "a.mp4"
    assert callable(damage)
    damage(path)
    descriptors = _descriptors()
    with pytest.raises(CameraError, match=r"a\.mp4: no frame can be read; expected a whole video file"):
        open_source(str(path))
    assert _descriptors() <= descriptors
