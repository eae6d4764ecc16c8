"""TensorFlow -> ONNX through tf2onnx: load, observe, convert, compare, write.

Owns the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import onnx

from edge_sdk.core.errors import ModelError, first_line
from edge_sdk_tools.importing.comparison import compare_model
from edge_sdk_tools.importing.import_plan import plan_import
from edge_sdk_tools.importing.import_report import ImportReport, OnProgress
from edge_sdk_tools.importing.observation import observe
from edge_sdk_tools.importing.silence import silenced
from edge_sdk_tools.importing.tensorflow_model import (
    OPSET,
    TensorflowModel,
    check_tensorflow_source,
    load_tensorflow_model,
)


def import_tensorflow(
    source: Path,
    model_toml: Path,
    *,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> ImportReport:
    """Convert a TensorFlow model to the ONNX file that model.toml names.

    Where model.toml says NCHW and the model is NHWC, as TensorFlow's are, the ONNX model takes NCHW.

    Args:
        source: a .tflite, .keras or .h5 file, or the folder of a SavedModel.
        model_toml: describes the input and names the file.
        target_name: name or path of a target, whose ONNX Runtime limits the opset.
        images: folders of images to compare on; model.toml's calibration folder by default.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it; what was at the file's place is still there.
    """
    check_tensorflow_source(source)
    plan = plan_import(source, model_toml, target_name, images)
    on_progress("load", 0, 1)
    with silenced():
        model = load_tensorflow_model(source, plan.spec.input)
        observation = observe(model, plan.probes)
    on_progress("load", 1, 1)
    on_progress("convert", 0, 1)
    proto = _convert(model, plan.limit_opset(OPSET))
    data, converted = proto.SerializeToString(), f"{source} as converted"
    comparison = compare_model(data, converted, plan.probes, observation.outputs, observation.names)
    if comparison.problem is not None:
        blame = "" if comparison.is_explained else "tf2onnx wrote another computation: "
        raise ModelError(f"{source}: {blame}{comparison.problem}")
    on_progress("convert", 1, 1)
    turned = f", its {model.layout} input turned to {model.wanted}" if model.turns else ""
    del model  # the gate loads the ONNX model again
    return plan.finish(proto, "TensorFlow", f"tf2onnx {version('tf2onnx')}{turned}", comparison.outputs)


def _convert(model: TensorflowModel, opset: int) -> onnx.ModelProto:
    try:
        with silenced():
            return model.convert(opset, model.turns)
    except Exception as cause:  # tf2onnx raises whatever its parts raise
        raise ModelError(f"{model.where}: tf2onnx cannot convert it: {first_line(cause)}") from cause
