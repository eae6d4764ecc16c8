"""Operators of onnxruntime-extensions in models that are built.

Owns their way into sessions that are no `Session`; those find them by themselves.
"""

from __future__ import annotations

import importlib.util

import onnx
import onnxruntime as ort

from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, extension_libraries


def has_extensions() -> bool:
    """Whether the package is installed here."""
    return importlib.util.find_spec("onnxruntime_extensions") is not None


def extension_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the main graph that are operators of the package."""
    return [node for node in proto.graph.node if node.domain == EXTENSIONS_DOMAIN]


def register_extensions(options: ort.SessionOptions, model: bytes) -> None:
    """Make the package's operators known to a session that is about to be opened, where its model names them."""
    for library in extension_libraries(model):
        options.register_custom_ops_library(str(library))
