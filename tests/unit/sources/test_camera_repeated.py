"""Files that are repeated: where they begin again, and what it takes of others that they do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from edge_sdk.core.errors import CameraError
from edge_sdk.sources.location import SourceOptions
from edge_sdk.sources.opening import open_source
from edge_sdk.sources.slot import OpenedSource, SourceStatus
from tests.support.pictures import number_in, write_images, write_video

_LENGTH = 20
_REPEATED = SourceOptions(repeat=True)

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


def _numbers(source: OpenedSource, wanted: int) -> list[int]:
    found = []
    with closing(source):
        while len(found) < wanted:
            frame = source.latest(5)
            assert frame is not None
            found.append(number_in(frame.image))
    return found


@needs_ffmpeg
@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.avi", "mjpeg"),
        ("a.mp4", "mpeg4 -bf 2"),
        ("a.mkv", "mpeg4 -g 5"),
        ("a.webm", "libvpx"),
        ("a.flv", "flv"),
        ("a.gif", "gif"),
        ("a.ts", "mpeg2video -g 5"),
        ("a.m2v", "mpeg2video"),
        ("a.mov", "mpeg4"),
        ("a.mpg", "mpeg2video"),
        ("a.wmv", "wmv2"),
    ],
)
def test_each_round_is_the_whole_film(tmp_path: Path, name: str, codec: str) -> None:
    plain = write_video(tmp_path / "in.avi", range(_LENGTH), fps=25.0)
    rotate = 180 if name in ("a.mp4", "a.ts") else 0
    turned = ["-vf", "hflip,vflip"] if rotate else []
    command = ["ffmpeg", "-v", "error", "-i", plain, *turned, "-c:v", *codec.split(), "-q:v", "2", tmp_path / name]
    subprocess.run(command, check=True)
    options = SourceOptions(repeat=True, rotate=rotate)
    found = _numbers(open_source(str(tmp_path / name), realtime=False, options=options), 2 * _LENGTH + 1)
    assert found == [*range(_LENGTH)] * 2 + [0]


def test_a_film_that_took_the_place_of_another_is_played(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", range(_LENGTH))
    other = write_video(tmp_path / "b.avi", range(100, 100 + _LENGTH))
    with closing(open_source(str(path), realtime=False, options=_REPEATED)) as source:
        assert source.latest(5) is not None
        other.rename(path)
        assert _numbers(source, 5 * _LENGTH)[-1] >= 100


def _no_end(path: Path) -> None:
    """One that an opening would wait in for a writer."""
    path.unlink()
    os.mkfifo(path)


def _read_while_open(source: OpenedSource) -> None:
    for _ in range(1000):
        source.latest(5)
        assert source.status is SourceStatus.OPENED


@pytest.mark.parametrize(
    ("change", "expected", "realtime"),
    [
        (Path.unlink, "no such file or folder", True),
        (lambda path: path.write_bytes(b"no video"), "no frame can be read", False),
        (_no_end, "neither a file nor a folder", True),
        (_no_end, "neither a file nor a folder", False),
    ],
)
def test_a_film_that_is_away_or_broken_when_it_begins_again_is_an_error_and_no_end(
    tmp_path: Path, change: Callable[[Path], object], expected: str, realtime: bool
) -> None:
    path = write_video(tmp_path / "a.avi", range(3))
    source = open_source(str(path), realtime=realtime, options=_REPEATED)
    change(path)
    with closing(source), pytest.raises(CameraError, match=f"^{path}: {expected}"):
        _read_while_open(source)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (shutil.rmtree, "no such file or folder"),
        (lambda folder: [path.unlink() for path in folder.iterdir()], "no image in it"),
        (lambda folder: [path.write_bytes(b"x") for path in folder.iterdir()], "none of 3 images can be read"),
    ],
)
def test_a_folder_that_is_away_or_broken_is_an_error_and_no_end(
    tmp_path: Path, change: Callable[[Path], object], expected: str
) -> None:
    folder = tmp_path / "images"
    write_images(folder, ["0.png", "1.png", "2.png"])
    source = open_source(str(folder), options=_REPEATED)
    assert source.latest(5) is not None
    change(folder)
    with closing(source), pytest.raises(CameraError, match=f"^{folder}: {expected}"):
        _read_while_open(source)
