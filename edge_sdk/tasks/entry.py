"""`TaskEntry`, the type of the entries of `TASKS` in `tasks.detection`, and the header of every task's message.

A task's module holds its result, its message and the functions of its entry; no other device code branches on the task.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from edge_sdk.core.frame import Inferred, Result
from edge_sdk.core.protocols import Stage
from edge_sdk.tasks.outputs import Decoder
from edge_sdk.tasks.spec import Task, TaskSpec

if TYPE_CHECKING:
    from edge_sdk.core.drawing import Drawing  # it loads OpenCV

Unit = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]
Moment = Annotated[datetime, Meta(tz=True)]
Clock: TypeAlias = Literal["unsynchronised"] | msgspec.UnsetType
"""`unsynchronised` while no time server has set the device's clock; its times may then be wrong by any amount."""


class ModelRef(msgspec.Struct, frozen=True, gc=False):
    """The model that gave a result: the bundle's name and version, its manifest's SHA-256 in hex, and the variant.

    `variant` is present in results, because it may change between results; `then` is the second model, if any.
    """

    name: str
    version: int
    sha256: str
    variant: str | msgspec.UnsetType = msgspec.UNSET
    then: ModelRef | msgspec.UnsetType = msgspec.UNSET


class FrameSize(msgspec.Struct, frozen=True, gc=False):
    """Size of the original frame in pixels, the space of every box."""

    width: Count
    height: Count


class ResultItem(msgspec.Struct, frozen=True, gc=False):
    """One item of a result's message; `strength`, 0-1, is its confidence, score or share of the picture."""

    label: str

    @property
    def strength(self) -> float:
        """The number that a text line shows beside the label."""
        strength: float = getattr(self, "confidence", 0.0)
        return strength

    @property
    def then(self) -> NestedResult | msgspec.UnsetType:
        """The second model's result for this item; UNSET without one."""
        return msgspec.UNSET


class _Listing(msgspec.Struct, frozen=True, gc=False):
    """A message whose last field is a list of items with a label each."""

    @property
    def items(self) -> list[ResultItem]:
        """The items of the message, the strongest first."""
        found: list[ResultItem] = getattr(self, self.__struct_fields__[-1])
        return found


class ResultMessage(_Listing, frozen=True, gc=False, kw_only=True, tag_field="task"):
    """The header of every result; a task's message adds one field, a list of items with a label each.

    `shown` is how many items a text line names; `edge-sdk watch` prints a line if the first `news` items change.
    `file` is the name of the image file, below the folder that is the source; left out for cameras, streams and videos.
    """

    shown: ClassVar[int] = 1000
    news: ClassVar[int] = 1000

    schema: Literal[1] = 1
    stream: Literal["result"] = "result"
    device: str
    camera: str
    boot_id: str
    run_id: str
    seq: Count
    captured_at: Moment
    age_ms: float
    infer_ms: Amount
    clock: Clock = msgspec.UNSET
    model: ModelRef
    frame: FrameSize
    file: str | msgspec.UnsetType = msgspec.UNSET
    not_finite: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class NestedResult(_Listing, frozen=True, gc=False, kw_only=True, tag_field="task"):
    """A second model's result for one object; each task adds its list of items, as in its message."""

    infer_ms: Amount
    not_finite: Literal[True] | msgspec.UnsetType = msgspec.UNSET


_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # boxes to 0.1 px, confidences and shares to 0.0001


def rounded(rows: NDArray[np.float32], class_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], list[int]]:
    """Round rows (N, 5) of box and confidence, or (N, 1) of confidence, and drop rows with a value that is not finite.

    Returns:
        float64 (M, 5) or (M, 1), boxes to 0.1 px and confidences to 0.0001, and the M class ids.
    """
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        kept = is_finite.all(axis=1)
        rows, class_ids = rows[kept], class_ids[kept]
    steps = _STEPS[-rows.shape[1] :]
    return np.rint(rows * steps) / steps, class_ids.tolist()


class Labels(tuple[str, ...]):
    """Labels in output order, and the bytes of their file, which may hold more than names: a gallery's vectors."""

    data: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> Labels:
        """Read one label per line of UTF-8 text, stripped of spaces, or the distinct `names` of an .npz.

        Raises:
            ValueError: the data are neither.
        """
        if data.startswith(_ZIP):
            labels = cls(dict.fromkeys(map(str, gallery_arrays(data, "names")[0].reshape(-1).tolist())))
        else:
            labels = cls(line.strip() for line in data.decode("utf-8-sig").rstrip().splitlines())
        labels.data = data
        return labels

    @property
    def file(self) -> bytes:
        """The labels file of a bundle: one label per line, or the original if it has vectors or blank labels."""
        if self.suffix == ".npz" or any(
            line and not line.strip() for line in self.data.decode("utf-8-sig").split("\n")
        ):
            return self.data
        return "".join(f"{label}\n" for label in self).encode()

    @property
    def suffix(self) -> str:
        """The suffix of the labels file: `.npz` for a gallery, else `.txt`."""
        return ".npz" if self.data.startswith(_ZIP) else ".txt"


_ZIP = b"PK\x03\x04"
_UNPACKED_BYTES = 1 << 26  # of all arrays of a gallery: 32,000 vectors of 512 numbers


def gallery_arrays(data: bytes, *names: str) -> list[NDArray[Any]]:
    """Read arrays of an .npz by name; raise ValueError if one is missing or the file unpacks to over 64 MiB."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if sum(member.file_size for member in arrays.zip.infolist()) <= _UNPACKED_BYTES:
                return [arrays[name] for name in names]
    except Exception:  # noqa: BLE001 - numpy and zipfile raise errors of ten types for other bytes
        # Not chained: a header that claims huge arrays raises MemoryError, which is not a shortage of memory.
        raise ValueError(f"not an .npz with {' and '.join(names)}") from None
    raise ValueError(f"it unpacks to more than {_UNPACKED_BYTES >> 20} MiB")


class StageParts(NamedTuple):
    """The parts from which `TaskEntry.stage` builds a decode stage.

    Attributes:
        read: the decoder's reader of outputs.
        places: indices of the model's outputs that `read` takes, in its own order.
        labels: labels in output order; empty texts if only their number is known.
        names: labels by class id; empty if only their number is known.
    """

    read: Any
    places: tuple[int, ...]
    decoder: Decoder
    spec: TaskSpec
    labels: Sequence[str]
    names: Mapping[int, str]


class TaskEntry(NamedTuple):
    """Types and functions of one task.

    Attributes:
        result: type of the task's results.
        message: type of the message that publishes a result.
        items: (result, function from class id to label) -> the message's items, rounded, without NaN and infinity.
        draw: draws a result on a picture.
        stage: builds the decode stage; raises ModelError for labels that it cannot use.
    """

    task: Task
    result: type[Result]
    message: type[ResultMessage]
    items: Callable[[Any, Callable[[int], str]], list[Any]]
    draw: Callable[[Drawing, Any], None]
    stage: Callable[[StageParts], Stage[Inferred, Result]]

    def payload(self, result: Result, label: Callable[[int], str]) -> dict[str, Any]:
        """Return the fields of a result's message without those of the header."""
        return {self.message.__struct_fields__[-1]: self.items(result, label)}


def nested_type(entry: TaskEntry) -> type[NestedResult]:
    """Return the subclass of `NestedResult` that holds a task's list of items, for use in a detection's item."""
    field = msgspec.structs.fields(entry.message)[-1]
    nested: Any = msgspec.defstruct(
        entry.message.__name__.replace("Message", "Nested"),
        [(field.name, field.type)],
        bases=(NestedResult,),
        module=__name__,
        namespace={"__doc__": entry.message.__doc__},
        frozen=True,
        gc=False,
        kw_only=True,
        tag=entry.task,
    )
    kind: type[NestedResult] = nested
    return kind
