"""Video files and folders of images as people have them: paced, drained, turned, of any kind, and refused."""

import errno
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.core.frame import Frame, Image
from edge_sdk.sources.files import FrameTimes, VideoFile, VideoSource
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opencv import OpenCvCapture, open_file
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.slot import OpenedSource, SourceStats, SourceStatus
from tests.support.connections import until
from tests.support.logs import refusal
from tests.support.pictures import number_in, numbered_image, with_orientation, write_frames, write_images, write_video
from tests.support.service import open_descriptors


def _frames(source: OpenedSource) -> Iterator[Frame]:
    """Each frame until the end; the next one overwrites its picture."""
    while not source.ended:
        frame = source.latest(5)
        if frame is not None:
            yield frame


def _drained(source: OpenedSource) -> list[Frame]:
    frames = []
    for frame in _frames(source):
        assert number_in(frame.image) == frame.seq
        frames.append(frame)
    return frames


def test_a_video_plays_in_real_time(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.avi", range(30), fps=50.0)), camera="door")
    time.sleep(0.1)
    before_ns, before = time.monotonic_ns(), time.time()
    frames = _drained(source)
    # A busy machine may leave out the first.
    start_ns, start = frames[0].captured_ns - frames[0].seq * 20_000_000, frames[0].captured_at - frames[0].seq * 0.02
    # The clock starts with the first question, not with the opening.
    assert start_ns >= before_ns
    assert start >= before - 0.01
    for frame in frames:
        assert (frame.captured_ns - start_ns, frame.camera) == (frame.seq * 20_000_000, "door")
        assert frame.captured_at - start == pytest.approx(frame.seq * 0.02, abs=1e-4)
    assert time.monotonic_ns() >= frames[-1].captured_ns
    assert (source.stats.delivered, source.stats.delivered + source.stats.dropped) == (len(frames), 30)
    assert (source.status, source.latest(5)) == (SourceStatus.ENDED, None)
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
    video.capture = slow = _SlowCapture(cv2.VideoCapture(str(path), cv2.CAP_FFMPEG))
    assert slow.grab()
    source = VideoSource(video, "c")
    frames = _drained(source)
    assert slow.retrieved < 60
    assert source.stats.delivered + source.stats.dropped == 120
    assert frames[-1].seq == 119
    # In slow motion it would have decoded all of them.
    assert len({frame.captured_ns - frame.seq * 5_000_000 for frame in frames}) == 1
    source.close()


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="FFmpeg decodes with one thread on one core anyway")
def test_a_file_is_decoded_by_as_many_threads_as_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_frames(tmp_path / "a.mp4", [numbered_image(1)] * 5, 25, "mp4v")
    for count in (0, 3):  # without any it is the reader's own
        capture = open_file(str(path))
        assert capture
        assert capture.grab()
        until(lambda count=count: _threads("av:mpeg4") >= count)  # type: ignore[misc]  # each names itself once it runs
        assert _threads("av:mpeg4") == count
        capture.release()
        monkeypatch.setenv("OPENCV_FFMPEG_THREADS", "3")


def _threads(prefix: str) -> int:
    return sum((task / "comm").read_text().startswith(prefix) for task in Path("/proc/self/task").iterdir())


@pytest.mark.parametrize("realtime", [True, False])
def test_close_in_the_middle(tmp_path: Path, realtime: bool) -> None:
    path = write_video(tmp_path / "a.avi", range(50), fps=1.0)
    descriptors = open_descriptors()
    for asked in (False, True):
        source = open_source(str(path), realtime=realtime)
        assert not asked or source.latest(5) is not None
        source.close()
        source.close()
        assert source.ended
    assert open_descriptors() <= descriptors
    assert not [t for t in threading.enumerate() if t.name.startswith("camera")]


def test_a_truncated_video_counts_what_is_missing(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(50), fps=500.0)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    source = open_source(str(path), realtime=False)
    frames = _drained(source)
    assert 10 < len(frames) < 40
    assert source.stats.unreadable == 50 - len(frames)


@pytest.mark.parametrize("data", [b"", b"no video" * 1000, None], ids=["empty", "rubbish", "truncated"])
def test_a_video_without_a_frame_is_refused(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(write_video(tmp_path / "b.avi", range(20)).read_bytes()[:2000] if data is None else data)
    descriptors = open_descriptors()
    with pytest.raises(CameraError, match=r"a\.mp4: no frame can be read; expected a whole video file"):
        open_source(str(path))
    assert open_descriptors() <= descriptors


needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


def _ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((3000, 4000, 3), "a.jpg"), ((1, 1, 3), "a.png"), ((20, 30), "a.png"), ((20, 30, 4), "a.png")],
    ids=["12 megapixels", "one pixel", "grey", "alpha"],
)
def test_images_of_any_kind_become_three_channels(tmp_path: Path, shape: tuple[int, ...], name: str) -> None:
    cv2.imwrite(str(tmp_path / name), np.full(shape, 200, np.uint8))
    (frame,) = _frames(open_source(str(tmp_path)))
    assert frame.image.shape == (*shape[:2], 3)
    assert frame.image.dtype == np.uint8


@pytest.mark.parametrize("rotate", [0, 90])
def test_an_image_is_turned_as_its_exif_says(tmp_path: Path, rotate: int) -> None:
    upright = np.zeros((20, 40, 3), np.uint8)
    upright[:, :20] = 255  # the left half is white
    jpeg = cv2.imencode(".jpg", upright)[1].tobytes()
    (tmp_path / "a.jpg").write_bytes(with_orientation(jpeg, 6))  # 6: turned clockwise to be seen
    (frame,) = _frames(open_source(str(tmp_path), options=SourceOptions(rotate=90 if rotate else 0)))
    expected = cv2.rotate(upright, cv2.ROTATE_180 if rotate else cv2.ROTATE_90_CLOCKWISE)
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
        for frame in _frames(source):
            addresses.add(frame.image.ctypes.data)
            numbers.append(number_in(cv2.rotate(frame.image, cv2.ROTATE_90_CLOCKWISE)))
            assert numbers[-1] == frame.seq
    assert numbers[-1] == 11
    assert len(addresses) <= 4


def test_times_that_a_file_does_not_say() -> None:
    for positions_ms in (
        [0, 0, 0],  # a raw stream says nothing
        [40, 20, 60],  # backwards, then forwards from there
        [40, 10**9, 10**9 + 40],  # a broken time
        [float("nan"), 80, 120],
        [40, 0, 40],  # begins again
    ):
        times = FrameTimes(0.0, 25.0)
        assert [times.due_ns(position) // 10**6 for position in positions_ms] == [40, 80, 120]
    times = FrameTimes(0.0, 25.0)
    assert [times.due_ns(position) // 10**6 for position in (40, 5040, 5080)] == [40, 5040, 5080]


def test_a_video_that_is_repeated_in_real_time(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(4), fps=200.0)
    with closing(open_source(str(path), options=SourceOptions(repeat=True))) as source:
        found = [(number_in(f.image) - f.seq % 4, f.captured_ns) for f in islice(_frames(source), 14)]
        assert (source.ended, source.stats.unreadable) == (False, 0)
    assert found == sorted({(0, captured_ns) for _, captured_ns in found})
    assert len(found) == 14


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a plain text\n" * 300),
        ("a.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nhttp://127.0.0.1:{port}/a.ts\n#EXT-X-ENDLIST\n"),
        ("a.txt", "ffconcat version 1.0\nfile http://127.0.0.1:{port}/real.avi\n"),
    ],
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


def test_images_come_in_turn_sorted_by_name(tmp_path: Path) -> None:
    names = ["a.jpg", "b.JPEG", "c.png", "d.bmp", "e.webp", r"\xff.ppm"]
    write_images(tmp_path / "images", names)
    (tmp_path / "images" / names[-1]).rename(tmp_path / "images" / "\udcff.ppm")  # which is no UTF-8
    (tmp_path / "images" / "a.txt").write_text("no image")
    write_images(tmp_path / "images" / "b.jpg", ["annotated.jpg"])
    before_ns = time.monotonic_ns()
    source = open_source(str(tmp_path / "images"), camera="folder")
    frames = _drained(source)
    assert [(f.seq, f.file) for f in frames] == list(enumerate(names))
    assert all(before_ns <= f.captured_ns <= time.monotonic_ns() for f in frames)
    assert source.stats == SourceStats(delivered=6)
    assert source.status is SourceStatus.ENDED
    source.close()
    source.close()
    assert source.latest(0) is None
    with closing(open_source(str(tmp_path))) as source:  # without images of its own, such as one with a folder a class
        assert [frame.file for frame in _frames(source)] == [f"images/{name}" for name in names]


def test_unreadable_images_are_left_out_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "images"
    write_images(folder, [f"{i}.jpg" for i in range(6)])
    for name, data in (("0.jpg", b""), ("2.jpg", b"no image"), ("5.jpg", b"\xff\xd8\xff")):
        (folder / name).write_bytes(data)
    os.truncate(folder / "2.jpg", 1 << 40)
    source = open_source(str(folder))
    assert [f.seq for f in _drained(source)] == [1, 3, 4]
    assert source.stats == SourceStats(delivered=3, unreadable=3)
    assert capfd.readouterr().err == ""


def test_images_that_cannot_be_read_now_are_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "images", [f"{i}.png" for i in range(9)])

    def fails(path: Path, limit: int) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    with closing(open_source(str(tmp_path / "images"))) as source:
        monkeypatch.setattr("edge_sdk.sources.files.read_regular", fails)
        with pytest.raises(CameraError, match=r"\.png: cannot be read: Too many open files"):
            list(_frames(source))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.txt": b"x"}, "no image in it or in the folders in it, expected files ending in .jpg"),
        ({"a.jpg": b"", "b.png": b"x"}, "none of 2 images can be read"),
    ],
)
def test_a_folder_without_an_image_is_refused(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert f"{tmp_path}: {expected}" in refusal(CameraError, open_source, str(tmp_path))


# Files that are repeated.

_LENGTH = 20
_REPEATED = SourceOptions(repeat=True)


@needs_ffmpeg
@pytest.mark.parametrize(
    ("name", "codec"), [("a.avi", "mjpeg"), ("a.mp4", "mpeg4 -bf 2"), ("a.webm", "libvpx"), ("a.ts", "mpeg2video -g 5")]
)
def test_each_round_is_the_whole_film(tmp_path: Path, name: str, codec: str) -> None:
    plain = write_video(tmp_path / "in.avi", range(_LENGTH), fps=25.0)
    rotate = 180 if name in ("a.mp4", "a.ts") else 0
    turned = ["-vf", "hflip,vflip"] if rotate else []
    _ffmpeg("-i", str(plain), *turned, "-c:v", *codec.split(), "-q:v", "2", str(tmp_path / name))
    options = SourceOptions(repeat=True, rotate=rotate)
    with closing(open_source(str(tmp_path / name), realtime=False, options=options)) as source:
        found = [number_in(frame.image) for frame in islice(_frames(source), 2 * _LENGTH + 1)]
    assert found == [*range(_LENGTH)] * 2 + [0]


def test_a_film_that_took_the_place_of_another_is_played(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(_LENGTH))
    other = write_video(tmp_path / "b.avi", range(100, 100 + _LENGTH))
    with closing(open_source(str(path), realtime=False, options=_REPEATED)) as source:
        assert source.latest(5) is not None
        other.rename(path)
        assert [number_in(frame.image) for frame in islice(_frames(source), 5 * _LENGTH)][-1] >= 100


def _each(change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [change(path) for path in list(folder.iterdir())]


@pytest.mark.parametrize(
    ("name", "change", "expected", "realtime"),
    [
        ("a.avi", Path.unlink, "no such file or folder", True),
        ("a.avi", lambda path: path.write_bytes(b"no video"), "no frame can be read", False),
        ("a.avi", lambda path: [path.unlink(), os.mkfifo(path)], "neither a file nor a folder", True),
        ("a.avi", lambda path: [path.unlink(), os.mkfifo(path)], "neither a file nor a folder", False),
        ("images", lambda folder: folder.rename(folder.with_name("away")), "no such file or folder", True),
        ("images", _each(Path.unlink), "no image in it", True),
        ("images", _each(lambda path: path.write_bytes(b"x")), "none of 3 images can be read", True),
    ],
)
def test_what_is_away_or_broken_when_it_begins_again_is_an_error_and_no_end(
    tmp_path: Path, name: str, change: Callable[[Path], object], expected: str, realtime: bool
) -> None:
    path = tmp_path / name
    if name == "images":
        write_images(path, ["0.png", "1.png", "2.png"])
    else:
        write_video(path, range(3))
    source = open_source(str(path), realtime=realtime, options=_REPEATED)
    change(path)
    with closing(source), pytest.raises(CameraError, match=f"^{path}: {expected}"):
        list(map(source.latest, [5.0] * 1000))
