"""Import TensorFlow models as ONNX with tf2onnx: a .tflite, .keras or .h5 file, or a SavedModel folder.

TensorFlow is imported only when it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import onnx

from edge_sdk.bundle.model_spec import InputSpec
from edge_sdk.core.errors import ModelError, raising
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.check.report import show_shape
from edge_sdk_tools.importers.comparison import observe
from edge_sdk_tools.importers.plan import ImportReport, check_source, needed_by, plan_import, silenced
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent

OPSET = 17  # that tf2onnx writes; every ONNX Runtime that a target may name runs it
Untyped: TypeAlias = Any  # objects of TensorFlow and tf2onnx, which are not installed with any extra
Layout: TypeAlias = Literal["NCHW", "NHWC"]
_INPUT_NAME = "images"
_SOURCE = "a .tflite, .keras or .h5 file, or the folder of a SavedModel"
_TO_NHWC = (0, 2, 3, 1)
_told_as = partial(raising, ModelError, kinds=Exception)  # TensorFlow and tf2onnx raise whatever their parts raise


class TensorflowModel(msgspec.Struct, frozen=True, eq=False):
    """A loaded TensorFlow model; it `turns` where model.toml has NCHW for one whose own layout is NHWC.

    `run` takes an input in the model's own layout, and returns the outputs in order. `convert` takes an opset and
    whether the input shall be NCHW, and returns the ONNX model.
    """

    where: str
    layout: Layout
    turns: bool
    run: Callable[[Tensor], Sequence[Tensor]]
    convert: Callable[[int, bool], onnx.ModelProto]

    def __call__(self, tensor: Tensor) -> dict[str, Tensor]:
        """Run the model on an input in model.toml's layout, and return its outputs by name."""
        given = f"an input of {show_shape(tensor.shape)} (size_wh, color and layout of model.toml)"
        with _told_as(f"{self.where}: TensorFlow cannot run it on {given}"):
            outputs = self.run(tensor.transpose(_TO_NHWC) if self.turns else tensor)
        names = ["output"] if len(outputs) == 1 else [f"output_{index}" for index in range(len(outputs))]
        return {name: np.array(output) for name, output in zip(names, outputs, strict=True)}


def _load(source: Path, spec: InputSpec) -> TensorflowModel:
    """Load a model; the file name's ending (.tflite, .keras, .h5, or none for a folder) gives the format."""
    load = _load_saved if source.is_dir() else _LOADERS[source.suffix]
    with needed_by("tensorflow", "TensorFlow", "pip install tensorflow tf2onnx"):
        tf, tf2onnx = (importlib.import_module(name) for name in ("tensorflow", "tf2onnx"))
    with _told_as(f"{source}: TensorFlow {tf.__version__} cannot load it"):
        return load(tf, tf2onnx, source, spec)


def _load_lite(tf: Untyped, tf2onnx: Untyped, source: Path, spec: InputSpec) -> TensorflowModel:
    interpreter = tf.lite.Interpreter(model_path=str(source))
    image = _only_input(interpreter.get_input_details(), source)
    if image["dtype"] != np.float32:
        kind = np.dtype(image["dtype"]).name
        raise ModelError(
            f"{source}: input {image['name']!r} is {kind}, expected float32; it was quantized already, import the "
            "model from before that"
        )
    layout = _layout_of(image["shape_signature"], spec, source)
    interpreter.resize_tensor_input(image["index"], _shape(spec, layout))
    interpreter.allocate_tensors()

    def run(tensor: Tensor) -> list[Tensor]:
        interpreter.set_tensor(image["index"], np.ascontiguousarray(tensor))
        interpreter.invoke()
        return [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]

    def convert(opset: int, as_nchw: bool) -> onnx.ModelProto:
        names = [image["name"]] if as_nchw else None
        proto: onnx.ModelProto = tf2onnx.convert.from_tflite(str(source), opset=opset, inputs_as_nchw=names)[0]
        return proto

    return TensorflowModel(str(source), layout, layout != spec.layout, run, convert)


def _load_keras(tf: Untyped, tf2onnx: Untyped, source: Path, spec: InputSpec) -> TensorflowModel:
    model = tf.keras.models.load_model(source, compile=False)
    image = _only_input(model.inputs, source)
    layout = _layout_of(image.shape, spec, source)
    return _from_function(tf, tf2onnx, source, spec, layout, lambda images: model(images, training=False))


def _load_saved(tf: Untyped, tf2onnx: Untyped, source: Path, spec: InputSpec) -> TensorflowModel:
    loaded = tf.saved_model.load(str(source))
    signature = loaded.signatures.get("serving_default")
    if signature is None:
        there = ", ".join(loaded.signatures) or "none"
        raise ModelError(f"{source}: has no signature serving_default (signatures: {there}); save it with one")
    arguments = signature.structured_input_signature[1]
    name = _only_input(list(arguments), source)
    layout = _layout_of(arguments[name].shape, spec, source)

    def call(images: Untyped) -> Untyped:
        # This refers to `loaded`, because its variables must live as long as this function.
        return loaded.signatures["serving_default"](**{name: images})

    return _from_function(tf, tf2onnx, source, spec, layout, call)


def _from_function(
    tf: Untyped, tf2onnx: Untyped, source: Path, spec: InputSpec, layout: Layout, call: Callable[[Untyped], Untyped]
) -> TensorflowModel:
    function = tf.function(call, input_signature=[tf.TensorSpec(_shape(spec, layout), tf.float32, name=_INPUT_NAME)])

    def run(tensor: Tensor) -> list[Tensor]:
        return [output.numpy() for output in tf.nest.flatten(function(tf.constant(tensor)))]

    def convert(opset: int, as_nchw: bool) -> onnx.ModelProto:
        # tf2onnx's own from_function turns values that were captured, such as the mean of a Normalization layer, into
        # inputs.
        convert_to_constants = importlib.import_module("tensorflow.python.framework.convert_to_constants")
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            function.get_concrete_function(), lower_control_flow=False, aggressive_inlining=True
        )
        names = [tensor.name for tensor in frozen.inputs]
        proto: onnx.ModelProto = tf2onnx.convert.from_graph_def(
            frozen.graph.as_graph_def(),
            input_names=names,
            output_names=[tensor.name for tensor in frozen.outputs],
            opset=opset,
            inputs_as_nchw=names if as_nchw else None,
        )[0]
        return proto

    return TensorflowModel(str(source), layout, layout != spec.layout, run, convert)


def _only_input(inputs: Sequence[Untyped], source: Path) -> Untyped:
    if len(inputs) != 1:
        raise ModelError(f"{source}: takes {len(inputs)} inputs, expected one image")
    return inputs[0]


def _layout_of(shape: Sequence[int | None], spec: InputSpec, source: Path) -> Layout:
    """NHWC unless the channels clearly stand second."""
    sizes = tuple(None if size in (None, -1) else int(size) for size in shape)
    if len(sizes) != 4:
        raise ModelError(f"{source}: its input has {len(sizes)} axes, expected 4: batch, height, width, channels")
    layout: Layout = "NCHW" if sizes[1] == spec.channels != sizes[3] else "NHWC"
    if layout == "NCHW" and spec.layout == "NHWC":
        raise ModelError(f'{source}: its input is NCHW; set input.layout = "NCHW" in model.toml')
    expected = _shape(spec, layout)
    if any(size is not None and size != wanted for size, wanted in zip(sizes[1:], expected[1:], strict=True)):
        raise ModelError(
            f"{source}: its input has shape {show_shape(sizes)} ({layout}), model.toml says {show_shape(expected)}; "
            "correct input.size_wh or input.color"
        )
    return layout


def _shape(spec: InputSpec, layout: Layout) -> tuple[int, int, int, int]:
    return msgspec.structs.replace(spec, layout=layout).tensor_shape


_LOADERS = {".tflite": _load_lite, ".keras": _load_keras, ".h5": _load_keras}


def import_tensorflow(
    source: Path,
    model_toml: Path,
    *,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    on_progress: OnProgress = silent,
) -> ImportReport:
    """Convert a TensorFlow model to the ONNX file that model.toml names.

    Where model.toml says NCHW and the model is NHWC, as TensorFlow's are, the ONNX model takes NCHW. The arguments are
    those of `plan_import`.
    """
    check_source(source, f"SOURCE is {_SOURCE}", folder=True)
    if not source.is_dir() and source.suffix not in _LOADERS:
        raise ModelError(f"{source}: expected {_SOURCE}")
    plan = plan_import(source, model_toml, target_name, images)
    with one_step(on_progress, "load"), silenced():
        model = _load(source, plan.spec.input)
        observation = observe(model, model.where, plan.probes)
    with one_step(on_progress, "convert"):
        with _told_as(f"{source}: tf2onnx cannot convert it"), silenced():
            proto = model.convert(plan.limit_opset(OPSET), model.turns)
        comparison = plan.verify(proto, "as converted", observation, "tf2onnx wrote another computation: ", "")
    turned = f", its {model.layout} input turned to {plan.spec.input.layout}" if model.turns else ""
    del model  # the gate loads the ONNX model again
    return plan.finish(proto, "TensorFlow", f"tf2onnx {version('tf2onnx')}{turned}", comparison.outputs)
