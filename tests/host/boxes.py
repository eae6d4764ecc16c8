"""Pictures with boxes in them, as YOLO text files and as COCO."""

from __future__ import annotations

import json
from pathlib import Path

from tests.host.images import write_pictures

SIZE_WH = (48, 40)  # of `images.picture`


def write_boxes(folder: Path, form: str, count: int, *, first_box: float = 0.5) -> Path:
    """One box in the middle of each picture; that of the first picture lies about `first_box`, 0-1, from the left."""
    if not folder.exists():
        write_pictures(folder / "images", count, first=100)
    names = [f"{number:03}" for number in range(100, 100 + count)]
    middles = [first_box, *[0.5] * (count - 1)]
    if form == "yolo":
        (folder / "labels").mkdir(exist_ok=True)
        for name, middle in zip(names, middles, strict=True):
            (folder / "labels" / f"{name}.txt").write_text(f"0 {middle} 0.5 0.25 0.5\n")
        return folder
    width, height = SIZE_WH
    images = [{"id": i, "file_name": f"{name}.png", "width": width, "height": height} for i, name in enumerate(names)]
    corners = [((middle - 0.125) * width, height / 4, width / 4, height / 2) for middle in middles]
    boxes = [{"image_id": i, "category_id": 1, "bbox": corner, "iscrowd": 0} for i, corner in enumerate(corners)]
    categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
    whole = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "a.json").write_text(json.dumps(whole))
    return folder
