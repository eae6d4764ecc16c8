"""CocoWriter: detections as COCO results, as they come.

Two files: FILE is the list of results that pycocotools' `loadRes` takes; FILE with `.images.json` in place of its
suffix has the images and categories that their numbers mean, which is a data set without annotations.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any

import msgspec

from edge_sdk.errors import OutputError, UsageError
from edge_sdk.fleet.address import Address
from edge_sdk.publishing import DetectionMessage

_OTHERS_FROM = 10_000  # category numbers of labels whose class number another model's label has


class CocoWriter:
    """Writes beside the files' names, and gives them when it is closed: a killed program leaves `.partial` files.

    Args:
        path: of the results; neither file may be there.

    Attributes:
        results: how many were written.
        images: how many they are of, those with nothing on them too.
        images_file: what names them.

    Raises:
        UsageError: a file is there already.
        OutputError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.results = self.images = 0
        if not path.name:
            raise UsageError(f"{path}: expected the name of a file")
        self.images_file = path.with_suffix(".images.json")
        self._paths = (path, self.images_file)
        for each in self._paths:
            if each.exists():
                raise UsageError(f"{each}: it is there already, and nothing is overwritten; name another file")
        self._categories: dict[tuple[int, str], int] = {}
        self._files: list[IO[bytes]] = []
        try:
            for each in self._paths:
                self._files.append(_partial(each).open("xb"))
            self._write(0, b"[")
            self._write(1, b'{"images":[')
        except OSError as cause:
            self.discard()
            raise OutputError(f"{path}: cannot be written: {cause.strerror}") from cause

    def add(self, address: Address, message: DetectionMessage) -> None:
        """One frame's detections.

        Raises:
            OutputError: the disk is full, say.
        """
        self.images += 1
        image = {
            "id": self.images,
            "file_name": f"{address.site}/{address.device}/{address.camera}/{message.run_id}/{message.seq}",
            "width": message.frame.width,
            "height": message.frame.height,
            "date_captured": message.captured_at,
        }
        try:
            self._write(1, (b",\n" if self.images > 1 else b"\n") + msgspec.json.encode(image))
            for item in message.detections:
                left, top, right, bottom = item.box_xyxy
                result = {
                    "image_id": self.images,
                    "category_id": self._category(item.class_id, item.label),
                    "bbox": [left, top, round(right - left, 1), round(bottom - top, 1)],
                    "score": item.confidence,
                }
                self._write(0, (b",\n" if self.results else b"\n") + msgspec.json.encode(result))
                self.results += 1
        except OSError as cause:
            raise OutputError(f"{self._paths[0]}: cannot be written: {cause.strerror}") from cause

    def close(self) -> None:
        """Finish both files and give them their names; may be called twice.

        Raises:
            OutputError: the disk is full, say.
        """
        if not self._files:
            return
        categories = [{"id": number, "name": label} for (_, label), number in self._categories.items()]
        rest: dict[str, Any] = {"annotations": [], "categories": categories}
        try:
            self._write(0, b"\n]\n")
            self._write(1, b"\n]," + msgspec.json.encode(rest)[1:] + b"\n")
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

    def _category(self, class_id: int, label: str) -> int:
        """The class's number, unless another label has it."""
        known = self._categories.get((class_id, label))
        if known is not None:
            return known
        taken = set(self._categories.values())
        number = class_id if class_id not in taken else max(_OTHERS_FROM, *(n + 1 for n in taken))
        self._categories[class_id, label] = number
        return number

    def _write(self, index: int, data: bytes) -> None:
        self._files[index].write(data)

    def discard(self) -> None:
        """Leave nothing behind."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        for path in self._paths[: len(self._files)]:
            _partial(path).unlink(missing_ok=True)
        self._files = []


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")
