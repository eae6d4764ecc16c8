"""Pictures of a camera, made beside its loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import numpy as np
import pytest

from edge_sdk.core.errors import UsageError
from edge_sdk.core.frame import Detections, Frame, Image
from edge_sdk.events.rules import SnapshotSettings
from edge_sdk.events.snapshots import MAX_BYTES, Jpeg, Snapshots, jpeg_of
from tests.support.connections import until

MS = 1_000_000


class Album:
    """Takes files; may be told to hang."""

    def __init__(self) -> None:
        self.files: list[tuple[bytes, int]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.waits = 0

    def take(self, jpeg: bytes, seq: int) -> None:
        self.waits += 1
        self.may_go.wait()
        self.files.append((jpeg, seq))

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.files) == count)

    @property
    def numbers(self) -> list[int]:
        return [seq for _, seq in self.files]


def _result(seq: int, image: Image, at_ms: int) -> Detections:
    frame = Frame(image, at_ms * MS, 0.0, seq, "door")
    return Detections(frame, 0, np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int64))


@contextmanager
def _snapshots(settings: SnapshotSettings, album: Album) -> Iterator[Snapshots]:
    snapshots = Snapshots(settings, album.take)
    try:
        yield snapshots
    finally:
        album.may_go.set()
        snapshots.close()


def _picture(level: int, size_wh: tuple[int, int] = (64, 48)) -> Image:
    return np.full((size_wh[1], size_wh[0], 3), level, np.uint8)


def _level(jpeg: bytes) -> int:
    return round(float(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR).mean()))


def test_at_an_interval_one_is_made_whatever_happens() -> None:
    album = Album()
    with _snapshots(SnapshotSettings(on="interval", interval_s=0.1), album) as snapshots:
        for seq in range(10):
            snapshots.put(_result(seq, _picture(0), 40 * seq))
            if seq in (0, 3, 6, 9):
                album.wait_for(seq // 3 + 1)
    assert album.numbers == [0, 3, 6, 9]


def test_with_events_one_is_made_when_asked_and_not_too_often() -> None:
    album = Album()
    with _snapshots(SnapshotSettings(on="event", max_per_s=10), album) as snapshots:
        for seq in range(8):
            if seq in (1, 2, 3):
                snapshots.ask()
            snapshots.put(_result(seq, _picture(0), 40 * seq))
            album.wait_for((seq >= 1) + (seq >= 4))
    assert album.numbers == [1, 4]  # of those that came too soon the newest, once its time has come


def test_one_waits_at_most_the_newest_and_it_shows_its_frame_although_the_source_overwrites_it() -> None:
    album = Album()
    with _snapshots(SnapshotSettings(on="interval", interval_s=0.1), album) as snapshots:
        album.may_go.clear()
        snapshots.put(_result(0, _picture(10), 0))
        until(lambda: album.waits == 1)
        for seq in range(1, 5):
            image = _picture(50 * seq, (64 + seq, 48))
            snapshots.put(_result(seq, image, 100 * seq))
            image[:] = 20
        album.may_go.set()
        album.wait_for(2)
    assert [(_level(jpeg), seq) for jpeg, seq in album.files] == [(10, 0), (200, 4)]


def test_the_one_that_waits_is_made_before_the_end() -> None:
    album = Album()
    snapshots = Snapshots(SnapshotSettings(on="event"), album.take)
    snapshots.ask()
    snapshots.put(_result(7, _picture(0), 0))
    snapshots.close()
    assert album.numbers == [7]


@pytest.mark.parametrize(
    ("size_wh", "width", "expected_wh"),
    [
        ((64, 48), 640, (64, 48)),
        ((1280, 720), 640, (640, 360)),
        ((1014, 760), 480, (480, 360)),
        ((1000, 10), 16, (16, 1)),
        ((100, 10_000), 1920, (77, 7680)),
    ],
)
def test_larger_pictures_are_made_smaller_and_keep_their_proportions(
    size_wh: tuple[int, int], width: int, expected_wh: tuple[int, int]
) -> None:
    picture = np.linspace(0, 255, size_wh[0] * size_wh[1] * 3).astype(np.uint8).reshape(size_wh[1], size_wh[0], 3)
    jpeg = jpeg_of(picture, width, 80)
    assert (jpeg.width, jpeg.height) == expected_wh
    assert len(jpeg.data) <= MAX_BYTES
    assert cv2.imdecode(np.frombuffer(jpeg.data, np.uint8), cv2.IMREAD_COLOR).shape[1::-1] == expected_wh


@pytest.mark.parametrize(
    ("size_wh", "expected_wh"), [((1920, 1080), (1920, 1080)), ((4096, 3000), (2048, 1500))], ids=["worse", "smaller"]
)
def test_noise_gets_worse_and_then_smaller_until_it_fits(
    size_wh: tuple[int, int], expected_wh: tuple[int, int]
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    assert len(cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_QUALITY, 85])[1]) > MAX_BYTES
    jpeg = jpeg_of(noise, 4096, 85)
    assert (jpeg.width, jpeg.height) == expected_wh
    assert len(jpeg.data) <= MAX_BYTES


@pytest.mark.parametrize(
    "wrong",
    [{"on": "interval"}, {"interval_s": 5.0}, {"max_per_s": 11.0}, {"width": 15}, {"quality": 19}, {"quality": 101}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SnapshotSettings(**{"on": "event", **wrong})  # type: ignore[arg-type]


def test_one_that_cannot_be_made_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    album, failed = Album(), threading.Event()

    def fail(*_: object) -> Jpeg:
        failed.set()
        raise MemoryError

    with _snapshots(SnapshotSettings(on="interval", interval_s=0.1), album) as snapshots:
        with monkeypatch.context() as patch:
            patch.setattr("edge_sdk.events.snapshots.jpeg_of", fail)
            snapshots.put(_result(0, _picture(0), 0))
            assert failed.wait(30.0)
        snapshots.put(_result(1, _picture(0), 200))
        album.wait_for(1)
    assert album.numbers == [1]
