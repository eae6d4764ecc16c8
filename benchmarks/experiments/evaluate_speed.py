"""`python -m benchmarks.experiments.evaluate_speed MODEL.toml DATA`: evaluate beside the loop that anybody would write.

DATA is a folder with labels.csv, MODEL.toml a classifier that crops its images at the centre. Rounds alternate, each in
a process of its own; the time is that of reading, preparing and running all images, loading left out on both sides.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort

from edge_sdk.bundle.model_spec import InputSpec, load_model_spec
from edge_sdk_tools.evaluate.evaluation import evaluate

ROUNDS = 5


def main() -> None:
    """Measure and print a table."""
    if len(sys.argv) == 4:
        print(json.dumps(_PROGRAMS[sys.argv[3]](Path(sys.argv[1]), Path(sys.argv[2]))))
        return
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _PROGRAMS}
    for _ in range(ROUNDS):
        for name, results in found.items():
            command = [sys.executable, "-m", "benchmarks.experiments.evaluate_speed", *sys.argv[1:3], name]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    for name, results in found.items():
        speeds = sorted(speed for _, speed in results)
        median = statistics.median(speeds)
        print(f"{name:<14} top-1 {results[0][0]:.4f}, {median:.1f} images/s [{speeds[0]:.1f}-{speeds[-1]:.1f}]")
    ratios = sorted(e[1] / h[1] for e, h in zip(found["evaluate"], found["hand-written"], strict=True))
    print(f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}]")


def _evaluate(model: Path, data: Path) -> tuple[float, float]:
    found = evaluate(model, data)
    return found.quality[0].value.value, found.images_per_second


def _hand_written(model: Path, data: Path) -> tuple[float, float]:
    spec = load_model_spec(model)
    rows = list(csv.DictReader((data / "labels.csv").open(encoding="utf-8")))
    session = ort.InferenceSession(spec.model)
    name = session.get_inputs()[0].name
    shift = int(spec.classification.background_class)
    right, started = 0, time.perf_counter()
    for row in rows:
        image = cv2.imread(str(data / row["file"]))
        [scores] = session.run(None, {name: _tensor(image, spec.input)})
        right += int(scores[0].argmax()) - shift == int(row["class_id"])
    return right / len(rows), len(rows) / (time.perf_counter() - started)


def _tensor(image: np.ndarray, spec: InputSpec) -> np.ndarray:
    side = round(min(image.shape[:2]) * spec.crop_fraction)
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    crop = cv2.resize(image[top : top + side, left : left + side], spec.size_wh)
    values = (crop[:, :, ::-1].astype(np.float32) - np.float32(spec.mean)) / np.float32(spec.std)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


_PROGRAMS = {"evaluate": _evaluate, "hand-written": _hand_written}

if __name__ == "__main__":
    main()
