"""Class folders: the images of a class lie in a folder of its name, at any depth.

labels.csv: one image a line, with the id or the label of its class.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.datasets.class_names import ClassNames, read_text, whole_number
from edge_sdk_tools.datasets.dataset import ClassTruth
from edge_sdk_tools.datasets.finding import Found, Labelled, listed_file
from edge_sdk_tools.datasets.images import Skipped, files_below, is_candidate, subfolders

_NEARLY = 0.8  # of difflib: "cats" for "cat" is .86; "day", which is no misspelt "bay", .67
_COMPARED = 20  # folders; comparing thousands of names with thousands of labels takes minutes


def are_class_folders(folder: Path, names: ClassNames) -> bool:
    """Whether one folder at least bears the name of a class, or nearly; folders such as `day` and `night` do not."""
    inside = [path.name for path in subfolders(folder)]
    return any(_is_class(name, names) for name in inside) or any(
        names.hint(name, _NEARLY) for name in inside[:_COMPARED]
    )


def read_class_folders(folder: Path, names: ClassNames) -> Labelled:
    """Read a folder of class folders."""
    found, skipped = [], []
    class_ids: dict[str, int] = {}
    for path in filter(is_candidate, files_below(folder)):
        first, *inside = path.relative_to(folder).parts
        if not inside:
            skipped.append(Skipped(path, "lies in no class folder"))
            continue
        if first not in class_ids:
            class_ids[first] = _class_id(folder / first, names)
        found.append(Found(path, ClassTruth(class_ids[first])))
    return Labelled(found, tuple(skipped))


def _is_class(name: str, names: ClassNames) -> bool:
    return bool(names.find(name)) or (_is_number(name) and int(name) < len(names))


def _class_id(folder: Path, names: ClassNames) -> int:
    """A label that is a number goes before the class id of this number."""
    if _is_number(folder.name) and not names.find(folder.name):
        return names.checked(int(folder.name), str(folder))
    return names.class_id(folder.name, str(folder))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


NAME = "labels.csv"
_HEADERS = ["file", "class_id"], ["file", "label"]


def read_labels_csv(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/labels.csv."""
    path = folder / NAME
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        column = _class_column(next(rows, []), path)
        class_ids: dict[Path, int] = {}
        for row in rows:
            if row:
                _add(class_ids, folder, row, column, names, f"{path}: line {rows.line_num}")
    except csv.Error as cause:
        raise DataError(f"{path}: line {rows.line_num}: not comma-separated values: {cause}") from cause
    if not class_ids:
        raise DataError(f"{path}: no images in it, expected one a line after the header")
    return Labelled([Found(file, ClassTruth(class_id)) for file, class_id in sorted(class_ids.items())])


def _class_column(header: Sequence[str], path: Path) -> str:
    """What the second column holds."""
    columns = [name.strip().casefold() for name in header]
    if columns not in _HEADERS:
        raise DataError(f"{path}: line 1 is {shown(','.join(header))}, expected file,class_id or file,label")
    return columns[1]


def _add(
    class_ids: dict[Path, int], folder: Path, row: Sequence[str], column: str, names: ClassNames, where: str
) -> None:
    if len(row) != 2:
        raise DataError(
            f"{where}: has {len(row)} column{'s' if len(row) > 1 else ''}, expected 2: file,{column}; a label with "
            "commas needs quotes"
        )
    name, value = row[0].strip(), row[1].strip()
    file = listed_file(name, [folder], where)
    if file is None:
        raise DataError(f"{where}: no file {shown(name)} in {folder}; take the line out or copy the image there")
    class_id = names.class_id(value, where) if column == "label" else _csv_class_id(value, names, where)
    if class_ids.setdefault(file, class_id) != class_id:
        raise DataError(f"{where}: {shown(name)} has class {class_id} here and {class_ids[file]} above; keep one line")


def _csv_class_id(value: str, names: ClassNames, where: str) -> int:
    class_id = whole_number(value)
    if class_id is None:
        raise DataError(f"{where}: class_id is {shown(value)}, expected a whole number from 0 to {len(names) - 1}")
    return names.checked(class_id, where)
