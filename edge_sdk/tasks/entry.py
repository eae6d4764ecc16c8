"""What a task brings along: `TaskEntry`, one of the table `TASKS` in `tasks.detection`, and the header of its message.

A task's module holds its result, its message and the functions of its entry; nothing else asks which task it is.
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
"""`unsynchronised` while no time server has set the device's clock, and then its times may be wrong by any amount."""


class ModelRef(msgspec.Struct, frozen=True, gc=False):
    """The model that answered: the bundle's name, its version, its manifest's SHA-256 in hex, and which of its models.

    `variant` is in results, for it may change from one to the next; `then` is the second model, where there is one.
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
    """One item of a result's message; `strength`, 0-1, is how sure it is, or how large."""

    label: str

    @property
    def strength(self) -> float:
        """What a line for people says of it beside its label."""
        strength: float = getattr(self, "confidence", 0.0)
        return strength

    @property
    def then(self) -> NestedResult | msgspec.UnsetType:
        """What a second model says of it, where there is one."""
        return msgspec.UNSET


class _Listing(msgspec.Struct, frozen=True, gc=False):
    """A message whose last field is a list of items with a label each."""

    @property
    def items(self) -> list[ResultItem]:
        """What the picture shows, the strongest first."""
        found: list[ResultItem] = getattr(self, self.__struct_fields__[-1])
        return found


class ResultMessage(_Listing, frozen=True, gc=False, kw_only=True, tag_field="task"):
    """The header of every result; a task's message adds one field, a list of items with a label each.

    `shown` and `news` are how many items a line for people names, and how many of them are news when they change.
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
    not_finite: Literal[True] | msgspec.UnsetType = msgspec.UNSET


class NestedResult(_Listing, frozen=True, gc=False, kw_only=True, tag_field="task"):
    """What a second model says of one object; each task adds its list of items, as to its message."""

    infer_ms: Amount
    not_finite: Literal[True] | msgspec.UnsetType = msgspec.UNSET


_STEPS = np.array([10.0, 10.0, 10.0, 10.0, 10_000.0])  # boxes to 0.1 px, confidences and shares to 0.0001


def rounded(rows: NDArray[np.float32], class_ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], list[int]]:
    """Round the rows, (N, 5) with a box and a confidence or (N, 1) with a confidence; leave out those not finite."""
    is_finite = np.isfinite(rows)
    if not is_finite.all():
        kept = is_finite.all(axis=1)
        rows, class_ids = rows[kept], class_ids[kept]
    steps = _STEPS[-rows.shape[1] :]
    return np.rint(rows * steps) / steps, class_ids.tolist()


class Labels(tuple[str, ...]):
    """Labels in output order, and the bytes of their file, which for some tasks holds more than names."""

    data: bytes = b""

    @classmethod
    def of(cls, data: bytes) -> Labels:
        """Read one label a line in UTF-8, without the spaces around them; or `names` of an .npz, each counted once.

        Raises:
            ValueError: it is neither.
        """
        if data.startswith(_ZIP):
            labels = cls(dict.fromkeys(map(str, gallery_arrays(data, "names")[0].reshape(-1).tolist())))
        else:
            labels = cls(line.strip() for line in data.decode("utf-8-sig").rstrip().splitlines())
        labels.data = data
        return labels

    @property
    def file(self) -> bytes:
        """What a bundle keeps of them: one a line, or the file itself where that says more, such as spaces."""
        if self.suffix == ".npz" or any(
            line and not line.strip() for line in self.data.decode("utf-8-sig").split("\n")
        ):
            return self.data
        return "".join(f"{label}\n" for label in self).encode()

    @property
    def suffix(self) -> str:
        """The ending of their file."""
        return ".npz" if self.data.startswith(_ZIP) else ".txt"


_ZIP = b"PK\x03\x04"
_UNPACKED_BYTES = 1 << 26  # of all arrays of a gallery: 32,000 vectors of 512 numbers


def gallery_arrays(data: bytes, *names: str) -> list[NDArray[Any]]:
    """Read arrays of an .npz by their names; raise ValueError where it has none such, or unpacks to over 64 MiB."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            if sum(member.file_size for member in arrays.zip.infolist()) > _UNPACKED_BYTES:
                raise ValueError(f"it unpacks to more than {_UNPACKED_BYTES >> 20} MiB")
            return [arrays[name] for name in names]
    except Exception as cause:  # noqa: BLE001 - numpy and zipfile raise errors of ten types for other bytes
        what = f"not an .npz with {' and '.join(names)}"
        # Without the cause: a header that claims too much is no shortage of memory.
        raise ValueError(f"{what} ({type(cause).__name__}: {cause})") from None


class StageParts(NamedTuple):
    """What the stage of a task is made of.

    Attributes:
        read: the decoder's reader of outputs.
        places: indices of the model's outputs that it reads, in its own order.
        labels: in output order; `names` has them by class id, and none where only their number is known.
    """

    read: Any
    places: tuple[int, ...]
    decoder: Decoder
    spec: TaskSpec
    labels: Sequence[str]
    names: Mapping[int, str]


class TaskEntry(NamedTuple):
    """One task, as all of the device sees it.

    Attributes:
        result: what its models give.
        message: the same, published.
        items: (result, label of a class id) -> the items of its message, rounded, without what JSON cannot hold.
        draw: draws a result on a picture.
        stage: makes the stage that decodes. Raises ModelError for labels that it cannot use.
    """

    task: Task
    result: type[Result]
    message: type[ResultMessage]
    items: Callable[[Any, Callable[[int], str]], list[Any]]
    draw: Callable[[Drawing, Any], None]
    stage: Callable[[StageParts], Stage[Inferred, Result]]

    def payload(self, result: Result, label: Callable[[int], str]) -> dict[str, Any]:
        """Return what the message of a result holds beside its header."""
        return {self.message.__struct_fields__[-1]: self.items(result, label)}


def nested_type(entry: TaskEntry) -> type[NestedResult]:
    """Return the type of a task's results within another's item: its list of items, and what `NestedResult` has."""
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
