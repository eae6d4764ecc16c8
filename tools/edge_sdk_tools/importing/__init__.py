"""Models of other frameworks -> ONNX and a model.toml beside it."""

from edge_sdk_tools.importing.darknet import import_darknet

__all__ = ["import_darknet"]
