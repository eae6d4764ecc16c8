"""Class names: read the labels of a model, and find the class id for the text of a label or for a number.

The module decides which names count as the same, and writes the errors about an unknown name or id. Each file in the
folder `labels` is a list that a model.toml may name: coco80, coco90, coco91, imagenet1k, voc20. Text files are read as
UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from edge_sdk.core.errors import DataError, ModelError
from edge_sdk.core.files import LIST_BYTES, read_regular
from edge_sdk.core.toml import shown
from edge_sdk.tasks.entry import Labels

_SYNSET = re.compile(r"(n\d{8})(?: (.+))?")
_NAMED = 3

LISTS = {path.stem: path for path in sorted((Path(__file__).parent / "labels").glob("*.txt"))}
"""The lists of labels that have a name, and the file of each."""


class LabelNames(msgspec.Struct, frozen=True):
    """The names in the text of one label, in upper and lower case as written.

    Attributes:
        synset: WordNet id; empty where the text does not begin with one.
        whole: the text behind it, or the id where nothing is behind it.
        synonyms: the parts of `whole`, which commas separate.
    """

    synset: str
    whole: str
    synonyms: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """All names, the surest first."""
        return list(filter(None, dict.fromkeys((self.synset, self.whole, *self.synonyms))))


def names_of(label: str) -> LabelNames:
    """Read the text of a label, the name of a folder or of a category.

    ImageNet's lists begin each line with the WordNet id, and its folders bear it: `n01440764 tench, Tinca tinca`.
    Spaces and `_` are the same. File systems decompose accents, and text files do not: they are the same too.
    """
    text = " ".join(unicodedata.normalize("NFC", label).replace("_", " ").split())
    found = _SYNSET.fullmatch(text)
    synset, whole = (found[1], found[2] or found[1]) if found else ("", text)
    return LabelNames(synset, whole, tuple(part.strip() for part in whole.split(",")))


def read_labels(path: Path) -> Labels:
    """Read the labels, one per line, in output order; raise ModelError.

    Where there is no such file and its name is that of one of `LISTS`, that list is read.
    """
    try:
        labels = Labels.of(read_regular(path, LIST_BYTES))
    except FileNotFoundError:
        if path.name in LISTS:
            return read_labels(LISTS[path.name])
        raise ModelError(f"{path}: no such labels file, and no list of this name ({', '.join(LISTS)})") from None
    except UnicodeDecodeError as cause:
        line = cause.object.count(b"\n", 0, cause.start) + 1
        raise ModelError(f"{path}: labels cannot be read: line {line} is not UTF-8; save it as UTF-8") from cause
    except (OSError, ValueError) as cause:
        raise ModelError(f"{path}: labels cannot be read: {getattr(cause, 'strerror', cause)}") from cause
    if not labels:
        raise ModelError(f"{path}: no labels in it, expected one a line in output order")
    return labels


class ClassNames:
    """The model's classes, by name; and how many keypoints each object has, 0 where the model does not say.

    `names_of` gives the names of each class. A name that is looked up is split in the same way: its WordNet id is tried
    first, then the whole text, then its synonyms, without regard to case. Where several classes share a name, the one
    with the same case is meant, then the one whose whole label it is: ImageNet has "cardigan", a garment, and
    "Cardigan, Cardigan Welsh corgi", a dog.
    """

    def __init__(self, labels: Sequence[str], *, background_class: bool = False, keypoints: int = 0) -> None:
        self.keypoints = keypoints
        self._labels = tuple(labels[1:] if background_class else labels)
        self._names = [names_of(label) for label in self._labels]
        self._known: dict[str, list[tuple[int, str]]] = {}  # class ids and spellings of each name
        for class_id, names in enumerate(self._names):
            for text in names.texts:
                self._known.setdefault(text.casefold(), []).append((class_id, text))

    def __len__(self) -> int:
        return len(self._labels)

    def find(self, name: str) -> list[int]:
        """Return the ids of the classes with this name: none, one, or several that share it."""
        text = next((text for text in names_of(name).texts if text.casefold() in self._known), "")
        same = self._known.get(text.casefold(), [])
        same = [(i, other) for i, other in same if other == text] or same
        same = [(i, other) for i, other in same if other in (self._names[i].synset, self._names[i].whole)] or same
        return list(dict.fromkeys(i for i, _ in same))

    def class_id(self, name: str, where: str, beside: Collection[str] = ()) -> int:
        """Return the id of the one class with this name; a DataError says that no class has it, or several do.

        It names `where` that stands, and says how many of the names `beside` it are no labels either.
        """
        found = self.find(name)
        if not found:
            unknown = sum(not self.find(other) for other in beside if other != name)
            more = f" (nor are {unknown} of the {len(beside) - 1} names beside it)" if unknown else ""
            near = difflib.get_close_matches(names_of(name).whole.casefold(), self._known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            if names_of(name).synset:
                hint = "; give a labels file whose lines begin with WordNet ids, or name the folders as the labels"
            few = len(self) <= _NAMED
            expected = ", ".join(self._labels) if few else f"one of {len(self)} such as {shown(self._labels[0])}"
            raise DataError(f"{where}: {shown(name)} is no label of the model{more}, expected {expected}{hint}")
        if len(found) > 1:
            shared = " and ".join(map(str, found[:_NAMED]))
            raise DataError(
                f"{where}: {shown(name)} is ambiguous, the classes {shared} share it; name the class by its id, or "
                "make the labels differ"
            )
        return found[0]

    def checked(self, class_id: int, where: str) -> int:
        """Return the class id; raise a DataError where no label of the model has it."""
        if not 0 <= class_id < len(self):
            raise DataError(f"{where}: class_id is {class_id}, expected 0 to {len(self) - 1}, one a label of the model")
        return class_id


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # float() takes nan and 1_0 too
_MOST_BYTES = 1 << 30  # ten million images, a line of 100 bytes each
_EXACT = 2**53  # from here on a float skips whole numbers


def read_text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """Return the text of a file, with a newline at the end of each line; raise DataError."""
    try:
        text = read_regular(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise DataError(f"{path}: not UTF-8 (byte {cause.start}); save it as UTF-8") from cause
    except OSError as cause:
        raise DataError(f"{path}: cannot be read: {cause.strerror}") from cause
    return text.replace("\r\n", "\n").replace("\r", "\n")


def finite_number(text: str) -> float | None:
    """Return the number that `text` is; None for anything else, nan and inf included."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def whole_number(text: str) -> int | None:
    """Return the whole number that `text` is, 3.0 included; None for anything else."""
    value = finite_number(text)
    return int(value) if value is not None and value.is_integer() and abs(value) < _EXACT else None
