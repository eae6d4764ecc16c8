"""The models that `make bench` measures with, made once and kept in the cache: a classifier, a detector, a video.

EfficientNet-Lite0 at 224 pixels with its trained weights, a detector of YOLOv8n's shape at 640 pixels with random ones,
and the demo's street video enlarged to 1280x720, H.264.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import edge_sdk
import edge_sdk_tools
from edge_sdk.bundle.model_spec import load_model_spec
from edge_sdk.cli.root import run as edge_sdk_run
from edge_sdk_tools.demo.bundle import Media, fetch_media, write_images
from edge_sdk_tools.graph.profile import host_target
from edge_sdk_tools.packages import cache_folder

_HERE = Path(__file__).parent
CONFIDENCE = 0.05
"""Of the detector: low, so that it finds something."""

_CLASSIFIER = """\
model = "classifier.onnx"
name = "efficientnet_lite0"
task = "classification"
decoder = "logits"
labels = "classes.txt"
[input]
size_wh = [224, 224]
resize = "center_crop"
crop_fraction = 0.875
mean = [127, 127, 127]
std = [128, 128, 128]
"""
_DETECTOR = f"""\
model = "detector.onnx"
name = "yolov8_shape"
task = "detection"
decoder = "yolov8"
labels = "coco.txt"
[input]
size_wh = [640, 640]
std = [255, 255, 255]
[thresholds]
confidence = {CONFIDENCE}
[gates]
int8_min_agreement = 0.0
int8_max_drop_relative = 1.0
"""


class BenchModels(msgspec.Struct, frozen=True):
    """Files in the cache.

    Attributes:
        classifier, detector: bundles, each with FP32 too.
        classifier_onnx: the classifier in INT8 as a person writes it by hand, QDQ.
        detector_onnx: the detector in FP32.
        video: 1280x720, 250 frames at 25 a second, H.264.
        images: photographs and frames of another video.
    """

    classifier: Path
    detector: Path
    classifier_onnx: Path
    detector_onnx: Path
    video: Path
    images: Path


def bench_models(cache: Path, say: Callable[[str], None]) -> BenchModels:
    """Fetch, import, build and encode, or take what an earlier call left.

    In a process of its own: what a process has in memory counts for those that it starts, too.
    """
    fetch_media(cache, say)
    folder = cache / "bench" / _key()
    if not folder.exists():
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.figures.bench_models"], stdout=sys.stderr, check=True
        )
    return BenchModels(
        folder / "classifier.edge",
        folder / "detector.edge",
        folder / "int8.onnx",
        folder / "detector.onnx",
        folder / "street.mp4",
        folder / "images" / "evaluation",
    )


def make_models(cache: Path, say: Callable[[str], None]) -> None:
    """Make all of them and put them where `bench_models` looks."""
    import torch

    from benchmarks.figures import efficientnet_lite, yolov8_shape
    from benchmarks.rivals.by_hand import ByHand, quantize_by_hand

    media = fetch_media(cache, say)
    folder = cache / "bench" / _key()
    partial = _begin(folder, media)
    images = partial / "images"
    write_images(media, images)
    for name, description, network, side in (
        ("classifier", _CLASSIFIER, efficientnet_lite.make(), 224),
        ("detector", _DETECTOR, yolov8_shape.make(), 640),
    ):
        say(f"making the {name}")
        toml = partial / f"{name}.toml"
        toml.write_text(description)
        picture = (torch.zeros(1, 3, side, side),)
        # Not by `edge-sdk import`, which finds that random weights make more of a rounding than trained ones do.
        torch.onnx.export(network, picture, partial / f"{name}.onnx", dynamo=False, input_names=["images"])
        _edge_sdk(
            *("build", toml, "--target", host_target()),
            *("--calibration", images / "calibration", "--evaluation", images / "evaluation"),
            *("--with-fp32", "-o", partial / f"{name}.edge"),
        )
    toml = partial / "classifier.toml"
    quantize_by_hand(partial / "classifier.onnx", load_model_spec(toml), images / "calibration", partial, ByHand())
    _enlarge(media.street_video, partial / "street.mp4")
    partial.rename(folder)


def _begin(folder: Path, media: Media) -> Path:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "classes.txt").write_text("".join(f"class {n}\n" for n in range(1000)))
    shutil.copyfile(media.labels, partial / "coco.txt")
    return partial


def _edge_sdk(*arguments: object) -> None:
    code = edge_sdk_run([str(a) for a in arguments])
    if code:
        raise SystemExit(code)


def _enlarge(video: Path, target: Path) -> None:
    command = ["ffmpeg", "-v", "error", "-i", str(video), "-vf", "scale=1280:720", "-an"]
    subprocess.run([*command, "-c:v", "libx264", "-pix_fmt", "yuv420p", str(target)], check=True)


def _key() -> str:
    """Digest of all code that makes them."""
    digest = hashlib.sha256()
    for root in (Path(edge_sdk.__file__).parent, Path(edge_sdk_tools.__file__).parent):
        for source in sorted(root.rglob("*.py")):
            digest.update(source.read_bytes())
    for name in ("figures/bench_models", "figures/efficientnet_lite", "figures/yolov8_shape", "rivals/by_hand"):
        digest.update((_HERE.parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    make_models(cache_folder(), lambda line: print(line, file=sys.stderr))
