"""What a report says of the file itself: its size, versions, writer, input and outputs.

Owns which of the file's own words are repeated: those that can be printed.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import onnx

from edge_sdk.core.errors import ModelError
from edge_sdk_tools.check.kernel_table import KernelTable
from edge_sdk_tools.check.model_file import ModelFile
from edge_sdk_tools.check.opset import opsets_of
from edge_sdk_tools.check.report import CheckReport, TensorInfo
from edge_sdk_tools.check.shapes import image_input
from edge_sdk_tools.check.values import declared_value

_LONGEST_PRODUCER = 100


def with_facts(report: CheckReport, file: ModelFile, proto: onnx.ModelProto, table: KernelTable | None) -> CheckReport:
    """Add what holds before anything is changed.

    Args:
        report: what there is so far.
        file: as it was read.
        proto: its skeleton.
        table: that its operators will be held against.
    """
    return msgspec.structs.replace(
        report,
        kernel_table=table.onnxruntime if table else "",
        sha256=file.sha256,
        size_mb=sum(map(len, file.files.values())) / 1e6,
        files=tuple(sorted(name for name in file.files if name)),
        opset=opsets_of(proto).get(""),
        ir_version=int(proto.ir_version),
        producer=_printable(proto.producer_name, proto.producer_version),
    )


def with_tensors(report: CheckReport, proto: onnx.ModelProto, weights: Collection[str]) -> CheckReport:
    """Add image and outputs, as they are now.

    Args:
        report: what there is so far.
        proto: a skeleton.
        weights: names of those of its inputs that are weights.
    """
    try:
        image = _info(image_input(proto, weights))
    except ModelError:
        image = None
    return msgspec.structs.replace(report, input=image, outputs=tuple(_info(output) for output in proto.graph.output))


def _info(declared: onnx.ValueInfoProto) -> TensorInfo:
    value = declared_value(declared)
    return TensorInfo(declared.name, value.element, value.shape)


def _printable(*texts: object) -> str:
    words = [text for text in texts if isinstance(text, str) and text.isprintable() and text]
    return " ".join(words)[:_LONGEST_PRODUCER]
