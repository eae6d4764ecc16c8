"""float_file: the file in which a float model travels to its target.

Owns the choice. On x86_64 ONNX Runtime runs float convolutions in blocks as wide as the CPU's vectors, an arrangement
that it makes when it loads ONNX and never of a graph in ORT format, which is finished. Its aarch64 builds have no such
kernels.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from edge_sdk.bundle.target import Target
from edge_sdk_tools.check.functions import nodes_of
from edge_sdk_tools.convert import Converted, convert

_STANDARD = "ai.onnx"


def travels_as_onnx(target: Target) -> bool:
    """Whether float models go to this target as ONNX, and not in ORT format."""
    return target.machine == "x86_64"


def float_file(source: Path, target: Target, folder: Path) -> Converted:
    """Write a float model as its target runs it fastest.

    Args:
        source: a simplified model in one file, without functions.
        target: what must run it.
        folder: for the file; must exist.

    Raises:
        ModelError: when ONNX Runtime cannot convert it.
        OSError: when the disk is full.
    """
    return carried_onnx(source, folder) if travels_as_onnx(target) else convert(source, target, folder)


def carried_onnx(source: Path, folder: Path) -> Converted:
    """Write a model as ONNX with nothing in it but what it computes: the same bytes whenever it is built.

    Args:
        source: a simplified model in one file, without functions.
        folder: for the file; must exist.

    Raises:
        OSError: when the disk is full.
    """
    proto = bare(onnx.load(source, load_external_data=False))
    path = folder / "carried.onnx"
    path.write_bytes(proto.SerializeToString(deterministic=True))
    found = {f"{node.domain or _STANDARD}:{node.op_type}" for node in nodes_of(proto.graph.node)}
    return Converted(path, tuple(sorted(found)))


def bare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model without words, shapes between its layers, training, and operator sets that no node uses.

    Exporters write the lines of the training code, with its paths, beside every node. An older ONNX Runtime may not
    know the newest version of an operator set that is only named, nor of the format.
    """
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for name in ("doc_string", "metadata_props", "training_info"):
        result.ClearField(name)
    graph = result.graph
    for name in ("doc_string", "metadata_props", "value_info", "quantization_annotation"):
        graph.ClearField(name)
    for part in (*nodes_of(result.graph.node), *graph.initializer, *graph.input, *graph.output):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    used = {node.domain for node in nodes_of(result.graph.node)} | {"", _STANDARD}
    kept = [(one.domain, one.version) for one in result.opset_import if one.domain in used]
    del result.opset_import[:]
    result.opset_import.extend(helper.make_opsetid(*one) for one in kept)
    needed = helper.find_min_ir_version_for(result.opset_import, ignore_unknown=True)
    result.ir_version = min(result.ir_version, needed)
    return result
