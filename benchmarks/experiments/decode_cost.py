"""`python -m benchmarks.experiments.decode_cost`: what reading a detector's outputs costs, at 300 candidates.

Every decoder reads made-up outputs of a model of 640x640 pixels and 80 classes, where the kind has classes. The table
has the microseconds of processor time of its parts: `decode` makes boxes of what passes the threshold, `suppress`
removes overlaps, `rest` maps the kept ones to the frame and reads masks and keypoints. The least of the rounds counts.
`--beside CHECKOUT` measures another checkout of this repository in turn, for a comparison on a busy machine.

Two decoders take more than the limit, because of what they have to read. EfficientDet's scores of 90 classes are 28 MB
at 640 pixels and 18 MB at 512 (D0): one pass over them, such as numpy's maximum, takes .8 and .45 ms, comparing them
with the threshold 1.1 and .6 ms; at 320 pixels (Lite0, 7 MB) all of it takes .47 ms. For 300 lines of text DB spends
1.2 ms in OpenCV alone: .45 to find the contours, and for each line .8 us for its box, .9 to fill it and 1.0 for the
mean within.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from edge_sdk.bundle.model_spec import InputSpec, ModelSpec
from edge_sdk.core.frame import Frame, Geometry, Inferred, Prepared
from edge_sdk.tasks import detection
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.spec import DetectionSpec, Thresholds

SIDE, COUNT, CLASSES = 640, 300, 80
LIMIT_MS = 0.5
_CELLS = [(SIDE // stride) ** 2 for stride in (8, 16, 32)]
_RANDOM = np.random.default_rng(0)
_V4_ANCHORS = (
    ((116.0, 90.0), (156.0, 198.0), (373.0, 326.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 119.0)),
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
)


def _some(count: int) -> np.ndarray:
    return np.sort(_RANDOM.choice(count, COUNT, replace=False))


def _sure() -> np.ndarray:
    return _RANDOM.uniform(0.3, 0.9, COUNT)


def _classes(count: int = CLASSES) -> np.ndarray:
    return _RANDOM.integers(0, count, COUNT)


def _noise(*shape: int) -> np.ndarray:
    return _RANDOM.normal(0, 1, shape)


def _uniform(low: float, high: float, *shape: int) -> np.ndarray:
    return _RANDOM.uniform(low, high, shape)


def _columns(extras: int = 0) -> np.ndarray:
    """YOLOv8's columns: box, classes, extras."""
    output, found = np.zeros((1, 4 + CLASSES + extras, sum(_CELLS))), _some(sum(_CELLS))
    output[0, :2, found] = _uniform(0, SIDE, COUNT, 2)
    output[0, 2:4, found] = _uniform(20, 120, COUNT, 2)
    output[0, 4 + _classes(), found] = _sure()
    output[0, 4 + CLASSES :, found] = _noise(COUNT, extras)
    return output


def _rows(width: int = 6) -> np.ndarray:
    """Rows of a graph that suppresses overlaps: corners, confidence, class, extras."""
    corner, size = _uniform(0, 520, COUNT, 2), _uniform(20, 120, COUNT, 2)
    parts = corner, corner + size, np.sort(_sure())[::-1], _classes(), _noise(COUNT, width - 6)
    return np.column_stack(parts)[None]


def _cells(count: int, box: Callable[..., np.ndarray]) -> np.ndarray:
    """Rows of YOLOv5 and YOLOX: box, objectness, classes."""
    output, found = np.zeros((1, count, 5 + CLASSES)), _some(count)
    output[0, found, :4], output[0, found, 4] = box(COUNT), 0.95
    output[0, found, 5 + _classes()] = _sure()
    return output


def _yolov4() -> list[np.ndarray]:
    heads = [np.full((3, 5 + CLASSES, cells), -9.0) for cells in _CELLS[::-1]]
    for head in heads:
        for anchor in range(3):
            found = _RANDOM.choice(head.shape[2], COUNT // 9 + 1, replace=False)
            head[anchor, :5, found] = _noise(len(found), 5) / 2
            head[anchor, 4, found] = head[anchor, 5 + _classes()[: len(found)], found] = 3
    return [head.reshape(1, -1, *[round(head.shape[2] ** 0.5)] * 2) for head in heads]


def _centernet(classes: int, largest: float, further: int = 0) -> list[np.ndarray]:
    heat, found = np.zeros((1, classes, 160, 160)), _some(40 * 40)
    heat[0, _classes(classes), found // 40 * 4, found % 40 * 4] = _sure()
    maps = [_uniform(0, 1, 1, 2, 160, 160) * largest, _uniform(0, 1, 1, 2, 160, 160)]
    return [heat, *maps, *([_uniform(0, 1, 1, further, 160, 160)] if further else [])]


def _faces(anchors: int, scores: int) -> list[np.ndarray]:
    maps = [np.zeros((1, anchors * cells, 1)) for cells in _CELLS]
    for level, share in zip(maps, (200, 75, 25), strict=True):
        level[0, _RANDOM.choice(level.shape[1], share, replace=False), 0] = _uniform(0.5, 0.9, share)
    further = (_uniform(0.5, 2, 1, level.shape[1], values) for values in (4, 10) for level in maps)
    return [*maps * scores, *further]


def _priors(count: int, classes: int, first: int) -> list[np.ndarray]:
    corner, scores = _uniform(0, 0.8, count, 2), np.zeros((count, classes))
    boxes = np.hstack([corner, corner + _uniform(0.05, 0.2, count, 2)]) if first else _noise(count, 4) / 2
    scores[_some(count), first + _classes(classes - first)] = _sure()
    return [boxes[None], scores[None]]


def _queries(classes: int) -> list[np.ndarray]:
    logits = np.full((1, COUNT, classes), -6.0)
    logits[0, np.arange(COUNT), _classes(CLASSES)] = _uniform(4, 9, COUNT)
    return [_uniform(0.1, 0.8, 1, COUNT, 4), logits]


def _lines() -> np.ndarray:
    output = np.zeros((1, 1, SIDE, SIDE))
    for place in range(COUNT):
        y, x = divmod(place, 15)
        output[0, 0, y * 32 + 4 : y * 32 + 16, x * 42 + 4 : x * 42 + 38] = 0.8
    return output


def heads() -> dict[str, tuple[list[np.ndarray], int, DetectionSpec]]:
    """Return outputs, number of labels and [detection] of every decoder of objects."""
    plain, first_is_0 = DetectionSpec(), DetectionSpec(background_class=False)
    pose, row = DetectionSpec(keypoints=(17, 3)), _rows()[0]
    parts = np.array([SIDE] * 4 + [1, 1])
    return {
        "yolov4": (_yolov4(), CLASSES, DetectionSpec(anchors=_V4_ANCHORS)),
        "yolov5": ([_cells(3 * sum(_CELLS), lambda n: _uniform(20, 600, n, 4) / [1, 1, 5, 5])], CLASSES, plain),
        "yolox": ([_cells(sum(_CELLS), lambda n: _noise(n, 4))], CLASSES, plain),
        "yolov8": ([_columns()], CLASSES, plain),
        "yolov8_pose": ([_columns(51)], CLASSES, pose),
        "yolov8_obb": ([_columns(1)], CLASSES, plain),
        "yolov8_seg": ([_columns(32), _noise(1, 32, 160, 160)], CLASSES, plain),
        "fastestdet": ([_cells(40 * 40, lambda n: _noise(n, 4))[..., [4, 0, 1, 2, 3, *range(5, 85)]]], CLASSES, plain),
        "nanodet": ([np.dstack([_cells(8500, lambda n: _noise(n, 4))[..., 5:], _noise(1, 8500, 32)])], CLASSES, plain),
        "centernet": (_centernet(CLASSES, 20), CLASSES, plain),
        "centerface": (_centernet(1, 2, 10), 1, plain),
        "yunet": (_faces(1, 2), 1, plain),
        "scrfd": (_faces(2, 1), 1, plain),
        "ultraface": (_priors(23500, 2, 1), 1, plain),
        "ssd": (_priors(3000, 1 + CLASSES, 1), CLASSES, plain),
        "efficientdet": (_priors(76725, 90, 0), 90, plain),
        "db": ([_lines()], 1, plain),
        "tensorflow_nms": ([row[None, :, :4] / SIDE, row[None, :, 5], row[None, :, 4]], CLASSES, first_is_0),
        "torchvision_nms": ([row[:, :4], row[:, 5], row[:, 4]], CLASSES, first_is_0),
        "end_to_end": ([_rows()], CLASSES, plain),
        "end_to_end_pose": ([_rows(57)], CLASSES, pose),
        "end_to_end_obb": ([_rows(7)], CLASSES, plain),
        "end_to_end_seg": ([_rows(38), _noise(1, 32, 160, 160)], CLASSES, plain),
        "detr_end_to_end": ([_rows() / parts], CLASSES, plain),
        "detr": (_queries(CLASSES), CLASSES, plain),
        "detr_softmax": (_queries(92), 91, plain),
        "movenet": ([_uniform(0.2, 0.9, 1, 6, 56)], 1, plain),
    }


def _least_us(call: Callable[[], object], rounds: int) -> float:
    least = float("inf")
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(5):
            call()
        least = min(least, (time.thread_time_ns() - start) / 5000)
    return least


def measure(name: str, outputs: list[np.ndarray], labels: int, section: DetectionSpec, rounds: int) -> list[float]:
    """Return kept objects, and microseconds of decoding, of suppression, and of the rest."""
    if name == "fastestdet":
        outputs = [outputs[0][0].T.reshape(1, -1, 40, 40)]
    tensors = tuple(np.ascontiguousarray(output, np.float32) for output in outputs)
    spec = ModelSpec(
        model="m", name="m", task="detection", decoder=name, labels="l", input=InputSpec(size_wh=(SIDE, SIDE)),
        detection=section, thresholds=Thresholds(0.25, 0.45),
    )  # fmt: skip
    stage = make_stage(spec, labels, [tensor.shape for tensor in tensors])
    assert isinstance(stage, detection.Detect)
    frame = Frame(np.zeros((SIDE, SIDE, 3), np.uint8), 0, 0.0, 0, "camera")
    inferred = Inferred(tensors, 0, Prepared(np.empty(0, np.float32), Geometry(1.0, 1.0, 0.0, 0.0), frame))
    read = [tensors[place] for place in stage._places]
    found = stage._decode(read)
    decode = _least_us(lambda: stage._decode(read), rounds)
    suppress = _least_us(lambda: detection.suppress(found, stage._thresholds, stage._keep), rounds)
    whole = _least_us(lambda: stage(inferred), rounds)
    return [len(stage(inferred).confidence), decode, suppress, max(0.0, whole - decode - suppress)]


def _worker(rounds: int, only: tuple[str, ...], checkout: Path) -> dict[str, list[float]]:
    """Measure the package of a checkout in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--rounds", str(rounds), "--raw", *only]
    found: dict[str, list[float]] = json.loads(subprocess.check_output(command, env=environment))
    return found


@click.command()
@click.argument("names", nargs=-1)
@click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--beside", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
@click.option("--raw", is_flag=True, hidden=True)
def main(names: tuple[str, ...], rounds: int, beside: Path | None, raw: bool) -> None:
    """Print the table, of the decoders NAMES or of all; exit code 4 where one takes more than the limit."""
    if raw:
        chosen = {name: head for name, head in heads().items() if not names or name in names}
        print(json.dumps({name: measure(name, *head, rounds) for name, head in chosen.items()}))
        return
    own = Path(__file__).resolve().parents[2]
    turns: dict[Path, list[dict[str, list[float]]]] = {place: [] for place in (own, beside) if place}
    for _ in range(4 if beside else 1):
        for place, turn in turns.items():
            turn.append(_worker(rounds, names, place))
    least = {
        place: {name: np.min([turn[name] for turn in found], axis=0) for name in found[0]}
        for place, found in turns.items()
    }
    print("| decoder | kept | decode | suppress | rest | ms |" + (" before |" if beside else ""))
    print("|---|---|---|---|---|---|" + ("---|" if beside else ""))
    for name, (kept, *parts) in least[own].items():
        cells = [name, f"{kept:.0f}", *(f"{part:.0f}" for part in parts), f"{sum(parts) / 1000:.2f}"]
        print("|", " | ".join([*cells, *([f"{sum(least[beside][name][1:]) / 1000:.2f}"] if beside else [])]), "|")
    sys.exit(4 if any(sum(row[1:]) > LIMIT_MS * 1000 for row in least[own].values()) else 0)


if __name__ == "__main__":
    main()
