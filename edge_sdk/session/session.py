"""Session: one model in ONNX Runtime, with inputs and outputs bound once.

Owns the output buffers and the replay of golden inputs.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import onnxruntime as ort

from edge_sdk.bundle import Bundle
from edge_sdk.errors import BundleError, IncompatibleError, SessionError
from edge_sdk.frame import Inferred, Prepared, Tensor
from edge_sdk.golden import largest_difference
from edge_sdk.prepare import Prepare
from edge_sdk.session.opening import first_line, onnxruntime_version, open_inference
from edge_sdk.session.settings import SessionSettings

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
_INPUT_TYPES = ("tensor(float)", "tensor(uint8)")


class Session:
    """A loaded model; not for several threads at once, because its outputs are overwritten by the next call.

    Args:
        model: the bytes of an .ort or .onnx file, verified by the caller.
        settings: threads and providers.
        where: what to call the model in errors.

    Attributes:
        inference: ONNX Runtime's own session, for measuring against.
        input_name, input_shape, input_dtype: of its one input; float32, or uint8 where levels are taken as they are.
        replay_ns: of the fastest run of a golden input; 0 before there was one.

    Raises:
        SessionError: when ONNX Runtime cannot load it, or it has not one input, float32 or uint8, of fixed shape.
    """

    def __init__(self, model: bytes, settings: SessionSettings, where: str) -> None:
        self._where = where
        self.inference = open_inference(model, settings, where)
        self.input_name, self.input_shape, self.input_dtype = _only_input(self.inference, where)
        self._binding = self.inference.io_binding()
        self._names = [output.name for output in self.inference.get_outputs()]
        self._outputs = self._bind_outputs()
        self._bound: Tensor | None = None
        self.replay_ns = 0

    @classmethod
    def open(cls, bundle: Bundle, settings: SessionSettings | None = None) -> Session:
        """Load the variant of a verified bundle that runs, with the settings that it promises unless others are given.

        Raises:
            IncompatibleError: this ONNX Runtime cannot load it.
            BundleError: it takes another tensor than the manifest says.
        """
        promise = bundle.manifest
        chosen = settings or SessionSettings(promise.providers, promise.intra_op_num_threads, promise.allow_spinning)
        file = promise.variants[0].file
        try:
            session = cls(bundle.read(file), chosen, str(bundle.path / file))
        except SessionError as cause:
            raise IncompatibleError(str(cause)) from cause
        spec, dtype = promise.prepared()
        if (session.input_dtype, session.input_shape) != (np.dtype(dtype), spec.tensor_shape):
            raise BundleError(
                f"{bundle.path / file}: takes {session.input_dtype} {session.input_shape}, the manifest says "
                f"{dtype} {spec.tensor_shape}; build the bundle again"
            )
        return session

    def twin(self) -> Session:
        """Another session on the same loaded model, with buffers of its own, so that another thread may run it."""
        other = copy.copy(self)
        other._binding = self.inference.io_binding()
        other._outputs = other._bind_outputs()
        other._bound = None
        return other

    def __call__(self, prepared: Prepared, /) -> Inferred:
        """Run the model on one prepared frame."""
        start_ns = time.perf_counter_ns()
        outputs = self.run(prepared.tensor)
        return Inferred(outputs, time.perf_counter_ns() - start_ns, prepared)

    def run(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """Run the model on a tensor of the input's shape and type, C-contiguous.

        Returns:
            One array an output; overwritten by the next call where shapes are fixed.

        Raises:
            SessionError: when the tensor does not fit, or ONNX Runtime fails.
        """
        if tensor is not self._bound:
            self._bind_input(tensor)
        try:
            self.inference.run_with_iobinding(self._binding)
        except Exception as cause:  # onnxruntime's exceptions share no root of their own
            raise SessionError(f"{self._where}: ONNX Runtime failed: {first_line(cause)}") from cause
        if self._outputs is not None:
            return self._outputs
        return tuple(self._binding.copy_outputs_to_cpu())

    @property
    def output_shapes(self) -> list[tuple[int | str | None, ...]]:
        """Shapes of the outputs; a name or None stands for a dimension that is not fixed."""
        return [tuple(output.shape) for output in self.inference.get_outputs()]

    def providers(self) -> list[str]:
        """Execution providers that this session got."""
        return list(self.inference.get_providers())

    def replay_golden(self, bundle: Bundle, prepare: Prepare, most: int | None = None) -> float:
        """Run the golden inputs of the variant that runs and compare; serves as the warm-up too.

        Args:
            bundle: where they are.
            prepare: the stage before this model.
            most: how many of them, from the first; all by default.

        Returns:
            The largest absolute difference found.

        Raises:
            IncompatibleError: when an output differs by more than the manifest allows.
        """
        variant = bundle.manifest.variants[0]
        promise = variant.golden
        worst = 0.0
        images, noise = bundle.golden_and_noise(most)
        for index, (image, expected) in enumerate(images):
            tensor = prepare.normalise(image)
            start_ns = time.perf_counter_ns()
            outputs = self.run(tensor)
            run_ns = time.perf_counter_ns() - start_ns
            self.replay_ns = min(self.replay_ns or run_ns, run_ns)
            problem = largest_difference(outputs, expected, promise, noise)
            if isinstance(problem, str):
                raise IncompatibleError(
                    f"{bundle.path}: golden input {index} gives other results here ({variant.file}: {problem}); "
                    f"this device or its ONNX Runtime {onnxruntime_version()} computes differently from "
                    "the machine that built the bundle"
                )
            worst = max(worst, problem)
        return worst

    def _bind_input(self, tensor: Tensor) -> None:
        if (tensor.shape, tensor.dtype) != (self.input_shape, self.input_dtype) or not tensor.flags.c_contiguous:
            raise SessionError(
                f"{self._where}: input {self.input_name!r} is {self.input_dtype} {self.input_shape}, "
                f"got {tensor.dtype} {tensor.shape}"
            )
        self._binding.bind_input(self.input_name, "cpu", 0, tensor.dtype.type, tensor.shape, tensor.ctypes.data)
        self._bound = tensor

    def _bind_outputs(self) -> tuple[Tensor, ...] | None:
        """Buffers of our own where all shapes are fixed; else ONNX Runtime allocates and None says so."""
        outputs = self.inference.get_outputs()
        fixed = all(isinstance(d, int) for o in outputs for d in o.shape) and all(o.type in _DTYPES for o in outputs)
        if not fixed:
            for output in outputs:
                self._binding.bind_output(output.name, "cpu")
            return None
        buffers = tuple(np.empty(o.shape, _DTYPES[o.type]) for o in outputs)
        for output, buffer in zip(outputs, buffers, strict=True):
            self._binding.bind_output(output.name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        return buffers


def _only_input(session: ort.InferenceSession, where: str) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise SessionError(f"{where}: has {len(inputs)} inputs, expected one image input")
    [image] = inputs
    if image.type not in _INPUT_TYPES or not all(isinstance(d, int) for d in image.shape):
        raise SessionError(
            f"{where}: input {image.name!r} is {image.type} {image.shape}, expected float32 or uint8 of fixed shape"
        )
    return image.name, tuple(image.shape), np.dtype(_DTYPES[image.type])
