"""`python -m benchmarks.figures.prepare_cost`: from a 1280x720 frame to a model's input, beside OpenCV's blobFromImage.

Both fill float32 NCHW, RGB, divided by 255, and the values are compared before anything is timed. In the same rounds
runs what nobody can leave out, OpenCV's resize alone, and writing zeros where the picture's floats go; and what ours
costs where the model takes integers (uint8 NHWC, RGBA), as INT8 models do that `edge-sdk build` makes for x86_64. Every
round has another order, so that none always finds the caches that the same other one left. With one thread it is the
thread's processor time that counts, which other programs disturb less. Only ratios mean anything.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import IO, Literal, TypeAlias, cast

import click
import cv2
import msgspec
import numpy as np

from edge_sdk.bundle.manifest import InputTensor
from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.frame import Frame, Image
from edge_sdk.inference.prepare import Prepare

_Resize: TypeAlias = Literal["letterbox", "stretch"]
_SCALE = 1 / 255
LIMITS = {"640 letterbox": 0.12, "224 stretch": 0.85}
"""Of each way, whether the model takes floats or integers."""


def _letterboxed(image: Image, side: int) -> np.ndarray:
    """As it is usually written."""
    height, width = image.shape[:2]
    scale = min(side / width, side / height)
    inner_w, inner_h = round(width * scale), round(height * scale)
    resized = cv2.resize(image, (inner_w, inner_h))
    top, left = (side - inner_h) // 2, (side - inner_w) // 2
    borders = (top, side - inner_h - top, left, side - inner_w - left)
    padded = cv2.copyMakeBorder(resized, *borders, cv2.BORDER_CONSTANT, value=(114, 114, 114))
    return cv2.dnn.blobFromImage(padded, _SCALE, swapRB=True)


def _stretched(image: Image, side: int) -> np.ndarray:
    return cv2.dnn.blobFromImage(cv2.resize(image, (side, side)), _SCALE, swapRB=True)


def _steps(resize: _Resize, side: int, images: list[Image]) -> dict[str, Callable[[Image], object]]:
    """Ours and theirs, which give the same values, and the parts that cannot be left out."""
    by_hand = _letterboxed if resize == "letterbox" else _stretched
    spec = InputSpec(size_wh=(side, side), resize=resize, std=(255.0, 255.0, 255.0))
    prepare, of_int8 = Prepare(spec), Prepare(spec, InputTensor("uint8", "NHWC", "RGBA"))
    frames = {id(image): Frame(image, 0, 0.0, 0, "camera") for image in images}
    for image in images[:2]:
        np.testing.assert_allclose(prepare(frames[id(image)]).tensor, by_hand(image, side), atol=1e-6)
    height = round(side * images[0].shape[0] / images[0].shape[1]) if resize == "letterbox" else side
    resized = np.empty((height, side, 3), np.uint8)
    floats = np.empty_like(prepare.tensor)[:, :, (side - height) // 2 :][:, :, :height]
    return {
        "ours": lambda image: prepare(frames[id(image)]),
        "integers": lambda image: of_int8(frames[id(image)]),
        "blob": lambda image: by_hand(image, side),
        "resize": lambda image: cv2.resize(image, (side, height), dst=resized),
        "write": lambda _image: floats.fill(0),
    }


def _one_way(resize: _Resize, side: int, images: list[Image], rounds: int) -> dict[str, float]:
    durations: dict[str, list[int]] = {}
    steps = _steps(resize, side, images)
    turn, order = count(), random.Random(0)
    clock = time.thread_time_ns if cv2.getNumThreads() == 1 else time.perf_counter_ns
    for _ in range(rounds):
        for name, step in order.sample(list(steps.items()), len(steps)):
            image = images[next(turn) % len(images)]
            start = clock()
            step(image)
            durations.setdefault(name, []).append(clock() - start)
    micros = {name: statistics.median(found) / 1000 for name, found in durations.items()}
    shares = {f"{name}_ratio": round(took / micros["blob"], 3) for name, took in micros.items() if name != "blob"}
    return {**{f"{name}_us": round(took, 1) for name, took in micros.items()}, **shares}


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=400, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of OpenCV, for both.")
@click.option("--frames", type=click.IntRange(min=1), default=1, help="In turn: 24 are more than a core's caches hold.")
@click.option("--json", "json_file", type=click.File("wb"), help="Write the figures here too.")
def main(rounds: int, threads: int, frames: int, json_file: IO[bytes] | None) -> None:
    """Print a table; exit code 4 where a limit is missed."""
    cv2.setNumThreads(threads)
    source = np.random.default_rng(0)
    noise = (source.integers(0, 256, (720, 1280, 3), np.uint8) for _ in range(frames))
    images = [cast("Image", cv2.GaussianBlur(image, (5, 5), 0)) for image in noise]
    ways: list[tuple[_Resize, int]] = [("letterbox", 640), ("stretch", 224)]
    found = {f"{side} {resize}": _one_way(resize, side, images, rounds) for resize, side in ways}
    for name, row in found.items():
        print(
            f"{name}: {row['ours_us']} us, blobFromImage {row['blob_us']} us: {row['ours_ratio']}x, at most "
            f"{LIMITS[name]}; of it the resize {row['resize_ratio']}x, writing the floats {row['write_ratio']}x; "
            f"integers, where the model takes them, {row['integers_ratio']}x"
        )
    if json_file is not None:
        json_file.write(msgspec.json.format(msgspec.json.encode(found)))
    worst = {name: max(row["ours_ratio"], row["integers_ratio"]) for name, row in found.items()}
    sys.exit(4 if any(ratio > LIMITS[name] for name, ratio in worst.items()) else 0)


if __name__ == "__main__":
    main()
