"""Seconds for the interval of mAP, on made detections of many images.

Run as `python -m benchmarks.experiments.interval_speed`.

Every image has 7 objects and 100 detections of 80 classes, as a detector has that is asked for all it sees.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import numpy as np

from edge_sdk_tools.evaluate.average_precision import AveragePrecision, Boxes, Judged, LabelledBoxes, judge
from edge_sdk_tools.evaluate.statistics import resample

ROUNDS = 3
IMAGES = (64, 1000, 5000)
_CLASSES, _OBJECTS, _DETECTIONS = 80, 7, 100


def main() -> None:
    """Measure and print one row a number of images."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; medians of {ROUNDS} rounds, smallest and largest")
    print("\n| images | seconds |\n|---|---|")
    for count in IMAGES:
        random = np.random.default_rng(0)
        judged = [_image(random) for _ in range(count)]
        seconds = [_once(judged) for _ in range(ROUNDS)]
        print(f"| {count} | {statistics.median(seconds):.2f} [{min(seconds):.2f}-{max(seconds):.2f}] |", flush=True)


def _once(judged: list[Judged]) -> float:
    started = time.perf_counter()
    AveragePrecision(judged).mean()(resample(len(judged)))
    return time.perf_counter() - started


def _image(random: np.random.Generator) -> Judged:
    corners = random.random((_OBJECTS, 2)) * 400
    labelled = np.concatenate([corners, corners + 20 + random.random((_OBJECTS, 2)) * 100], axis=1)
    classes = random.integers(_CLASSES, size=_OBJECTS)
    others = _DETECTIONS - _OBJECTS
    strays = random.random((others, 2)) * 400
    boxes = np.concatenate([labelled + random.normal(0, 6, labelled.shape), np.concatenate([strays, strays + 60], 1)])
    class_ids = np.concatenate([classes, random.integers(_CLASSES, size=others)])
    confidences = np.concatenate([0.4 + random.random(_OBJECTS) / 2, random.random(others) ** 3])
    return judge(Boxes(boxes, confidences, class_ids), LabelledBoxes(labelled, classes, np.zeros(_OBJECTS, np.bool_)))


if __name__ == "__main__":
    main()
