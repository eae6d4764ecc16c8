"""What an import came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import onnx

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk_tools.dataset import Skipped
from edge_sdk_tools.importing.comparison import OutputDifference
from edge_sdk_tools.importing.probe import Probe

OnProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with (step, done, total), for progress bars."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and how far it is from where it came from.

    Attributes:
        model: the ONNX file.
        source: what it was made from.
        exporter: what made it.
        opset: of ai.onnx.
        nodes: how many the graph has.
        size_mb: of the file, MB of 1e6 bytes.
        input_shape: of the model's input; "batch" stands for one that is free.
        layout: NCHW or NHWC.
        outputs: one an output, with its largest differences.
        probes: on how many inputs they were compared ...
        images: ... of which so many were real images.
        warnings: what the user should know.
        skipped: files among the images that cannot be used.
        replaced: whether an older file was at `model`.
    """

    model: str
    source: str
    exporter: str
    opset: int
    nodes: int
    size_mb: float
    input_shape: tuple[int | str, ...]
    layout: str
    outputs: tuple[OutputDifference, ...]
    probes: int
    images: int
    warnings: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    replaced: bool


def make_report(
    spec: ModelSpec,
    proto: onnx.ModelProto,
    *,
    source: str,
    exporter: str,
    outputs: tuple[OutputDifference, ...],
    probes: Sequence[Probe],
    warnings: Sequence[str],
    skipped: tuple[Skipped, ...],
    replaced: bool,
) -> ImportReport:
    """Fill in a report from what was written; says so when nothing real was compared."""
    images = sum(probe.is_image for probe in probes)
    unseen = () if images else ("no real image was compared; give some with --images FOLDER",)
    return ImportReport(
        model=spec.model,
        source=source,
        exporter=exporter,
        opset=next(int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")),
        nodes=len(proto.graph.node),
        size_mb=proto.ByteSize() / 1e6,
        input_shape=_input_shape(proto),
        layout=spec.input.layout,
        outputs=outputs,
        probes=len(probes),
        images=images,
        warnings=(*warnings, *unseen),
        skipped=skipped,
        replaced=replaced,
    )


def _input_shape(proto: onnx.ModelProto) -> tuple[int | str, ...]:
    weights = {tensor.name for tensor in proto.graph.initializer}
    image = next(value for value in proto.graph.input if value.name not in weights)
    return tuple(d.dim_value if d.HasField("dim_value") else "batch" for d in image.type.tensor_type.shape.dim)
