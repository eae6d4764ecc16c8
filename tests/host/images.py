"""Pictures for tests: plain colours with noise, so that a tiny model has something to tell apart."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np


def picture(index: int, *, width: int = 48, height: int = 40) -> np.ndarray:
    """uint8 (H, W, 3), BGR; another colour and noise for every index."""
    random = np.random.default_rng(index)
    base = random.integers(0, 256, 3)
    noise = random.normal(0, 40, (height, width, 3))
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def write_pictures(folder: Path, count: int, *, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(first, first + count):
        cv2.imwrite(str(folder / f"{index:03}.png"), picture(index))
    return folder
