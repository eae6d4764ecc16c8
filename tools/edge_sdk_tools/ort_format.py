"""ONNX Runtime's own converter to ORT format, without what its package imports beside it.

`onnxruntime.tools` imports PyTorch wherever that is installed, for helpers of its exporter: more than a second that no
conversion needs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import onnxruntime

_PACKAGE = "onnxruntime.tools"


def _import(name: str) -> ModuleType:
    """Import a module of the package without running the package's own `__init__`, unless that has been done."""
    known = sys.modules.get(_PACKAGE)
    if known is None:
        package = ModuleType(_PACKAGE)
        package.__path__ = [str(Path(onnxruntime.__file__).parent / "tools")]
        sys.modules[_PACKAGE] = package
    try:
        return importlib.import_module(f"{_PACKAGE}.{name}")
    finally:
        if known is None:
            # Whoever imports the package later gets the real one.
            del sys.modules[_PACKAGE]


_CONVERTER = _import("convert_onnx_models_to_ort")

OptimizationStyle = _CONVERTER.OptimizationStyle
convert_onnx_models_to_ort = _CONVERTER.convert_onnx_models_to_ort
create_config_from_models = _import("ort_format_model").create_config_from_models
