"""`python -m benchmarks.prepare_cost`: from a 1280x720 frame to a model's input, beside OpenCV's blobFromImage.

Both fill float32 NCHW, RGB, divided by 255, with one thread; rounds alternate in one process, and the values are
compared before anything is timed. Only ratios mean anything.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import IO, Literal, TypeAlias, cast

import click
import cv2
import msgspec
import numpy as np

from edge_sdk.frame import Frame, Image
from edge_sdk.model_spec import InputSpec
from edge_sdk.prepare import Prepare

_Resize: TypeAlias = Literal["letterbox", "stretch"]
_SCALE = 1 / 255
_LIMITS = {"640 letterbox": 0.12, "224 stretch": 0.85}


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


def _pair(resize: _Resize, side: int, image: Image) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Ours and theirs; the same values."""
    prepare = Prepare(InputSpec(size_wh=(side, side), resize=resize, std=(255.0, 255.0, 255.0)))
    frame = Frame(image, 0, 0.0, 0, "camera")
    by_hand = _letterboxed if resize == "letterbox" else _stretched
    ours, theirs = (lambda: prepare(frame).tensor), (lambda: by_hand(image, side))
    np.testing.assert_allclose(ours(), theirs(), atol=1e-6)
    return ours, theirs


def _one_way(resize: _Resize, side: int, image: Image, rounds: int) -> dict[str, float]:
    durations: list[list[int]] = [[], []]
    pair = _pair(resize, side, image)
    for _ in range(rounds):
        for step, found in zip(pair, durations, strict=True):
            start = time.perf_counter_ns()
            step()
            found.append(time.perf_counter_ns() - start)
    ours, theirs = (statistics.median(found) / 1000 for found in durations)
    return {"ours_us": round(ours, 1), "blob_us": round(theirs, 1), "ratio": round(ours / theirs, 3)}


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=400, show_default=True)
@click.option("--json", "json_file", type=click.File("wb"), help="Write the figures here too.")
def main(rounds: int, json_file: IO[bytes] | None) -> None:
    """Print a table; exit code 4 where a limit is missed."""
    cv2.setNumThreads(1)
    image = cast("Image", np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8))
    image = cast("Image", cv2.GaussianBlur(image, (5, 5), 0))
    ways: list[tuple[_Resize, int]] = [("letterbox", 640), ("stretch", 224)]
    found = {f"{side} {resize}": _one_way(resize, side, image, rounds) for resize, side in ways}
    for name, row in found.items():
        limit = _LIMITS[name]
        print(f"{name}: {row['ours_us']} us, blobFromImage {row['blob_us']} us: {row['ratio']}x, at most {limit}")
    if json_file is not None:
        json_file.write(msgspec.json.format(msgspec.json.encode(found)))
    sys.exit(4 if any(row["ratio"] > _LIMITS[name] for name, row in found.items()) else 0)


if __name__ == "__main__":
    main()
