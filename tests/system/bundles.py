"""Real bundles for system tests, built once a test session for the machine that runs them."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path

import cv2
import numpy as np

from edge_sdk_tools.build import build
from tests.host.projects import write_detector

NATIVE_TARGET = {"x86_64": "x86_64", "aarch64": "arm64"}[platform.machine()]


def build_cell_detector(folder: Path, target: str = NATIVE_TARGET) -> Path:
    """A detector of bright cells: 4 x 4 of them, boxes exactly the cell, class red or blue."""
    output = folder / f"cells-{target}.edge"
    build(write_detector(folder / f"project-{target}"), target, output, bundle_version=1)
    return output


def copy_bundle(path: Path, to: Path, version: int) -> Path:
    """The same, with another version's number in its manifest."""
    shutil.copytree(path, to)
    manifest = to / "manifest.json"
    changed = {**json.loads(manifest.read_text()), "version": version}
    manifest.write_text(json.dumps(changed, indent=2))
    return to


def replace_bundle(path: Path, version: int) -> None:
    """Have another version in a bundle's folder, as whoever deploys one would: at once."""
    other, before = path.with_suffix(".new"), path.with_suffix(".old")
    copy_bundle(path, other, version)
    path.rename(before)
    other.rename(path)
    shutil.rmtree(before)


def write_cell_pictures(folder: Path, count: int = 4, side: int = 128) -> Path:
    """Black pictures of `side` pixels; picture i has cell (i % 4, 1) red and cell (3, i % 4) blue."""
    folder.mkdir()
    for index in range(count):
        cv2.imwrite(str(folder / f"{index}.png"), cell_picture(index, side))
    return folder


def cell_picture(index: int, side: int = 128) -> np.ndarray:
    """uint8 (side, side, 3), BGR."""
    cell = side // 4
    image = np.zeros((side, side, 3), np.uint8)
    for (column, row), color in (((index % 4, 1), (140, 140, 255)), ((3, index % 4), (255, 140, 140))):
        image[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = color
    return image
