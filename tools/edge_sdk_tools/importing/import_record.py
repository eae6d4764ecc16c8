"""ImportRecord: what an import measured, kept inside the ONNX file that it wrote.

In the file's metadata, because that goes wherever the file is copied. It is text that anybody can write: it is read
with limits, and believed of this very graph only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import onnx
from google.protobuf.message import DecodeError
from msgspec import Meta

from edge_sdk.core.files import read_regular
from edge_sdk_tools.importing.comparison import OutputDifference

Origin: TypeAlias = Literal["PyTorch", "TensorFlow", "ONNX"]

_KEY = "edge_sdk.import"
_MAX_BYTES = 4096
_MOST_FILE_BYTES = 2 << 30  # of a protobuf message
_Text: TypeAlias = Annotated[str, Meta(max_length=200)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
_Size: TypeAlias = Annotated[float, Meta(ge=0)]


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far the file is from where it came from.

    Attributes:
        origin: where it came from.
        exporter: what wrote it, with its version.
        inputs: on how many inputs both were compared ...
        images: ... of which so many were real images.
        largest: the largest difference of two values on any input, over all outputs.
        largest_share: the largest difference as a share of the largest value on the same input.
        largest_on_images: the largest difference on a real image; None where there was none.
        graph_sha256: of the graph that was compared, in hex.
    """

    origin: Origin
    exporter: _Text
    inputs: _Count
    images: _Count
    largest: _Size
    largest_share: _Size
    largest_on_images: _Size | None
    graph_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def embed_record(
    proto: onnx.ModelProto,
    origin: Origin,
    exporter: str,
    outputs: Sequence[OutputDifference],
    *,
    inputs: int,
    images: int,
) -> None:
    """Write into the metadata of a model how far it is from its origin; what is no finite number is not written.

    Args:
        proto: as it will be written.
        origin: where it comes from.
        exporter: what made it.
        outputs: the comparison, one an output.
        inputs: on how many it was made ...
        images: ... of which so many are real images.
    """
    _drop(proto)
    if not outputs or not all(math.isfinite(o.absolute) and math.isfinite(o.relative) for o in outputs):
        return
    on_images = [output.on_images for output in outputs if output.on_images is not None]
    record = ImportRecord(
        origin=origin,
        exporter=exporter[:200],
        inputs=inputs,
        images=images,
        largest=max(output.absolute for output in outputs),
        largest_share=max(output.relative for output in outputs),
        largest_on_images=max(on_images, default=None),
        graph_sha256=_digest(proto),
    )
    proto.metadata_props.add(key=_KEY, value=msgspec.json.encode(record).decode())


def read_import_record(path: Path) -> ImportRecord | None:
    """The record of an ONNX file; None where it has none, an unreadable one, or another graph than was compared."""
    try:
        proto = onnx.load_model_from_string(read_regular(path, _MOST_FILE_BYTES))
    except (OSError, DecodeError):
        return None
    texts = [entry.value for entry in proto.metadata_props if entry.key == _KEY]
    if len(texts) != 1 or len(texts[0]) > _MAX_BYTES:
        return None
    try:
        record = msgspec.json.decode(texts[0], type=ImportRecord)
    except msgspec.DecodeError:
        return None
    return record if record.graph_sha256 == _digest(proto) else None


def _drop(proto: onnx.ModelProto) -> None:
    """Take out an older record, of the file that this one was made of."""
    kept = [(entry.key, entry.value) for entry in proto.metadata_props if entry.key != _KEY]
    del proto.metadata_props[:]
    for key, value in kept:
        proto.metadata_props.add(key=key, value=value)


def _digest(proto: onnx.ModelProto) -> str:
    """Of the graph, its functions and its opsets; of nothing that says who wrote it when."""
    digest = hashlib.sha256(proto.graph.SerializeToString(deterministic=True))
    for part in (*proto.functions, *proto.opset_import):
        digest.update(part.SerializeToString(deterministic=True))
    return digest.hexdigest()
