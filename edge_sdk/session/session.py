"""Session: one model in ONNX Runtime, with inputs and outputs bound once.

Owns the output buffers and the replay of golden inputs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from edge_sdk.bundle import Bundle
from edge_sdk.errors import BundleError, HungRunError, IncompatibleError, OutputError, SessionError
from edge_sdk.failure import first_line
from edge_sdk.frame import Inferred, Prepared, Tensor
from edge_sdk.golden import largest_difference
from edge_sdk.session.custom_operators import extension_libraries, operator_libraries
from edge_sdk.session.opening import onnxruntime_version, open_inference
from edge_sdk.session.profile import Event
from edge_sdk.session.settings import UNKNOWN_LIMIT_S, SessionSettings
from edge_sdk.session.tensors import DTYPES, check_outputs, misfit_of, only_input
from edge_sdk.session.watchdog import guarded

if TYPE_CHECKING:  # it brings OpenCV, which is loaded beside the model
    from edge_sdk.prepare import Prepare

_NOTHING = object()  # not None, which somebody may give for a tensor
_LIMIT_GOLDENS = 10


class _Proof:
    """What the golden inputs said of a loaded model; its twins have it in common."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.is_given = False


class Session:
    """A loaded model; not for several threads at once, because its outputs are overwritten by the next call.

    Args:
        model: the bytes of an .ort or .onnx file, verified by the caller.
        settings: threads and providers.
        where: what to call the model in errors.
        libraries: of custom operators, verified by the caller; loaded before the model. By default that of
            onnxruntime-extensions, where the model names its domain.

    Attributes:
        inference: ONNX Runtime's own session, for measuring against.
        providers: what was asked to compute, and what does.
        input_name, input_shape, input_dtype: of its one input; float32, or uint8 where levels are taken as they are.
        replay_ns: of the fastest run of a golden input; 0 before there was one.

    Raises:
        SessionError: when ONNX Runtime cannot load it, it has not one input, float32 or uint8, of fixed shape, or an
            output that is no tensor of numbers.
        BundleError: it takes weights from another file.
    """

    def __init__(
        self, model: bytes, settings: SessionSettings, where: str, libraries: Sequence[Path] | None = None
    ) -> None:
        self._where = where
        libraries = extension_libraries(model) if libraries is None else libraries
        self.inference, self.providers = open_inference(model, settings, where, libraries)
        self._run = self.inference.run_with_iobinding
        self._proof = _Proof(settings.limit_s)
        self._guard = guarded(settings.limit_s)
        self.input_name, self.input_shape, self.input_dtype = only_input(self.inference.get_inputs(), where)
        check_outputs(self.inference.get_outputs(), where)
        self._binding = self.inference.io_binding()
        self._names = [output.name for output in self.inference.get_outputs()]
        self._outputs = self._bind_outputs()
        self._bound: object = _NOTHING
        self._origin: Session | None = None
        self.replay_ns = 0

    @classmethod
    def open(cls, bundle: Bundle, settings: SessionSettings | None = None) -> Session:
        """Load the variant of a verified bundle that runs, with the settings that it promises unless others are given.

        Raises:
            IncompatibleError: this ONNX Runtime cannot load it.
            BundleError: it takes another tensor than the manifest says, weights from another file, or carries libraries
                and no trusted signature.
            MissingDependencyError: it needs operators of a package that is not installed.
        """
        promise = bundle.manifest
        chosen = settings or SessionSettings.of(promise)
        file = promise.variants[0].file
        try:
            with operator_libraries(bundle) as libraries:
                session = cls(bundle.read(file), chosen, str(bundle.path / file), libraries)
        except SessionError as cause:
            raise IncompatibleError(str(cause)) from cause
        dtype, shape = promise.taken.dtype, promise.taken.shape(promise.input.size_wh)
        if (session.input_dtype, session.input_shape) != (np.dtype(dtype), shape):
            raise BundleError(
                f"{bundle.path / file}: takes {session.input_dtype} {session.input_shape}, the manifest says "
                f"{dtype} {shape}; build the bundle again"
            )
        return session

    def twin(self) -> Session:
        """Another session on the same loaded model, with buffers of its own, so that another thread may run it."""
        other = copy.copy(self)
        other._origin = self._origin or self  # as long as one of them lives, a cache finds the model
        other._binding = self.inference.io_binding()
        other._outputs = other._bind_outputs()
        other._bound = _NOTHING
        other._guard = guarded(self._proof.limit_s)
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
            HungRunError: when it came to no end within the limit; another run may follow.
        """
        if tensor is not self._bound:
            self._bind_input(tensor)
        guard = self._guard
        is_done = False
        while not is_done:
            guard.steps += 1
            try:
                self._run(self._binding, guard.options)
                is_done = True
            except Exception as cause:  # onnxruntime's exceptions share no root of their own
                if not guard.is_to_be_repeated():
                    raise self._failure(cause) from cause
            finally:
                guard.steps += 1
        if self._outputs is not None:
            return self._outputs
        return tuple(self._binding.copy_outputs_to_cpu())

    @property
    def output_shapes(self) -> list[tuple[int | str | None, ...]]:
        """Shapes of the outputs; a name or None stands for a dimension that is not fixed."""
        return [tuple(output.shape) for output in self.inference.get_outputs()]

    @property
    def is_proved(self) -> bool:
        """Whether the golden inputs were replayed, by this session or by another on the same loaded model."""
        return self._proof.is_given

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
        limit_s, slowest_s = self._guard.limit_s, 0.0
        self._guard.limit_s = max(limit_s, UNKNOWN_LIMIT_S)
        for index, (image, expected) in enumerate(images):
            tensor = prepare.normalise(image)
            start_ns = time.perf_counter_ns()
            outputs = self.run(tensor)
            run_ns = time.perf_counter_ns() - start_ns
            self.replay_ns = min(self.replay_ns or run_ns, run_ns)
            slowest_s = max(slowest_s, run_ns / 1e9)
            problem = largest_difference(outputs, expected, promise, noise)
            if isinstance(problem, str):
                raise IncompatibleError(
                    f"{bundle.path}: golden input {index} gives other results here ({variant.file}: {problem}); "
                    f"this device or its ONNX Runtime {onnxruntime_version()} computes differently from "
                    "the machine that built the bundle"
                )
            worst = max(worst, problem)
        self._guard.limit_s = self._proof.limit_s = max(limit_s, _LIMIT_GOLDENS * slowest_s)
        self._proof.is_given = True
        return worst

    def stop_profile(self) -> list[Event]:
        """All that was noted since it was opened with `profile_prefix`; nothing is noted any more, the file is gone.

        Raises:
            OutputError: the profile is not whole; ONNX Runtime writes what fits on the disk, and says nothing.
        """
        profile = Path(self.inference.end_profiling())
        try:
            return msgspec.json.decode(profile.read_bytes(), type=list[Event])
        except (OSError, msgspec.DecodeError) as cause:
            raise OutputError(f"{profile}: not the whole profile of a run; check the space on its disk") from cause
        finally:
            profile.unlink(missing_ok=True)

    def _failure(self, cause: Exception) -> SessionError:
        guard = self._guard
        if guard.was_ended():
            return HungRunError(f"{self._where}: a run did not finish within {guard.limit_s:g} s and was ended")
        return SessionError(f"{self._where}: ONNX Runtime failed: {first_line(cause)}")

    def _bind_input(self, tensor: Tensor) -> None:
        misfit = misfit_of(tensor, self.input_shape, self.input_dtype)
        if misfit is not None:
            raise SessionError(
                f"{self._where}: input {self.input_name!r} is {self.input_dtype} {self.input_shape}, got {misfit}"
            )
        self._binding.bind_input(self.input_name, "cpu", 0, tensor.dtype.type, tensor.shape, tensor.ctypes.data)
        self._bound = tensor

    def _bind_outputs(self) -> tuple[Tensor, ...] | None:
        """Buffers of our own where all shapes are fixed; else ONNX Runtime allocates and None says so."""
        outputs = self.inference.get_outputs()
        if not all(isinstance(d, int) for output in outputs for d in output.shape):
            for output in outputs:
                self._binding.bind_output(output.name, "cpu")
            return None
        buffers = tuple(np.empty(o.shape, DTYPES[o.type]) for o in outputs)
        for output, buffer in zip(outputs, buffers, strict=True):
            self._binding.bind_output(output.name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        return buffers
