"""Session: one model in ONNX Runtime, with inputs and outputs bound once; Stages: from a frame to its result.

    Frame -- Prepare --> Prepared -- Session --> Inferred -- task --> Result

Only this folder imports onnxruntime on the device. A session refuses models whose input or outputs it does not handle,
and writes outputs into buffers of its own. One `Watchdog` thread watches the runs of all sessions of a process and ends
those that hang; it costs a run two additions, and no clock, lock or thread switch. `SessionCache` returns sessions on
models that are loaded already. `Stages.open` loads a model, checks its outputs, and replays the golden inputs, which is
also the warm-up.
"""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import onnxruntime as ort

from edge_sdk.bundle.bundle import Bundle, largest_difference
from edge_sdk.core.errors import BundleError, HungRunError, IncompatibleError, OutputError, SessionError, first_line
from edge_sdk.core.frame import Frame, Geometry, Inferred, Prepared, Result, Tensor
from edge_sdk.core.machine import give_back_freed
from edge_sdk.core.protocols import Stage
from edge_sdk.inference.profile import ProfileEvent
from edge_sdk.inference.runtime import (
    UNKNOWN_LIMIT_S,
    SessionSettings,
    extension_libraries,
    onnxruntime_version,
    open_inference,
    operator_libraries,
)
from edge_sdk.tasks.decoders import make_stage
from edge_sdk.tasks.spec import TRAITS

if TYPE_CHECKING:
    from edge_sdk.inference.prepare import Prepare

DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
    **{
        f"tensor({name})": getattr(np, name)
        for name in ("float16", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    },
}
"""Types of inputs that a session handles, by ONNX Runtime's names."""

_INPUT_TYPES = ("tensor(float)", "tensor(uint8)", "tensor(int8)")


def _only_input(inputs: Sequence[Any], where: str) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    """Return name, shape and type of a model's one input, which must be float32, uint8 or int8 of fixed shape."""
    if len(inputs) != 1:
        raise SessionError(f"{where}: has {len(inputs)} inputs, expected one image input")
    [image] = inputs
    shape = tuple(d for d in image.shape if isinstance(d, int))
    if image.type not in _INPUT_TYPES or len(shape) != len(image.shape):
        raise SessionError(
            f"{where}: input {image.name!r} is {image.type} {image.shape}, expected float32, uint8 or int8 of fixed"
            " shape"
        )
    return image.name, shape, np.dtype(DTYPES[image.type])


def _check_outputs(outputs: Sequence[Any], where: str) -> None:
    """Refuse outputs that are no tensors of numbers, but strings, a sequence, a map or a type that numpy lacks."""
    for output in outputs:
        if output.type not in DTYPES:
            raise SessionError(f"{where}: output {output.name!r} is {output.type}, expected a tensor of numbers")


def _misfit_of(given: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str | None:
    """Return what is wrong with an input, and the next step; None if it fits."""
    if not isinstance(given, np.ndarray):
        return f"{type(given).__name__}; give a numpy array"
    if given.shape != shape:
        return f"{given.dtype} {given.shape}"
    if given.dtype == dtype and given.flags.c_contiguous:
        return None
    order = "" if given.flags.c_contiguous else " that is not C-contiguous"
    return f"{given.dtype} {given.shape}{order}; give numpy.ascontiguousarray(it, numpy.{dtype})"


_NOTHING = object()  # not None, which a caller may pass as a tensor
_LIMIT_GOLDENS = 10


@dataclass
class _Proof:
    """Time limit of a loaded model, and whether its golden inputs were replayed; its clones share it."""

    limit_s: float
    is_given: bool = False


class Session:
    """A loaded model; not for several threads at once, because its outputs are overwritten by the next call.

    Args:
        model: the bytes of an .ort or .onnx file, verified by the caller.
        libraries: libraries of custom operators, verified by the caller; loaded before the model. By default that of
            onnxruntime-extensions, if the model names its domain.

    Attributes:
        inference: ONNX Runtime's own session, for measuring against.
        replay_ns: nanoseconds of the fastest run of a golden input; 0 before the first.

    Raises:
        SessionError: ONNX Runtime cannot load the model, its inputs are not one float32, uint8 or int8 tensor of fixed
            shape,
            or an output is no tensor of numbers.
        BundleError: the model takes weights from another file.
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
        self.input_name, self.input_shape, self.input_dtype = _only_input(self.inference.get_inputs(), where)
        _check_outputs(self.inference.get_outputs(), where)
        self._binding = self.inference.io_binding()
        self._names = [output.name for output in self.inference.get_outputs()]
        self._outputs = self._bind_outputs()
        self._bound: object = _NOTHING
        self._origin: Session | None = None
        self.replay_ns = 0

    @classmethod
    def open(cls, bundle: Bundle, settings: SessionSettings | None = None) -> Session:
        """Load the primary variant of a verified bundle, by default with the bundle's settings.

        Raises:
            IncompatibleError: this ONNX Runtime cannot load the model.
            BundleError: the model's input differs from the manifest, it takes weights from another file, or the bundle
                contains libraries without a trusted signature.
            MissingDependencyError: the model needs operators of a package that is not installed.
        """
        manifest = bundle.manifest
        chosen = settings or SessionSettings.of(manifest)
        file = manifest.variants[0].file
        try:
            with operator_libraries(bundle) as libraries:
                session = cls(bundle.read(file), chosen, str(bundle.path / file), libraries)
        except SessionError as cause:
            raise IncompatibleError(str(cause)) from cause
        dtype, shape = manifest.taken.dtype, manifest.taken.shape(manifest.input.size_wh)
        if (session.input_dtype, session.input_shape) != (np.dtype(dtype), shape):
            raise BundleError(
                f"{bundle.path / file}: takes {session.input_dtype} {session.input_shape}, the manifest says "
                f"{dtype} {shape}; build the bundle again"
            )
        return session

    def clone(self) -> Session:
        """Return another session on the same loaded model, with its own buffers, so that another thread may run it."""
        other = copy.copy(self)
        other._origin = self._origin or self  # a cache finds the model as long as one of them exists
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
        """Run the model on a tensor of the input's shape and type, C-contiguous; return one array per output.

        The next call overwrites outputs of fixed shape.

        Raises:
            SessionError: the tensor does not fit, or ONNX Runtime fails.
            HungRunError: the run exceeded its time limit; another run may follow.
        """
        if tensor is not self._bound:
            self._bind_input(tensor)
        guard = self._guard
        guard.steps += 1
        try:
            self._run(self._binding, guard.options)
        except Exception as cause:  # onnxruntime's exceptions share no root of their own
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
        """Run the golden inputs of the primary variant, which is also the warm-up; return the largest difference.

        Raises:
            IncompatibleError: an output differs by more than the manifest allows.
        """
        variant = bundle.manifest.variants[0]
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
            problem = largest_difference(outputs, expected, variant.golden, noise)
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

    def stop_profile(self) -> list[ProfileEvent]:
        """Stop profiling, remove the profile, and return its events; for a session with `profile_prefix`."""
        profile = Path(self.inference.end_profiling())
        try:
            return msgspec.json.decode(profile.read_bytes(), type=list[ProfileEvent])
        except (OSError, msgspec.DecodeError) as cause:
            raise OutputError(f"{profile}: not the whole profile of a run; check the space on its disk") from cause
        finally:
            profile.unlink(missing_ok=True)

    def _failure(self, cause: Exception) -> SessionError:
        guard = self._guard
        if guard.options.terminate:
            guard.options.terminate = False
            return HungRunError(f"{self._where}: a run did not finish within {guard.limit_s:g} s and was ended")
        return SessionError(f"{self._where}: ONNX Runtime failed: {first_line(cause)}")

    def _bind_input(self, tensor: Tensor) -> None:
        misfit = _misfit_of(tensor, self.input_shape, self.input_dtype)
        if misfit is not None:
            raise SessionError(
                f"{self._where}: input {self.input_name!r} is {self.input_dtype} {self.input_shape}, got {misfit}"
            )
        self._binding.bind_input(self.input_name, "cpu", 0, tensor.dtype.type, tensor.shape, tensor.ctypes.data)
        self._bound = tensor

    def _bind_outputs(self) -> tuple[Tensor, ...] | None:
        """Bind own buffers and return them if all shapes are fixed; else let ONNX Runtime allocate and return None."""
        outputs = self.inference.get_outputs()
        if not all(isinstance(d, int) for output in outputs for d in output.shape):
            for output in outputs:
                self._binding.bind_output(output.name, "cpu")
            return None
        buffers = tuple(np.empty(o.shape, DTYPES[o.type]) for o in outputs)
        for output, buffer in zip(outputs, buffers, strict=True):
            self._binding.bind_output(output.name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        return buffers


_Key: TypeAlias = tuple[str, str, bool, SessionSettings]


class SessionCache:
    """Returns sessions on loaded models as long as a session on them exists; several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loading: weakref.WeakValueDictionary[_Key, threading.Lock] = weakref.WeakValueDictionary()
        self._alive: weakref.WeakValueDictionary[_Key, Session] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._alive)

    def open(self, bundle: Bundle, settings: SessionSettings | None = None) -> Session:
        """Return a session on the bundle's first variant; load its model only if it is not loaded."""
        chosen = settings or SessionSettings.of(bundle.manifest)
        key = (bundle.digest, bundle.manifest.variants[0].file, bundle.signed, chosen)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:  # threads that open another model do not wait
            found = self._alive.get(key)
            if found is not None:
                return found.clone()
            loaded = self._alive[key] = Session.open(bundle, chosen)
            return loaded


_LOOK_S = 0.25
_SHORTEST_S = 0.005
_QUIET = 4  # fatal only, because errors reach the caller as exceptions


class RunGuard:
    """Counts one session's runs for the watchdog.

    Attributes:
        limit_s: may be changed at any time.
        steps: counter of beginnings and ends of runs; odd during a run.
        options: run options for every run; a flag in them ends the run.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.steps = 0
        self.options = ort.RunOptions()
        self.options.log_severity_level = _QUIET
        # onnxruntime 1.31's Python reads this entry at each run; a missing one costs an exception, 36 us.
        self.options.add_run_config_entry("gpu_graph_id", "-1")
        self._seen = 0
        self._busy_s = 0.0

    def look(self, passed_s: float) -> None:
        """End the run if it has taken too long; the watchdog calls this `passed_s` seconds after the last call."""
        steps = self.steps
        if steps % 2 == 0 or steps != self._seen:
            self._seen, self._busy_s = steps, 0.0
            return
        # Counted without a clock, so that a process that was paused ends no run for that.
        self._busy_s += passed_s
        if self._busy_s >= self.limit_s:
            # Where the run has just finished, this ends the next one.
            self.options.terminate = True


class Watchdog:
    """Watches the runs of all sessions, in one thread that lives as long as there is a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guards: weakref.WeakSet[RunGuard] = weakref.WeakSet()
        self._is_running = False

    def watch(self, guard: RunGuard) -> None:
        """Watch a session's runs from now on."""
        with self._lock:
            self._guards.add(guard)
            if not self._is_running:
                threading.Thread(target=self._run, name="edge-watchdog", daemon=True).start()
                self._is_running = True  # set last, so that the next session tries again if the thread cannot start

    def _run(self) -> None:
        """Watch until no session is left."""
        while pause_s := self._pause_s():
            time.sleep(pause_s)
            for guard in self._living():
                guard.look(pause_s)
                del guard  # else it would outlive its session by one interval

    def _living(self) -> list[RunGuard]:
        with self._lock:
            return list(self._guards)

    def _pause_s(self) -> float:
        with self._lock:
            limits = [guard.limit_s for guard in self._guards]
            self._is_running = bool(limits)
            return max(_SHORTEST_S, min(_LOOK_S, *(limit / 4 for limit in limits))) if limits else 0.0


_WATCHDOG = Watchdog()


def guarded(limit_s: float) -> RunGuard:
    """Return the guard of a new session; the watchdog watches it as long as a reference to it exists."""
    guard = RunGuard(limit_s)
    _WATCHDOG.watch(guard)
    return guard


class Stages:
    """Turns frames into results; not for several threads at once.

    `remake` returns the same task with some of the bundle's thresholds replaced, by name, as `thresholds` has them.
    """

    def __init__(
        self,
        variant: str,
        prepare: Prepare,
        session: Session,
        task: Stage[Inferred, Result],
        remake: Callable[[Mapping[str, float]], Stage[Inferred, Result]] | None = None,
        *,
        finds_objects: bool = False,
    ) -> None:
        self.variant, self.prepare, self.session, self.task = variant, prepare, session, task
        self._remake, self._finds_objects = remake, finds_objects
        self.thresholds: Mapping[str, float] = {}

    def set_thresholds(self, thresholds: Mapping[str, float]) -> None:
        """Replace these thresholds of the bundle, each 0 to 1, and none of the others. Call it between two frames."""
        if self._remake is not None:
            self.task, self.thresholds = self._remake(thresholds), thresholds

    @classmethod
    def open(
        cls,
        bundle: Bundle,
        settings: SessionSettings | None = None,
        *,
        cache: SessionCache | None = None,
        most_golden: int | None = None,
    ) -> Stages:
        """Load the first variant of a verified bundle and replay its golden inputs, by default with its settings.

        Args:
            bundle: `Bundle.with_primary` chooses another variant.
            settings: settings of the session.
            cache: cache of loaded models; the golden inputs of a proved model are not replayed again.
            most_golden: how many golden inputs to replay, all by default; one is enough after `trial.prove_here`.
        """
        session = Session.open(bundle, settings) if cache is None else cache.open(bundle, settings)
        stages = cls._around(session, bundle)
        if not session.is_proved:
            session.replay_golden(bundle, stages.prepare, most_golden)
            give_back_freed()  # the memory of the golden pictures and outputs
        return stages

    @classmethod
    def _around(cls, session: Session, bundle: Bundle) -> Stages:
        # This module imports OpenCV, which another thread loads at a start while this one loads the model.
        from edge_sdk.inference.prepare import Prepare

        manifest, labels, shapes = bundle.manifest, bundle.labels(), session.output_shapes

        def remake(changed: Mapping[str, float]) -> Stage[Inferred, Result]:
            thresholds = msgspec.structs.replace(manifest.thresholds, **changed)
            return make_stage(msgspec.structs.replace(manifest, thresholds=thresholds), labels, shapes)

        finds_objects = TRAITS[manifest.task].has_objects
        return cls(
            manifest.variants[0].name, Prepare.of(manifest), session, remake({}), remake, finds_objects=finds_objects
        )

    def clone(self, bundle: Bundle) -> Stages:
        """Return stages on the same loaded model with their own buffers, so that another thread may run them."""
        return self._around(self.session.clone(), bundle)

    @property
    def threads(self) -> int:
        """Number of threads inside one operator of the model."""
        return int(self.session.inference.get_session_options().intra_op_num_threads)

    def __call__(self, frame: Frame, /) -> Result:
        """Return the result of one frame."""
        return self.task(self.session(self.prepare(frame)))

    def run_part(self, frame: Frame, region: tuple[int, int, int, int]) -> Result:
        """Return the result of a part of a frame (left, top, right, bottom); objects in it lie in the frame.

        The frame of other results is the part alone, to which shares and maps of a picture belong.
        """
        left, top, right, bottom = region
        # A view: what resizes it reads rows of any stride.
        part = Frame(frame.image[top:bottom, left:right], frame.captured_ns, frame.captured_at, frame.seq, frame.camera)
        prepared = self.prepare(part)
        if not self._finds_objects:
            return self.task(self.session(prepared))
        own = prepared.geometry
        offset_x, offset_y = own.offset_x - left * own.scale_x, own.offset_y - top * own.scale_y
        of_frame = Geometry(own.scale_x, own.scale_y, offset_x, offset_y)
        return self.task(self.session(Prepared(prepared.tensor, of_frame, frame)))
