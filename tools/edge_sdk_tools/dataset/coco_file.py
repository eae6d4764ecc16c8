"""The JSON file of COCO: its schema, its reading, and the folders where its images may lie.

Owns what the file must hold by itself. Polygons, masks and whatever else stands in it are passed over.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from edge_sdk.core.errors import DataError
from edge_sdk.core.files import open_regular, read_regular
from edge_sdk_tools.dataset.walk import is_folder

_LOOKS_LIKE_COCO = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
_LOOKED_AT = 65536  # bytes; before its first list a file of COCO has `info` at most
_MOST_BYTES = 4 << 30  # the largest public ones, of two million pictures, have about that
_LOCATION = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_BYTE = re.compile(r" \(byte (?P<byte>\d+)\)$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CocoImage(msgspec.Struct, frozen=True, gc=False):
    """Attributes: id, file_name; width and height in pixels, of the picture that was annotated."""

    id: int | str
    file_name: str
    width: float | None = None
    height: float | None = None

    @property
    def size_wh(self) -> tuple[int, int] | None:
        """Width and height in pixels, where the file says both."""
        return (int(self.width), int(self.height)) if self.width and self.height else None


class CocoAnnotation(msgspec.Struct, frozen=True, gc=False):
    """Attributes: bbox is x, y of the upper left corner, width, height, in pixels; iscrowd: a box around many."""

    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: int | bool = 0


class CocoCategory(msgspec.Struct, frozen=True, gc=False):
    """Attributes: id, which annotations name, and name."""

    id: int
    name: str


class CocoFile(msgspec.Struct, frozen=True):
    """What is needed of one file."""

    images: list[CocoImage]
    annotations: list[CocoAnnotation]
    categories: list[CocoCategory]


def read_coco_file(path: Path) -> CocoFile:
    """Read one file.

    Raises:
        DataError: when it cannot be read, is not JSON, or lacks what is needed.
    """
    try:
        data = read_regular(path, _MOST_BYTES).removeprefix(_BYTE_ORDER_MARK)
        return msgspec.json.decode(data, type=CocoFile)
    except OSError as cause:
        raise DataError(f"{path}: cannot be read: {cause.strerror}") from cause
    except msgspec.ValidationError as cause:
        raise DataError(f"{path}: {_explained(str(cause))}") from cause
    except UnicodeDecodeError as cause:
        raise DataError(f"{path}: not UTF-8; save it as UTF-8") from cause
    except (msgspec.DecodeError, RecursionError) as cause:
        raise DataError(f"{path}: not valid JSON: {_located(str(cause), data)}; export or copy it again") from cause


def coco_files(folder: Path) -> list[Path]:
    """The .json files in `folder`, and in `annotations` in it, that look like COCO's, in order of their paths."""
    files = (*folder.glob("*.json"), *(folder / "annotations").glob("*.json"))
    return sorted(path for path in files if not path.name.startswith(".") and _looks_like_coco(path))


def image_folders(path: Path) -> list[Path]:
    """Where the images of this file may lie, in the order in which they are searched.

    Beside it, in `images`, or in a folder of its name: for instances_val2017.json also `val2017`. As COCO itself keeps
    its files in `annotations`, all this is true of the folder above that one too.
    """
    homes = [path.parent, *([path.parent.parent] if path.parent.name == "annotations" else [])]
    split = path.stem.rpartition("_")[2]
    names = (".", "images", path.stem, split, f"images/{split}")
    folders = dict.fromkeys(home / name for home in homes for name in names)
    return [folder for folder in folders if is_folder(folder)]


def _looks_like_coco(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return _LOOKS_LIKE_COCO.search(file.read(_LOOKED_AT)) is not None
    except OSError:
        return False


def _explained(message: str) -> str:
    """What msgspec says, with the place in front: `annotations[3].bbox: expected array of length 4`."""
    location = _LOCATION.search(message)
    what = (message[: location.start()] if location else message).replace("`", "")
    what = what[0].lower() + what[1:]
    if location and location["path"]:
        return f"{location['path']}: {what}"
    return f"{what}; expected a JSON object with images, annotations and categories, as COCO has it"


def _located(message: str, data: bytes) -> str:
    """What msgspec says, with line and text instead of its byte: the culprit is often a NaN."""
    byte = _BYTE.search(message)
    if not byte:
        return message[0].lower() + message[1:]
    place = int(byte["byte"])
    near = data[max(0, place - 1) : place + 20].decode("ascii", "replace")
    what = message[: byte.start()].removeprefix("JSON is malformed: ")
    return f"{what} in line {data.count(10, 0, place) + 1}, near {near!r}"
