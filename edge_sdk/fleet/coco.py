"""`CocoWriter` writes detections as COCO results, as they come.

There are two files: FILE is the list of results that pycocotools' `loadRes` takes; FILE with `.images.json` in place of
its suffix has the images and categories of these results, a data set without annotations.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import msgspec

from edge_sdk.core.errors import OutputError, UsageError
from edge_sdk.fleet.messages import DeviceAddress
from edge_sdk.tasks.detection import DetectionMessage

MOST_CATEGORIES = 10_000
"""Largest number of labels; all are kept until the end, and any client may publish new ones for ever."""

_LONGEST_LABEL = 200  # characters
_OTHERS_FROM = 10_000  # category numbers of labels whose class number another model's label has


class CocoWriter:
    """Writes `.partial` files, which get their names when the writer is closed.

    Attributes:
        images: number of their images, including those without detections.
        left_out: number of detections left out: too many labels, a label that is too long, or a box that is not finite.
        images_file: path of the file with images and categories.

    Raises:
        UsageError: a file is there already.
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.results = self.images = self.left_out = 0
        if not path.name:
            raise UsageError(f"{path}: expected the name of a file")
        self.images_file = path.with_suffix(".images.json")
        self._paths = (path, self.images_file)
        for each in self._paths:
            if each.exists():
                raise UsageError(f"{each}: it is there already, and nothing is overwritten; name another file")
        self._categories: dict[tuple[int, str], int] = {}
        self._taken = set[int]()
        self._next_other = _OTHERS_FROM
        self._files: list[IO[bytes]] = []
        try:
            for each in self._paths:
                self._files.append(_partial(each).open("xb"))
            self._files[0].write(b"[")
            self._files[1].write(b'{"images":[')
        except OSError as cause:
            self.discard()
            raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause

    def add(self, address: DeviceAddress, message: DetectionMessage) -> None:
        """Write one frame's detections; raise an OutputError where the disk does not take them."""
        self.images += 1
        levels = (address.site, address.device, address.camera, message.run_id)
        image = {
            "id": self.images,
            "file_name": "/".join([*map(_level, levels), str(message.seq)]),
            "width": message.frame.width,
            "height": message.frame.height,
            "date_captured": message.captured_at,
        }
        try:
            self._files[1].write((b",\n" if self.images > 1 else b"\n") + msgspec.json.encode(image))
            for item in message.detections:
                category = self._category(item.class_id, item.label)
                left, top, right, bottom = item.box_xyxy
                if category is None or not math.isfinite((right - left) + (bottom - top)):
                    self.left_out += 1
                    continue
                result = {
                    "image_id": self.images,
                    "category_id": category,
                    "bbox": [left, top, round(right - left, 1), round(bottom - top, 1)],
                    "score": item.confidence,
                }
                self._files[0].write((b",\n" if self.results else b"\n") + msgspec.json.encode(result))
                self.results += 1
        except OSError as cause:
            raise OutputError(f"{self._paths[0]}: cannot be written: {cause.strerror}") from cause

    def close(self) -> None:
        """Finish both files and give them their names; may be called twice."""
        if not self._files:
            return
        categories = [{"id": number, "name": label} for (_, label), number in self._categories.items()]
        rest: dict[str, Any] = {"annotations": [], "categories": categories}
        try:
            self._files[0].write(b"\n]\n")
            self._files[1].write(b"\n]," + msgspec.json.encode(rest)[1:] + b"\n")
            for file in self._files:
                file.flush()
                os.fsync(file.fileno())
                file.close()
            for path in self._paths:
                _partial(path).rename(path)
        except OSError as cause:
            raise OutputError(f"{self._paths[0]}: cannot be written: {cause.strerror}") from cause
        finally:
            self._files = []

    def _category(self, class_id: int, label: str) -> int | None:
        """Return the class's number, or another if a label has that one; None if there are too many labels."""
        known = self._categories.get((class_id, label))
        if known is not None:
            return known
        if len(self._categories) >= MOST_CATEGORIES or len(label) > _LONGEST_LABEL:
            return None
        number = class_id
        if number in self._taken:
            while self._next_other in self._taken:
                self._next_other += 1
            number = self._next_other
        self._taken.add(number)
        self._categories[class_id, label] = number
        return number

    def discard(self) -> None:
        """Remove both unfinished files."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        for path in self._paths[: len(self._files)]:
            _partial(path).unlink(missing_ok=True)
        self._files = []


def _level(name: str) -> str:
    """Encode a name from the network as one level of a path: none leads out of its folder, and no two are equal."""
    inside = name.strip(".")
    before = name.index(inside) if inside else len(name)
    after = len(name) - before - len(inside)
    kept = "".join(c if c.isalnum() else quote(c, safe="", errors="replace") for c in inside)
    return "%2E" * before + kept + "%2E" * after or "%"  # an empty name; no other name becomes `%` alone


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
