"""`edge-sdk demo` as a user runs it: the package registry, a build, a broker, the daemon and a subscriber, all real."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from pycocotools import mask

from edge_sdk.bundle.model_spec import ModelSpec, load_model_spec
from edge_sdk.core.errors import MissingDependencyError
from edge_sdk.core.frame import Detections, Frame, Image, Inferred
from edge_sdk.inference.prepare import Prepare
from edge_sdk.tasks.decoders import make_stage
from edge_sdk_tools.datasets.class_names import read_labels
from tests.support.absent import not_installed
from tests.support.program import edge_sdk

pytestmark = pytest.mark.system
MIN_MATCHED = 0.90
_FRAMES = 120
FILES = {"annotated.jpg", "annotated.mp4", "messages.jsonl", "yolov4_tiny.edge"}
Boxes = NDArray[np.float32]
Message = dict[str, Any]


class Demo:
    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.environment = environment
        self.output = folder / "demo-output"
        done = subprocess.run(self.command(), capture_output=True, text=True, env=environment, timeout=600)
        if done.returncode == MissingDependencyError.exit_code and "cannot be downloaded" in done.stderr:
            not_installed(f"no package registry: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        self.summary: Message = json.loads(done.stdout)
        lines = [json.loads(line) for line in (self.output / "messages.jsonl").read_text().splitlines()]
        self.statuses = [line["payload"]["status"] for line in lines if line["topic"].endswith("/demo/status")]
        self.results = [line["payload"] for line in lines if line["topic"].endswith("/demo/result/street")]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "edge_sdk", "demo", "--json", "--output", str(self.output), *arguments]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    cache = os.environ.get("EDGE_SDK_CACHE") or str(folder / "cache")
    return Demo(folder, {**os.environ, "EDGE_SDK_CACHE": cache})


def test_it_leaves_a_picture_a_video_and_the_messages(demo: Demo) -> None:
    assert {path.name for path in demo.output.iterdir()} == FILES
    assert [path.name for path in demo.output.parent.iterdir() if path.name.startswith(".")] == []
    frames = list(read_video(demo.output / "annotated.mp4"))
    assert {np.shape(cv2.imread(str(demo.output / "annotated.jpg"))), *map(np.shape, frames)} == {(272, 640, 3)}
    images = Path(demo.summary["model"]).parents[1] / "images"  # examples/raspberry_pi builds with them
    assert [len(list((images / name).iterdir())) for name in ("calibration", "evaluation")] == [50, 32]
    assert len(frames) >= demo.summary["frames"] > 0  # how many it leaves out is the machine's matter


def test_the_messages_are_whole_and_in_order(demo: Demo) -> None:
    numbers = [result["seq"] for result in demo.results]
    # Another status follows the first whenever something else runs: at the start, and on a busy machine later too.
    assert (set(demo.statuses[:-1]), demo.statuses[-1]) == ({"online"}, "offline")
    assert numbers == sorted(set(numbers))
    assert 0 < numbers[-1] <= 249
    expected = [len(numbers), numbers[-1] + 1 - len(numbers), sum(len(people_in(result)) for result in demo.results)]
    assert [demo.summary[name] for name in ("frames", "dropped", "people")] == expected
    assert demo.summary["age"]["p50_ms"] > demo.summary["inference"]["p50_ms"] > 0


def test_it_finds_the_people_that_the_fp32_model_finds(demo: Demo) -> None:
    # How many frames the demo leaves out is the machine's matter; of its bundle every frame is asked here.
    done = edge_sdk(
        *("run", demo.output / "yolov4_tiny.edge", "--source", demo.summary["video"], "--every-frame"),
        *("--frames", _FRAMES, "--json", "--best-effort", "--no-tune"),
    )
    assert done.returncode == 0, done.stderr
    *results, _ = [json.loads(line) for line in done.stdout.splitlines()]
    received = {result["seq"]: people_in(result) for result in results}
    assert list(received) == list(range(_FRAMES))
    expected = list(fp32_people(load_model_spec(Path(demo.summary["model"])), Path(demo.summary["video"])))
    total = sum(map(len, expected))
    assert total >= 40
    assert sum(count_found(expected[seq], boxes) for seq, boxes in received.items()) / total >= MIN_MATCHED
    assert total / sum(map(len, received.values())) >= MIN_MATCHED  # and not many more
    published = {result["seq"]: people_in(result) for result in demo.results if result["seq"] < _FRAMES}
    for seq, boxes in published.items():
        assert np.array_equal(boxes, received[seq]), seq


def test_a_second_demo_builds_nothing_and_replaces_the_first(demo: Demo) -> None:
    (demo.output / "annotated.mp4").write_bytes(b"old")
    command = demo.command("--frames", "3")
    done = subprocess.run(command, capture_output=True, text=True, env=demo.environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert ("downloading" in done.stderr, "built by an earlier demo" in done.stderr) == (False, True)
    assert json.loads(done.stdout)["frames"] == 3
    assert {path.name for path in demo.output.iterdir()} == FILES
    assert (demo.output / "annotated.mp4").stat().st_size > 1000


def fp32_people(spec: ModelSpec, video: Path) -> Iterator[Boxes]:
    """What the FP32 model, prepared and decoded as the bundle is, finds in the first frames."""
    session = onnxruntime.InferenceSession(spec.model, providers=["CPUExecutionProvider"])
    prepare = Prepare(spec.input)
    shapes = [tuple(output.shape) for output in session.get_outputs()]
    task = make_stage(spec, len(read_labels(Path(spec.labels))), shapes)
    assert spec.thresholds.confidence == 0.25
    for seq, image in enumerate(itertools.islice(read_video(video), _FRAMES)):
        prepared = prepare(Frame(image, 0, 0.0, seq, "test"))
        outputs = tuple(np.asarray(output) for output in session.run(None, {"images": prepared.tensor}))
        found = task(Inferred(outputs, 0, prepared))
        assert isinstance(found, Detections)
        yield found.xyxy[found.class_id == 0]  # people


def people_in(result: Message) -> Boxes:
    boxes = [item["box_xyxy"] for item in result["detections"] if item["label"] == "person"]
    return np.array(boxes, np.float32).reshape(-1, 4)


def count_found(expected: Boxes, got: Boxes) -> int:
    if not len(expected) or not len(got):
        return 0
    theirs, ours = (np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]).astype(float) for boxes in (expected, got))
    overlaps: NDArray[np.float64] = mask.iou(theirs, ours, [0] * len(ours))
    return int((overlaps.max(axis=1) >= 0.5).sum())


def read_video(path: Path) -> Iterator[Image]:
    capture = cv2.VideoCapture(str(path))
    while (read := capture.read())[0]:
        yield np.asarray(read[1], np.uint8)
