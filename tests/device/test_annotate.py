"""Pictures drawn on, and videos that are whole or not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sdk.annotate import AnnotatedVideo, Annotator, VideoWriter
from edge_sdk.annotate.annotator import class_colour
from edge_sdk.annotate.video_writer import fit
from edge_sdk.errors import EdgeError, OutputError, UsageError
from edge_sdk.frame import Classification, Detections, Frame, Image
from tests.device.numbered import number_in, numbered_image

GREY = 90


def require_ffmpeg() -> str:
    """The program's name; skips the test without it, and fails it where CI=true."""
    if shutil.which("ffmpeg") is None:
        reason = "ffmpeg is not installed; `apt-get install ffmpeg`"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)  # the program is optional: without it OpenCV writes the video, which is tested everywhere
    return "ffmpeg"


@pytest.fixture(params=["ffmpeg", "no-such-program"])
def ffmpeg(request: pytest.FixtureRequest) -> str:
    """What writes the video: the program, or OpenCV where it is missing."""
    return require_ffmpeg() if request.param == "ffmpeg" else str(request.param)


def _grey(width_px: int, height_px: int) -> Image:
    return np.full((height_px, width_px, 3), GREY, np.uint8)


def _detections(image: Image, boxes: list[list[float]]) -> Detections:
    count = len(boxes)
    return Detections(
        frame=Frame(image, 0, 0.0, 0, "c"),
        inference_ns=1,
        boxes_xyxy=np.array(boxes, np.float32).reshape(count, 4),
        confidences=np.linspace(0.9, 0.5, count, dtype=np.float32),
        class_ids=np.arange(count),
    )


def _nothing() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    return np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)


def _drawn(image: Image) -> tuple[int, int, int, int]:
    """What was painted, as x1, y1, x2, y2 in pixels, inclusive."""
    ys, xs = np.nonzero((image != GREY).any(axis=2))
    return int(xs.min()), int(ys.min()), int(xs.max()), int(ys.max())


def test_a_box_is_drawn_where_it_is_with_its_tag_above() -> None:
    image = _grey(1280, 720)
    Annotator(["person"]).draw(image, _detections(image, [[400, 300, 600, 500]]))
    x1, y1, x2, y2 = _drawn(image)
    assert abs(x1 - 400) <= 3
    assert abs(x2 - 600) <= 3
    assert abs(y2 - 500) <= 3
    assert 250 < y1 < 290
    assert tuple(image[400, 400].tolist()) == class_colour(0)
    assert (image[320:480, 420:580] == GREY).all()


@pytest.mark.parametrize(
    "box",
    [[0, 0, 60, 40], [590, 0, 640, 100], [600, 300, 640, 360], [0, 320, 30, 360], [300, 355, 310, 360]],
)
def test_the_text_stays_inside_the_picture(box: list[float]) -> None:
    """The tag is as large in a corner as in the middle: nothing of it is cut off."""
    middle, corner = _grey(640, 360), _grey(640, 360)
    annotator = Annotator(["a traffic light"])
    colour = class_colour(0)
    annotator.draw(middle, _detections(middle, [[300, 150, 300, 150]]))
    annotator.draw(corner, _detections(corner, [box]))
    assert int((corner == colour).all(axis=2).sum()) >= int((middle == colour).all(axis=2).sum()) * 0.9


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (3, 2), (20, 10), (160, 120), (641, 359)])
def test_any_size_and_any_label(width_px: int, height_px: int) -> None:
    image = _grey(width_px, height_px)
    annotator = Annotator(["Äpfel" * 40, ""])
    boxes = [[0.0, 0.0, 9.0, 9.0], [float("nan")] * 4, [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, float("inf"), 1.0]]
    annotator.draw(image, _detections(image, boxes))
    annotator.draw(image, _detections(image, []))
    assert image.shape == (height_px, width_px, 3)


def test_a_tag_in_a_picture_hardly_higher_than_itself() -> None:
    middle, low = _grey(300, 300), _grey(300, 24)
    annotator = Annotator(["person"])
    annotator.draw(middle, _detections(middle, [[100, 150, 100, 150]]))
    annotator.draw(low, _detections(low, [[100, 15, 100, 15]]))
    colour = class_colour(0)
    assert (low == colour).all(axis=2).sum() >= (middle == colour).all(axis=2).sum() * 0.9


def test_sizes_grow_with_the_picture() -> None:
    tags = []
    for factor in (1, 3):
        image = _grey(1280 * factor, 720 * factor)
        Annotator(["person"]).draw(image, _detections(image, [[600 * factor, 400 * factor] * 2]))
        x1, y1, x2, y2 = _drawn(image)
        tags.append((x2 - x1, y2 - y1))
    assert tags[1][0] == pytest.approx(3 * tags[0][0], rel=0.1)
    assert tags[1][1] == pytest.approx(3 * tags[0][1], rel=0.15)


def test_classes_are_written_one_below_the_other() -> None:
    image = _grey(640, 360)
    result = Classification(
        frame=Frame(image, 0, 0.0, 0, "c"),
        inference_ns=1,
        confidences=np.array([0.8, 0.1, 0.05, 0.01], np.float32),
        class_ids=np.array([0, 3, 5, 7]),
    )
    Annotator([f"label {i}" for i in range(8)]).draw(image, result)
    tops = [int(np.nonzero((image == class_colour(c)).all(axis=2))[0].min()) for c in (0, 3, 5)]
    assert tops == sorted(set(tops))
    assert not (image == class_colour(7)).all(axis=2).any()


def test_labels_with_and_without_background() -> None:
    assert Annotator(["a", "b"])._name(1) == "b"
    assert Annotator(["background", "a"])._name(0, offset=1) == "a"
    assert Annotator(["background", "a"])._name(-1, offset=1) == "background"
    assert Annotator(["a"])._name(-1) == "class -1"
    assert Annotator(["a"])._name(9) == "class 9"


def test_neighbouring_classes_look_different() -> None:
    colours = np.array([class_colour(c) for c in range(80)], np.int64)
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 150
    assert class_colour(3) == class_colour(3)


def _read_all(path: Path) -> list[Image]:
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    images = []
    while True:
        readable, image = capture.read()
        if not readable:
            capture.release()
            return images
        images.append(image.astype(np.uint8))


def test_a_video_holds_every_frame(tmp_path: Path, ffmpeg: str) -> None:
    path = tmp_path / "a.mp4"
    with VideoWriter(path, 29.97, ffmpeg=ffmpeg) as writer:
        for number in range(25):
            writer.write(numbered_image(number))
            assert not path.exists()
    assert [number_in(image) for image in _read_all(path)] == list(range(25))
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]
    writer.close()
    assert len(_read_all(path)) == 25


def test_odd_and_changing_sizes(tmp_path: Path, ffmpeg: str) -> None:
    path = tmp_path / "a.mp4"
    sizes = [(321, 241)] * 3 + [(640, 480), (200, 100), (100, 300), (1, 1)]
    with VideoWriter(path, 25, ffmpeg=ffmpeg) as writer:
        for number, size_wh in enumerate(sizes):
            writer.write(numbered_image(number + 1, size_wh))
    images = _read_all(path)
    assert {image.shape for image in images} == {(242, 322, 3)}
    assert [number_in(image) for image in images[:5]] == [1, 2, 3, 4, 5]
    assert len(images) == len(sizes)


def test_ffmpeg_writes_h264_that_starts_at_once(tmp_path: Path) -> None:
    require_ffmpeg()
    path = tmp_path / "a.mp4"
    with VideoWriter(path, 25) as writer:
        writer.write(numbered_image(1))
    data = path.read_bytes()
    assert b"avc1" in data
    assert data.index(b"moov") < data.index(b"mdat")


def test_a_picture_is_fitted_into_the_middle() -> None:
    canvas = np.zeros((100, 200, 3), np.uint8)
    fitted = fit(np.full((50, 50, 3), 200, np.uint8), canvas)
    assert (fitted[:, 50:150] == 200).all()
    assert not fitted[:, :50].any()
    assert not fitted[:, 150:].any()
    same = np.ones((100, 200, 3), np.uint8)
    assert fit(same, canvas) is same


def test_without_a_picture_there_is_no_file(tmp_path: Path, ffmpeg: str) -> None:
    VideoWriter(tmp_path / "a.mp4", 25, ffmpeg=ffmpeg).close()
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    no_name = "expected the name of a file that ends in .mp4"
    cases: list[tuple[Path, type[EdgeError], str]] = [
        (tmp_path / "none" / "a.mp4", OutputError, "No such file or directory"),
        (tmp_path / "file" / "a.mp4", OutputError, "Not a directory"),
        (tmp_path / "folder.mp4", UsageError, "exists already; choose another name"),
        (tmp_path / "a.avi", UsageError, no_name),
        *((Path(name), UsageError, no_name) for name in (".", "/", "..", "")),
    ]
    for path, error, expected in cases:
        with pytest.raises(error) as caught:
            VideoWriter(path, 25)
        assert str(path) in str(caught.value)
        assert expected in str(caught.value)


@pytest.mark.parametrize(("gap_frames", "written"), [(1, 2), (4, 5), (10, 11), (11, 12), (1000, 12)])
def test_missing_results_show_the_one_before_for_a_second_at_most(
    tmp_path: Path, gap_frames: int, written: int
) -> None:
    path = tmp_path / "a.mp4"
    image = numbered_image(1)
    with VideoWriter(path, 10, ffmpeg="no-such-program") as writer:
        video = AnnotatedVideo(Annotator(["a"]), writer, 10)
        for captured_ns in (0, gap_frames * 100_000_000):
            video.put(Detections(Frame(image, captured_ns, 0.0, 0, "c"), 1, *_nothing()))
    assert len(_read_all(path)) == written


def test_what_ffmpeg_complains_of_at_the_end(tmp_path: Path) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho first >&2\necho no space left >&2\nexit 3\n")
    program.chmod(0o755)
    path = tmp_path / "a.mp4"
    writer = VideoWriter(path, 25, ffmpeg=str(program))
    for number in range(3):
        writer.write(numbered_image(number))
    with pytest.raises(OutputError, match=r"a\.mp4: cannot be written: ffmpeg ended with 3: no space left; check"):
        writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["ffmpeg"]


_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from edge_sdk.annotate import VideoWriter
from edge_sdk.errors import OutputError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
random = np.random.default_rng(0)
writer = VideoWriter(Path(sys.argv[1]), 25, ffmpeg=sys.argv[2])
try:
    for _ in range(60):
        writer.write(random.integers(0, 255, (240, 320, 3), np.uint8))
    writer.close()
except OutputError as error:
    print(error)
writer.close()
"""


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path, ffmpeg: str) -> None:
    """It may be the very video that is being watched."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"precious")
    (tmp_path / "link.mp4").symlink_to(path)
    for taken in (path, tmp_path / "link.mp4"):
        with pytest.raises(UsageError, match="exists already"):
            VideoWriter(taken, 25, ffmpeg=ffmpeg)
    writer = VideoWriter(tmp_path / "b.mp4", 25, ffmpeg=ffmpeg)
    writer.write(numbered_image(0))
    (tmp_path / "b.mp4").write_bytes(b"came meanwhile")
    with pytest.raises(OutputError, match="File exists"):
        writer.close()
    assert path.read_bytes() == b"precious"
    assert (tmp_path / "b.mp4").read_bytes() == b"came meanwhile"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, ffmpeg: str) -> None:
    path = tmp_path / "a.mp4"
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(path), ffmpeg], capture_output=True, text=True, check=True, timeout=200
    )
    assert f"{path}: cannot be written" in done.stdout
    assert list(tmp_path.iterdir()) == []
