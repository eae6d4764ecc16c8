"""Class folders: the images of a class lie in a folder of its name, at any depth."""

from __future__ import annotations

from pathlib import Path

from edge_sdk_tools.dataset.class_names import ClassNames
from edge_sdk_tools.dataset.gathering import Found, Labelled
from edge_sdk_tools.dataset.images import Skipped
from edge_sdk_tools.dataset.inspection import is_candidate
from edge_sdk_tools.dataset.truth import ClassTruth
from edge_sdk_tools.dataset.walk import files_below, subfolders

_NEARLY = 0.8  # of difflib: "cats" for "cat" is .86; "day", which is no misspelt "bay", .67
_COMPARED = 20  # folders; comparing thousands of names with thousands of labels takes minutes


def are_class_folders(folder: Path, names: ClassNames) -> bool:
    """Whether one folder at least bears the name of a class, or nearly; folders such as `day` and `night` do not."""
    inside = [path.name for path in subfolders(folder)]
    return any(_is_class(name, names) for name in inside) or any(
        names.hint(name, _NEARLY) for name in inside[:_COMPARED]
    )


def read_class_folders(folder: Path, names: ClassNames) -> Labelled:
    """Read a folder of class folders.

    Args:
        folder: holds a folder a class, named by its label, one of its synonyms or its class id.
        names: of the model's classes.

    Raises:
        DataError: when a folder with images is named as no class.
    """
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
