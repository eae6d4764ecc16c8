"""labels.csv: one image a line, with the id or the label of its class."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from edge_sdk.core.errors import DataError
from edge_sdk.core.toml import shown
from edge_sdk_tools.dataset.class_names import ClassNames
from edge_sdk_tools.dataset.gathering import Found, Labelled
from edge_sdk_tools.dataset.listed import listed_file
from edge_sdk_tools.dataset.text_file import read_text, whole_number
from edge_sdk_tools.dataset.truth import ClassTruth

NAME = "labels.csv"
_HEADERS = ["file", "class_id"], ["file", "label"]


def read_labels_csv(folder: Path, names: ClassNames) -> Labelled:
    """Read FOLDER/labels.csv.

    Args:
        folder: what the list names lies in it.
        names: of the model's classes.

    Raises:
        DataError: when something is wrong with it; it names the file and the line.
    """
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
    class_id = names.class_id(value, where) if column == "label" else _class_id(value, names, where)
    if class_ids.setdefault(file, class_id) != class_id:
        raise DataError(f"{where}: {shown(name)} has class {class_id} here and {class_ids[file]} above; keep one line")


def _class_id(value: str, names: ClassNames, where: str) -> int:
    class_id = whole_number(value)
    if class_id is None:
        raise DataError(f"{where}: class_id is {shown(value)}, expected a whole number from 0 to {len(names) - 1}")
    return names.checked(class_id, where)
