"""Boxes, classes and segments drawn on pictures, videos that are whole or not there, and snapshots."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import msgspec
import numpy as np
import pytest

from edge_sdk.core.drawing import Drawing
from edge_sdk.core.errors import EdgeError, OutputError, UsageError
from edge_sdk.core.frame import NO_CLASS, Classification, Detections, Frame, Geometry, Image, Result, Segmentation
from edge_sdk.events.annotate import AnnotatedFolder, AnnotatedVideo, VideoWriter, fit, writer_of
from edge_sdk.events.rules import SnapshotSettings
from edge_sdk.events.snapshots import MAX_BYTES, Snapshots, jpeg_of
from edge_sdk.tasks.detection import draw
from tests.support.absent import not_installed
from tests.support.connections import until
from tests.support.logs import refusal
from tests.support.pictures import number_in, numbered_image
from tests.support.results import make_detections

GREY = 90
LABELS = ["background", "road", "car", "tree"]


@pytest.fixture(params=["ffmpeg", "no-such-program"])
def ffmpeg(request: pytest.FixtureRequest) -> str:
    """What writes the video: the program, or OpenCV where it is missing."""
    if request.param == "ffmpeg" and shutil.which("ffmpeg") is None:
        not_installed("ffmpeg is not installed; `apt-get install ffmpeg`")
    return str(request.param)


def _grey(width_px: int, height_px: int) -> Image:
    return np.full((height_px, width_px, 3), GREY, np.uint8)


def _detections(image: Image, boxes: list[list[float]]) -> Detections:
    corners, confidences = np.array(boxes, np.float32).reshape(-1, 4), np.linspace(0.9, 0.5, len(boxes))
    return Detections(Frame.of(image), 1, corners, confidences.astype(np.float32), np.arange(len(boxes)))


def _draw(labels: Sequence[str], image: Image, result: Result) -> None:
    draw(image, msgspec.structs.replace(result, names=dict(enumerate(labels))))


def _painted(
    class_map: np.ndarray, labels: Sequence[str] = LABELS, size_wh: tuple[int, int] = (640, 360),
    shares: Sequence[float] | None = None,
) -> Image:  # fmt: skip
    image, (rows, columns) = _grey(*size_wh), class_map.shape
    counted = np.bincount(class_map.ravel(), minlength=256)[:8] / class_map.size
    geometry = Geometry(columns / size_wh[0], rows / size_wh[1], 0.0, 0.0)
    of_shares = np.array(counted if shares is None else shares, np.float32)
    _draw(labels, image, Segmentation(Frame.of(image.copy()), 1, class_map.astype(np.uint8), geometry, of_shares))
    return image


def _coloured_px(image: Image, class_id: int = 0) -> int:
    return int((image == Drawing.colour(class_id)).all(axis=2).sum())


def test_a_box_is_drawn_where_it_is_with_its_tag_above() -> None:
    image = _grey(1280, 720)
    _draw(["person"], image, _detections(image, [[400, 300, 600, 500]]))
    ys, xs = np.nonzero((image != GREY).any(axis=2))
    assert (xs.min(), xs.max(), ys.max()) == pytest.approx((400, 600, 500), abs=3)
    assert 250 < ys.min() < 290
    assert tuple(image[400, 400].tolist()) == Drawing.colour(0)
    assert (image[320:480, 420:580] == GREY).all()


def test_the_text_stays_inside_the_picture() -> None:
    """The tag is as large in a corner, or in a picture hardly higher than itself, as in the middle."""
    for label, size_wh, box in [
        ("a traffic light", (640, 360), [0, 0, 60, 40]),
        ("a traffic light", (640, 360), [600, 300, 640, 360]),
        ("person", (300, 24), [100, 15, 100, 15]),
    ]:
        middle, corner = _grey(640, 360), _grey(*size_wh)
        _draw([label], middle, _detections(middle, [[300, 150, 300, 150]]))
        _draw([label], corner, _detections(corner, [box]))
        assert _coloured_px(corner) >= _coloured_px(middle) * 0.9, box


@pytest.mark.parametrize("size_wh", [(1, 1), (3, 2), (20, 10), (641, 359)])
def test_any_size_and_any_label(size_wh: tuple[int, int]) -> None:
    image = _grey(*size_wh)
    labels = ["Äpfel" * 40, "", "b", "c"]
    boxes = [[0.0, 0.0, 9.0, 9.0], [float("nan")] * 4, [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, float("inf"), 1.0]]
    _draw(labels, image, _detections(image, boxes))
    _draw(labels, image, _detections(image, []))
    assert image.shape[1::-1] == size_wh
    assert (_painted(np.full((1, 1), 3), labels, size_wh) != GREY).any()
    assert (_painted(np.full((90, 70), NO_CLASS), labels, size_wh) == GREY).all()


def _written(labels: list[str], class_id: int) -> bytes:
    image = _grey(200, 100)
    _draw(labels, image, Classification(Frame.of(image), 1, np.array([0.8], np.float32), np.array([class_id])))
    return image.tobytes()


def test_classes_bear_the_names_of_their_labels() -> None:
    assert _written(["a", "b"], 1) == _written(["c", "b"], 1) != _written(["a", "c"], 1)
    assert _written(["a"], 9) == _written([*"012345678", "class_9"], 9)


def _tags(image: Image, class_id: int) -> np.ndarray:
    """Rows in which the legend shows a class: its tag is wide and of the full colour, unlike the lines."""
    here = (image == Drawing.colour(class_id)).all(axis=2)[:, :60]
    return np.flatnonzero(here.sum(axis=1) > 20)


def test_segments_are_painted_where_they_are_and_the_background_is_not() -> None:
    class_map = np.array([[0] * 4] * 2 + [[NO_CLASS] * 2 + [1] * 2] * 2, np.uint8)
    image = _painted(class_map, size_wh=(400, 400))
    assert image[300, 300] == pytest.approx(0.6 * GREY + 0.4 * np.array(Drawing.colour(1)), abs=1)
    for y, x in ((150, 300), (199, 300), (300, 100), (300, 199)):
        assert image[y, x].tolist() == [GREY] * 3


def test_the_legend_names_the_largest_first_and_leaves_specks_and_background_out() -> None:
    class_map = np.zeros((20, 20), np.uint8)
    class_map[10:, :] = 2
    class_map[5:10, :8] = 3
    class_map[0, 0] = 1
    image = _painted(class_map)
    assert 0 < _tags(image, 2).min() < _tags(image, 3).min()
    assert not len(_tags(image, 0))
    assert not len(_tags(_painted(class_map, shares=[0.4, 0.004, 0.5, 0.09]), 1))
    assert len(_tags(_painted(class_map, shares=[0.4, 0.006, 0.5, 0.09]), 1))


def _read_all(path: Path) -> list[Image]:
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    images = [image.astype(np.uint8) for _, image in iter(capture.read, (False, None))]
    capture.release()
    return images


def _numbers(path: Path) -> list[int]:
    return [number_in(image) for image in _read_all(path)]


def _write(writer: VideoWriter, *numbers: int) -> None:
    for number in numbers:
        writer.write(numbered_image(number))
    writer.close()


def test_a_video_holds_every_frame_and_ffmpegs_starts_at_once(tmp_path: Path, ffmpeg: str) -> None:
    path = tmp_path / "a.mp4"
    with closing(VideoWriter(path, 29.97, ffmpeg=ffmpeg)) as writer:
        for number in range(25):
            writer.write(numbered_image(number))
            assert not path.exists()
    writer.close()
    assert (_numbers(path), [p.name for p in tmp_path.iterdir()]) == (list(range(25)), ["a.mp4"])
    data = path.read_bytes()
    assert ffmpeg != "ffmpeg" or (b"avc1" in data and data.index(b"moov") < data.index(b"mdat"))


@pytest.mark.parametrize("name", ["a.png", "a.JPG"])
def test_a_picture_is_the_last_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    _write(writer_of(path, 25), 0, 1, 2)
    assert number_in(cv2.imread(str(path))) == 2
    assert "exists already" in refusal(UsageError, writer_of, path, 25)


def test_odd_and_changing_sizes(tmp_path: Path, ffmpeg: str) -> None:
    path = tmp_path / "a.mp4"
    sizes = [(321, 241)] * 3 + [(640, 480), (200, 100), (100, 300), (1, 1)]
    with closing(VideoWriter(path, 25, ffmpeg=ffmpeg)) as writer:
        for number, size_wh in enumerate(sizes):
            writer.write(numbered_image(number + 1, size_wh))
    assert [image.shape for image in _read_all(path)] == [(242, 322, 3)] * len(sizes)
    assert _numbers(path)[:5] == [1, 2, 3, 4, 5]


def test_a_picture_is_fitted_into_the_middle() -> None:
    canvas, expected = np.zeros((2, 100, 200, 3), np.uint8)
    expected[:, 50:150] = 200
    assert np.array_equal(fit(np.full((50, 50, 3), 200, np.uint8), canvas), expected)
    assert fit(expected, canvas) is expected


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    VideoWriter(tmp_path / "a.mp4", 25).close()  # without a picture there is no file
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    no_name = "expected a name that ends in .mp4"
    cases: list[tuple[Path, type[EdgeError], str]] = [
        (tmp_path / "none" / "a.mp4", OutputError, "No such file or directory"),
        (tmp_path / "file" / "a.mp4", OutputError, "Not a directory"),
        (tmp_path / "none" / "a.jpg", OutputError, "no such folder"),
        (tmp_path / "folder.mp4", UsageError, "exists already; choose another name"),
        (tmp_path / "a.avi", UsageError, no_name),
        *((Path(name), UsageError, no_name) for name in (".", "")),
    ]
    for path, error, expected in cases:
        said = refusal(error, writer_of, path, 25)
        assert str(path) in said
        assert expected in said
    odd = tmp_path / os.fsdecode(b"\xff.mp4")  # OpenCV would end the process
    assert "expected a printable name, or the program" in refusal(UsageError, VideoWriter, odd, 25, ffmpeg="none")


@pytest.mark.parametrize(("gap_frames", "written"), [(1, 2), (4, 5), (11, 12), (1000, 12)])
def test_missing_results_show_the_last_for_a_second(tmp_path: Path, gap_frames: int, written: int) -> None:
    path, image = tmp_path / "a.mp4", numbered_image(1)
    with closing(VideoWriter(path, 10, ffmpeg="no-such-program")) as writer:
        video = AnnotatedVideo(writer, 10)
        for at_ms in (0, gap_frames * 100):
            video.put(_result(0, image, at_ms))
    assert len(_read_all(path)) == written


def test_what_ffmpeg_complains_of_at_the_end(tmp_path: Path) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho first >&2\necho no space left >&2\nexit 3\n")
    program.chmod(0o755)
    said = refusal(OutputError, _write, VideoWriter(tmp_path / "a.mp4", 25, ffmpeg=str(program)), 0, 1, 2)
    assert "a.mp4: cannot be written: ffmpeg ended with 3: no space left; check" in said
    assert [p.name for p in tmp_path.iterdir()] == ["ffmpeg"]


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path, ffmpeg: str) -> None:
    taken, link, late = (tmp_path / name for name in ("a.mp4", "link.mp4", "b.mp4"))
    taken.write_bytes(b"precious")
    link.symlink_to(taken)
    for path in (taken, link):
        assert "exists already" in refusal(UsageError, VideoWriter, path, 25, ffmpeg=ffmpeg)
    writer = VideoWriter(late, 25, ffmpeg=ffmpeg)
    late.write_bytes(b"came meanwhile")
    assert "File exists" in refusal(OutputError, _write, writer, 0)
    assert (taken.read_bytes(), late.read_bytes()) == (b"precious", b"came meanwhile")
    assert len(list(tmp_path.iterdir())) == 3
    drawn, (folder, other) = _result(0, _grey(8, 8), 0, "a.png"), [AnnotatedFolder(tmp_path / "new") for _ in "ab"]
    for _ in "ab":  # images that are repeated replace their own
        folder.put(drawn)
    assert "a.png: cannot be written: File exists" in refusal(OutputError, other.put, drawn)
    assert "a .jpg file cannot hold 70000x1 " in refusal(
        OutputError, folder.put, _result(0, _grey(70_000, 1), 0, "w.jpg")
    )


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, ffmpeg: str) -> None:
    usual, noise = resource.getrlimit(resource.RLIMIT_FSIZE), np.random.default_rng(0).integers(0, 255, (240, 320, 3))
    writer = VideoWriter(tmp_path / "a.mp4", 25, ffmpeg=ffmpeg)

    def write() -> None:
        for _ in range(60):
            writer.write(noise.astype(np.uint8))
        writer.close()

    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, usual[1]))
    try:
        assert "a.mp4: cannot be written" in refusal(OutputError, write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    writer.close()
    assert list(tmp_path.iterdir()) == []


# Pictures of a camera, made beside its loop.


class Album:
    """Takes the snapshots that are made with these settings; may be told to hang."""

    def __init__(self, **settings: Any) -> None:
        self.files: list[tuple[bytes, int]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.waits = 0
        self.snapshots = Snapshots(SnapshotSettings(**settings), self._take)

    def __enter__(self) -> Album:
        return self

    def __exit__(self, *_: object) -> None:
        self.may_go.set()
        self.snapshots.close()

    def _take(self, jpeg: bytes, seq: int) -> None:
        self.waits += 1
        self.may_go.wait()
        self.files.append((jpeg, seq))

    def put(self, seq: int, at_ms: int, level: int = 0) -> Image:
        """A frame of one grey, and of a width of its own."""
        image = np.full((48, 64 + seq, 3), level, np.uint8)
        self.snapshots.put(_result(seq, image, at_ms))
        return image

    def wait_for(self, *numbers: int) -> None:
        until(lambda: [seq for _, seq in self.files] == [*numbers])


def _result(seq: int, image: Image, at_ms: int, file: str = "") -> Detections:
    frame = Frame(image, at_ms * 1_000_000, 0.0, seq, "door", file=file)
    return Detections(frame, 0, np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))


def _read(jpeg: bytes) -> Image:
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).astype(np.uint8)


def test_at_an_interval_one_is_made_whatever_happens() -> None:
    with Album(on="interval", interval_s=0.1) as album:
        for seq in range(10):
            album.put(seq, 40 * seq)
            album.wait_for(*range(0, seq + 1, 3))


def test_with_events_one_is_made_when_asked_and_not_too_often() -> None:
    with Album(on="event", max_per_s=10) as album:
        for seq in range(8):
            if seq in (1, 2, 3):
                album.snapshots.ask()
            album.put(seq, 40 * seq)
            # Of those that came too soon the newest, of the frame that was asked for, is made once its time has come.
            album.wait_for(*(made for made, at in ((1, 1), (3, 4)) if at <= seq))
        album.snapshots.ask()
        album.put(8, 241)
    assert album.files[-1][1] == 8, "one that is held back is made before the end"


def test_one_waits_at_most_the_newest_and_it_shows_its_frame_although_the_source_overwrites_it() -> None:
    with Album(on="interval", interval_s=0.1) as album:
        album.may_go.clear()
        album.put(0, 0, 10)
        until(lambda: album.waits == 1)
        for seq in range(1, 5):
            album.put(seq, 100 * seq, 50 * seq)[:] = 20
        album.may_go.set()
        album.wait_for(0, 4)
    assert [round(_read(jpeg).mean()) for jpeg, _ in album.files] == [10, 200]


def test_the_one_that_waits_is_made_before_the_end_of_what_is_wanted_and_as_it_is_wanted() -> None:
    for on, is_drawn, expected in (("event", True, [0, 9]), ("appeared", False, [5, 9])):
        with Album(on=on, draw=is_drawn) as album:
            for seq, kind in ((0, "disappeared"), (5, "appeared"), (9, "appeared")):
                album.snapshots.ask(kind)
                frame = Frame(np.zeros((480, 640, 3), np.uint8), seq * 10**8, 0.0, seq, "door")
                album.snapshots.put(make_detections(2, frame))
                album.wait_for(*(made for made in expected[:1] if made <= seq))
        assert [seq for _, seq in album.files] == expected
        assert {bool(_read(jpeg).max() > 100) for jpeg, _ in album.files} == {is_drawn}


def test_one_that_cannot_be_made_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=MemoryError)
    with Album(on="interval", interval_s=0.1) as album:
        with monkeypatch.context() as patch:
            patch.setattr("edge_sdk.events.snapshots.draw", fail)
            album.put(0, 0)
            until(lambda: fail.called)
        album.put(1, 200)
        album.wait_for(1)


def test_larger_pictures_are_made_smaller() -> None:
    for size_wh, width, expected_wh in (
        ((64, 48), 640, (64, 48)),
        ((1280, 720), 640, (640, 360)),
        ((1000, 10), 16, (16, 1)),
        ((100, 10_000), 1920, (77, 7680)),
    ):
        picture = np.linspace(0, 255, size_wh[0] * size_wh[1] * 3).astype(np.uint8).reshape(size_wh[1], size_wh[0], 3)
        jpeg = jpeg_of(picture, width, 80)
        assert (jpeg.width, jpeg.height) == _read(jpeg.data).shape[1::-1] == expected_wh
        assert len(jpeg.data) <= MAX_BYTES


@pytest.mark.parametrize(("size_wh", "expected_wh"), [((1920, 1080),) * 2, ((4096, 2048), (2048, 1024))])
def test_noise_is_made_worse_until_it_fits(size_wh: tuple[int, int], expected_wh: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    assert len(cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_QUALITY, 85])[1]) > MAX_BYTES
    jpeg = jpeg_of(noise, 4096, 85)
    assert (jpeg.width, jpeg.height, len(jpeg.data) <= MAX_BYTES) == (*expected_wh, True)


def test_settings_that_cannot_be_are_refused() -> None:
    for name, value in (("on", "interval"), ("interval_s", 5.0), ("max_per_s", 11.0), ("width", 15), ("quality", 19)):
        assert name in refusal(UsageError, SnapshotSettings, **{"on": "event", name: value})
