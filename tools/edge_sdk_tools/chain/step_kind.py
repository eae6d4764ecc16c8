"""Which forms a model has on its way to a device, and in which order."""

from __future__ import annotations

from typing import Literal, TypeAlias

StepKind: TypeAlias = Literal["source", "teacher", "fp32", "simplified", "int8", "ort", "arm"]
"""In the order of a build: where the model was trained (PyTorch); its teacher; the model as given; after the graph was
simplified; quantized (QDQ ONNX); the file that ships, in ORT format or as ONNX; the same file on an emulated ARM."""

STEP_ORDER: tuple[StepKind, ...] = ("source", "teacher", "fp32", "simplified", "int8", "ort", "arm")
