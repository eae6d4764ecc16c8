"""Files as people have them: turned, grey, huge, tiny, of a varying rate, or no video at all."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.camera import OpenedSource, SourceOptions, open_source
from edge_sdk.camera.video import FrameTimes
from edge_sdk.errors import CameraError
from edge_sdk.frame import Frame
from tests.device.exif import with_orientation
from tests.device.numbered import number_in, numbered_image, write_video

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


def _ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)


def _frames(source: OpenedSource, most: int = 10_000) -> list[Frame]:
    frames: list[Frame] = []
    with closing(source):
        while not source.ended and len(frames) < most:
            frame = source.latest(5)
            if frame is not None:
                frames.append(frame)
    return frames


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((3000, 4000, 3), "a.jpg"),
        ((16, 16, 3), "a.png"),
        ((1, 1, 3), "a.png"),
        ((20, 30), "a.png"),
        ((20, 30, 4), "a.png"),
    ],
    ids=["12 megapixels", "16x16", "one pixel", "grey", "alpha"],
)
def test_images_of_any_kind_become_three_channels(tmp_path: Path, shape: tuple[int, ...], name: str) -> None:
    cv2.imwrite(str(tmp_path / name), np.full(shape, 200, np.uint8))
    (frame,) = _frames(open_source(str(tmp_path)))
    assert frame.image.shape == (*shape[:2], 3)
    assert frame.image.dtype == np.uint8


def test_a_16_bit_image(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.full((4, 4), 40000, np.uint16))
    (frame,) = _frames(open_source(str(tmp_path)))
    assert frame.image.dtype == np.uint8
    assert frame.image[0, 0].tolist() == [156, 156, 156]


@pytest.mark.parametrize("rotate", [0, 90])
def test_an_image_is_turned_as_its_exif_says(tmp_path: Path, rotate: int) -> None:
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:, :20] = 255  # the left half is white
    jpeg = cv2.imencode(".jpg", upright)[1].tobytes()
    (tmp_path / "a.jpg").write_bytes(with_orientation(jpeg, 6))  # 6: turned clockwise to be seen
    (frame,) = _frames(open_source(str(tmp_path), options=SourceOptions(rotate=90 if rotate else 0)))
    expected = cv2.rotate(upright, cv2.ROTATE_90_CLOCKWISE)
    expected = cv2.rotate(expected, cv2.ROTATE_90_CLOCKWISE) if rotate else expected
    assert frame.image.shape == expected.shape
    assert np.abs(frame.image.astype(int) - expected).max() < 60


@needs_ffmpeg
def test_a_video_is_turned_as_its_display_matrix_says(tmp_path: Path) -> None:
    write_video(tmp_path / "a.avi", range(5))
    _ffmpeg("-i", str(tmp_path / "a.avi"), "-c:v", "mpeg4", str(tmp_path / "a.mp4"))
    _ffmpeg("-i", str(tmp_path / "a.mp4"), "-c", "copy", "-metadata:s:v", "rotate=90", str(tmp_path / "turned.mp4"))
    frames = _frames(open_source(str(tmp_path / "turned.mp4"), realtime=False))
    assert {frame.size_wh for frame in frames} == {(240, 320)}


@pytest.mark.parametrize("realtime", [False, True])
def test_a_video_is_turned_on_request_without_memory_for_each_frame(tmp_path: Path, realtime: bool) -> None:
    path = write_video(tmp_path / "a.avi", range(12))
    source = open_source(str(path), realtime=realtime, options=SourceOptions(rotate=270))
    addresses, numbers = set(), []
    with closing(source):
        while not source.ended:
            frame = source.latest(5)
            if frame is not None:
                addresses.add(frame.image.ctypes.data)
                numbers.append(number_in(cv2.rotate(frame.image, cv2.ROTATE_90_CLOCKWISE)))
                assert numbers[-1] == frame.seq
    assert numbers[-1] == 11
    assert len(addresses) <= 4


@needs_ffmpeg
def test_a_varying_rate_stays_real_time(tmp_path: Path) -> None:
    """Ten frames a fiftieth of a second apart, then four a fifth: the mean rate fits none of them."""
    fast = write_video(tmp_path / "fast.avi", range(10), fps=50)
    slow = write_video(tmp_path / "slow.avi", range(10, 14), fps=5)
    _ffmpeg(
        "-i", str(fast), "-i", str(slow), "-filter_complex", "[0:v][1:v]concat=n=2,settb=1/1000", "-vsync", "vfr",
        "-c:v", "mpeg4", str(tmp_path / "a.mp4"),
    )  # fmt: skip
    source = open_source(str(tmp_path / "a.mp4"))
    expected = [20 * number for number in range(11)] + [400, 600, 800]
    with closing(source):
        start_ns, seen = 0, []
        while not source.ended:
            frame = source.latest(5)
            if frame is not None:
                start_ns = start_ns or frame.captured_ns
                seen.append((frame.seq, round((frame.captured_ns - start_ns) / 1e6)))
    assert seen[-1][0] >= 12  # some versions of ffmpeg leave the last one out
    assert all(due_ms == expected[seq] - expected[seen[0][0]] for seq, due_ms in seen)


@pytest.mark.parametrize(
    ("positions_ms", "expected_ms"),
    [
        ([40, 80, 120], [40, 80, 120]),
        ([0, 0, 0], [40, 80, 120]),  # a raw stream says nothing
        ([40, 20, 60], [40, 80, 120]),  # backwards, then forwards from there
        ([40, 10**9, 10**9 + 40], [40, 80, 120]),  # a broken time
        ([float("nan"), 80, 120], [40, 80, 120]),
        ([40, 0, 40], [40, 80, 120]),  # begins again
        ([40, 5040, 5080], [40, 5040, 5080]),
    ],
)
def test_times_that_a_file_does_not_say(positions_ms: list[float], expected_ms: list[int]) -> None:
    times = FrameTimes(0.0, 25.0)
    assert [times.due_ns(position) // 10**6 for position in positions_ms] == expected_ms


@pytest.mark.parametrize("realtime", [False, True])
def test_a_video_that_is_repeated(tmp_path: Path, realtime: bool) -> None:
    path = write_video(tmp_path / "a.avi", range(4), fps=200.0)
    frames, numbers = [], []
    with closing(open_source(str(path), realtime=realtime, options=SourceOptions(repeat=True))) as source:
        while len(frames) < 14:
            frame = source.latest(5)
            assert frame is not None
            frames.append(frame)
            numbers.append(number_in(frame.image))
            assert not source.ended
        assert source.stats.unreadable == 0
    assert all(number == frame.seq % 4 for number, frame in zip(numbers, frames, strict=True))
    assert [f.captured_ns for f in frames] == sorted({f.captured_ns for f in frames})


def test_a_folder_that_is_repeated(tmp_path: Path) -> None:
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.png"), numbered_image(number))
    (tmp_path / "0.jpg").write_bytes(b"no image")
    with closing(open_source(str(tmp_path), options=SourceOptions(repeat=True))) as source:
        found = []
        for _ in range(4):
            frame = source.latest(5)
            assert frame is not None
            found.append((frame.seq, number_in(frame.image)))
        assert found == [(1, 0), (2, 1), (4, 0), (5, 1)]


_SDP = (
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\na=rtpmap:96 H264/90000\n"
)


@pytest.mark.parametrize("name", ["a.mp4", "a.txt", "a.m3u8", "a.sdp", "a.avi"])
@pytest.mark.parametrize(
    "text",
    [
        "a plain text\n" * 300,
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nreal.ts\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nhttp://127.0.0.1:{port}/real.ts\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile real.avi\n",
        "ffconcat version 1.0\nfile http://127.0.0.1:{port}/real.avi\n",
        _SDP,
    ],
    ids=["text", "playlist of files", "playlist of addresses", "list of files", "list of addresses", "sdp"],
)
def test_what_is_no_video_is_refused_and_opens_nothing(tmp_path: Path, name: str, text: str) -> None:
    """FFmpeg plays a text as a terminal shows it, and opens whatever a playlist names."""
    write_video(tmp_path / "real.avi", range(5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        (tmp_path / name).write_text(text.replace("{port}", str(listener.getsockname()[1])))
        with pytest.raises(CameraError, match=r"no frame can be read; expected a whole video file .* no video at all"):
            open_source(str(tmp_path / name))
        with pytest.raises(BlockingIOError):
            listener.accept()


@needs_ffmpeg
@pytest.mark.parametrize(
    "name", ["a.avi", "a.mp4", "a.mov", "a.mkv", "a.webm", "a.ts", "a.mpg", "a.flv", "a.wmv", "a.gif"]
)
def test_containers_that_are_taken(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / "in.avi", range(10), fps=25)
    _ffmpeg("-i", str(tmp_path / "in.avi"), str(tmp_path / name))
    assert len(_frames(open_source(str(tmp_path / name), realtime=False))) >= 9


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(CameraError, match="neither a file nor a folder"):
        open_source(str(tmp_path / "a.mp4"))


def test_a_file_without_waiting_is_an_error_even_for_who_waits(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(CameraError, match="no such file"):
        open_source(str(tmp_path / "nothing.mp4"), waits=True)
    assert threading.active_count() == before
