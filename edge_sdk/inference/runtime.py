"""ONNX Runtime: how a model is run (`SessionSettings`), execution providers, custom operators, and opening a model.

`open_inference` tries the requested providers in order. `Providers` says which of them run the model, and why others do
not. A model may need code besides ONNX Runtime: the libraries of the onnxruntime-extensions package where it is
installed on the device, or those of a bundle that a trusted key signed. No other code is loaded.
"""

from __future__ import annotations

import contextlib
import logging
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import onnxruntime as ort

from edge_sdk.bundle.bundle import Bundle
from edge_sdk.bundle.manifest import REDUCED_FILE, Manifest, ReducedRuntime
from edge_sdk.bundle.model_file import refuse_other_files
from edge_sdk.bundle.target import CPU, OPENVINO, PROVIDERS, ProviderOptions
from edge_sdk.core.errors import (
    BundleError,
    IncompatibleError,
    MissingDependencyError,
    OutputError,
    SessionError,
    first_line,
)
from edge_sdk.core.files import state_folder
from edge_sdk.core.machine import give_back_freed

GraphLevel: TypeAlias = Literal["disabled", "basic", "extended", "all"]
"""Level to which ONNX Runtime rewrites a graph at load; an .ort file was already rewritten at its build."""

UNKNOWN_LIMIT_S = 300.0
"""Limit in seconds for a run of unknown duration, as of a large model, an emulated board or a first TensorRT build."""

_LEAST_LIMIT_S = 5.0
_LIMIT_BUDGETS = 10


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an ONNX Runtime session.

    Attributes:
        providers: in order of preference; those that do not start are skipped, and the CPU always comes last.
        allow_spinning: whether threads spin while they wait for each other within a run. They sleep between runs.
        inter_op_num_threads: how many parts of the graph run at once if several providers share it. On the CPU alone it
            only creates idle threads, because since ONNX Runtime 1.14 the nodes of one provider run in sequence.
        arena: whether freed memory of tensors is kept for later tensors.
        prepacking: whether weights are rearranged for the kernels at load; without it INT8 takes three times as long.
        profile_prefix: when given, a profile is written to this path plus a time stamp and `.json`.
        graph_file: when given, the graph as it runs is written to this path, in ONNX format.
        limit_s: seconds after which a run is ended; raised to ten times the duration of the slowest golden input.
        cache_folder: folder for the files that accelerators build; by default in the state folder.
    """

    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    intra_op_num_threads: int = 1
    allow_spinning: bool = False
    inter_op_num_threads: int = 1
    arena: bool = True
    prepacking: bool = True
    graph_level: GraphLevel = "all"
    profile_prefix: str | None = None
    graph_file: str | None = None
    limit_s: float = UNKNOWN_LIMIT_S
    cache_folder: str | None = None
    provider_options: ProviderOptions = ProviderOptions()

    @classmethod
    def of(cls, manifest: Manifest) -> SessionSettings:
        """Return the settings in a manifest; a run may take ten times the latency budget, at least five seconds."""
        return cls(
            manifest.providers,
            manifest.intra_op_num_threads,
            manifest.allow_spinning,
            limit_s=max(_LEAST_LIMIT_S, _LIMIT_BUDGETS * manifest.latency_budget_ms / 1000),
            provider_options=manifest.provider_options,
        )


_log = logging.getLogger(__name__)
_NOT_STARTED = "it cannot be started; ONNX Runtime says why on standard error"


class Providers(msgspec.Struct, frozen=True):
    """Execution providers of one session, by ONNX Runtime's own names.

    Attributes:
        asked: the requested providers, in order of preference.
        got: the providers of the session, in order of preference; the CPU is always last.
        why_not: for each requested provider that the session does not have, the reason.
        nodes: how many nodes of the graph each provider runs; empty where the CPU is the only one, or where this
            version of ONNX Runtime does not report it.
    """

    asked: tuple[str, ...]
    got: tuple[str, ...]
    why_not: dict[str, str]
    nodes: dict[str, int]

    def shortfalls(self) -> list[str]:
        """Return one line for each provider that is not used, and one for nodes that run on the CPU instead."""
        lines = [f"{name} was asked for and is not used: {reason}" for name, reason in self.why_not.items()]
        on_cpu, count = self.nodes.get(CPU, 0), sum(self.nodes.values())
        if self.got[0] != CPU and on_cpu:
            lines.append(f"{on_cpu} of {count} nodes run on the CPU, though {self.got[0]} comes first")
        return lines


def options_of(provider: str, settings: SessionSettings) -> dict[str, str]:
    """Return the options of a provider: those of the settings, threads for OpenVINO, a folder for TensorRT's engines.

    The folder is a cache, because a board takes minutes to build an engine; an engine's file name tells model, GPU and
    version. If it cannot be created, every start builds the engine again.
    """
    options = settings.provider_options.of(provider)
    if provider == OPENVINO:
        return {**options, "num_of_threads": str(settings.intra_op_num_threads)}
    folder = _engine_folder(settings.cache_folder) if provider == "TensorrtExecutionProvider" else None
    if folder is None:
        return options
    return {
        **options,
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
    }


def _engine_folder(chosen: str | None) -> Path | None:
    """Create the folder of TensorRT's engines, for this user only, because an engine is code that the GPU runs."""
    try:
        folder = Path(chosen) if chosen else state_folder() / "tensorrt"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, OutputError):
        return None
    return folder


def not_installed(asked: Sequence[str]) -> dict[str, str]:
    """Return those of the providers that this ONNX Runtime was built without, and why they are not used."""
    missing = [provider for provider in asked if provider not in ort.get_available_providers()]
    hints = {p: f"; it comes with {PROVIDERS[p]}, in place of onnxruntime" for p in missing if p in PROVIDERS}
    return {p: f"not in this ONNX Runtime {ort.__version__}{hints.get(p, '')}" for p in missing}


def shortfalls_here(asked: tuple[str, ...]) -> list[str]:
    """Return one line for each provider that this ONNX Runtime was built without."""
    return Providers(asked, (CPU,), not_installed(asked), {}).shortfalls()


_QUIET = 4  # log level "fatal": the caller gets every other error as an exception
_GRAPH_LEVELS: dict[GraphLevel, ort.GraphOptimizationLevel] = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_TELLS_NODES = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")  # since 1.24


def onnxruntime_version() -> str:
    """Return the version of the ONNX Runtime installed here."""
    return str(ort.__version__)


def reduced_runtime() -> ReducedRuntime | None:
    """Return what the ONNX Runtime installed here says of itself where it is a reduced one, None for the stock one."""
    path = Path(ort.__file__).parent / "capi" / REDUCED_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ReducedRuntime)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as cause:
        raise IncompatibleError(f"{path}: cannot be read ({first_line(cause)}); install its wheel again") from cause


def described_runtime() -> str:
    """Return the name and version of the ONNX Runtime installed here, and whether it is a reduced one."""
    reduced = reduced_runtime()
    return f"ONNX Runtime {onnxruntime_version()}" + (
        f", reduced to {len(reduced.operators)} operators" if reduced else ""
    )


def check_device(bundle: Bundle) -> None:
    """Raise IncompatibleError where this machine, or the ONNX Runtime installed here, is not for a bundle."""
    bundle.check_device(platform.machine(), onnxruntime_version(), reduced_runtime())


def available_providers() -> tuple[str, ...]:
    """Return the execution providers that this ONNX Runtime was built with; their libraries may still not load."""
    return tuple(ort.get_available_providers())


def open_inference(
    model: bytes, settings: SessionSettings, where: str, libraries: Sequence[Path] = ()
) -> tuple[ort.InferenceSession, Providers]:
    """Load a model on those of the requested providers that start on this machine.

    The caller has verified the bytes of the .ort or .onnx file and the libraries of custom operators.

    Raises:
        SessionError: ONNX Runtime cannot load the model, not even on the CPU alone.
        BundleError: the model takes weights from another file.
    """
    refuse_other_files(model, where)
    asked = settings.providers
    why_not = not_installed(asked)
    wanted = [p for p in asked if p not in why_not and p != CPU]
    while True:
        try:
            inference = _load(model, settings, wanted, libraries)
        except Exception as cause:  # onnxruntime's exceptions share no root of their own
            if not wanted:
                raise SessionError(
                    f"{where}: ONNX Runtime {ort.__version__} cannot load it: {first_line(cause)}"
                ) from cause
            # ONNX Runtime itself would fall back to the CPU, and print a notice to standard output, where results go.
            why_not[wanted[0]] = f"it cannot be started: {first_line(cause)}"
            del wanted[0]
            continue
        # ONNX Runtime keeps the file's bytes for its own fallback, which is off; dropping them frees their memory.
        if hasattr(inference, "_model_bytes"):
            inference._model_bytes = None
        give_back_freed()
        got = tuple(inference.get_providers())
        why_not.update({p: _NOT_STARTED for p in wanted if p not in got})
        in_order = {p: why_not[p] for p in asked if p in why_not}
        return inference, Providers(asked, got, in_order, _nodes(inference) if got[0] != CPU else {})


def _load(
    model: bytes, settings: SessionSettings, accelerators: Sequence[str], libraries: Sequence[Path]
) -> ort.InferenceSession:
    options = _options(settings)
    if accelerators and _TELLS_NODES:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for library in libraries:
        options.register_custom_ops_library(str(library))
    providers = [(p, options_of(p, settings)) for p in (*accelerators, CPU)]
    return ort.InferenceSession(model, options, providers=providers, enable_fallback=0)


def _nodes(inference: ort.InferenceSession) -> dict[str, int]:
    """Count the nodes that each provider runs."""
    if not _TELLS_NODES:
        return {}
    counts: Counter[str] = Counter()
    for part in inference.get_provider_graph_assignment_info():
        counts[str(part.ep_name)] += len(part.get_nodes())
    return dict(counts)


def _options(settings: SessionSettings) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.intra_op_num_threads
    options.inter_op_num_threads = settings.inter_op_num_threads
    if settings.inter_op_num_threads > 1:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.log_severity_level = _QUIET
    options.enable_cpu_mem_arena = settings.arena
    options.graph_optimization_level = _GRAPH_LEVELS[settings.graph_level]
    spinning = "1" if settings.allow_spinning else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    # Spinning saves time between the operators of a run; between frames it would only keep a core busy.
    options.add_session_config_entry("session.force_spinning_stop", spinning)
    if not settings.prepacking:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if settings.profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = settings.profile_prefix
    if settings.graph_file:
        options.optimized_model_filepath = settings.graph_file
        options.add_session_config_entry("session.save_model_format", "ONNX")
    return options


class ProviderWarnings:
    """Logs a warning for each provider that did not start, once in the life of the object."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def tell(self, variant: str, providers: Providers) -> None:
        """Log the shortfalls of a session that were not logged before."""
        new = [line for line in providers.shortfalls() if (variant, line) not in self._said]
        self._said.update((variant, line) for line in new)
        if new:
            _log.warning(f"{variant}: {'; '.join(new)}")


EXTENSIONS_DOMAIN = "ai.onnx.contrib"
"""Domain of the operators of onnxruntime-extensions."""
EXTENSIONS_PACKAGE = "onnxruntime-extensions>=0.15"


@contextlib.contextmanager
def operator_libraries(bundle: Bundle) -> Iterator[list[Path]]:
    """Yield the libraries to load with the first variant; a bundle's own are copied, and the copies removed at the end.

    Raises:
        BundleError: the bundle has libraries and no signature of a trusted key, or a library was altered.
        MissingDependencyError: the bundle needs onnxruntime-extensions, which is not installed.
        OutputError: the libraries cannot be copied.
    """
    manifest = bundle.manifest
    if manifest.libraries:
        if not bundle.signed:
            raise BundleError(
                f"{bundle.path}: carries {manifest.libraries[0]}, a library of custom operators, which is loaded only "
                "from a bundle that is signed by a trusted key; sign it with `edge-sdk sign` and give --trust KEY.pub"
            )
        with _copies(bundle) as copies:
            yield copies
        return
    needed = [name for name in manifest.variants[0].operators if name.startswith(f"{EXTENSIONS_DOMAIN}:")]
    libraries = extension_libraries(EXTENSIONS_DOMAIN.encode()) if needed else []
    if needed and not libraries:
        raise MissingDependencyError(
            f"{bundle.path}: the operator {needed[0]} comes with onnxruntime-extensions, which is not installed: "
            f"pip install '{EXTENSIONS_PACKAGE}'"
        )
    yield libraries


def extension_libraries(model: bytes) -> list[Path]:
    """Return the library of the installed onnxruntime-extensions where a model names its domain, else an empty list."""
    if EXTENSIONS_DOMAIN.encode() not in model:
        return []
    try:
        import onnxruntime_extensions
    except ImportError:
        return []
    return [Path(onnxruntime_extensions.get_library_path())]


@contextlib.contextmanager
def _copies(bundle: Bundle) -> Iterator[list[Path]]:
    """Copy a bundle's libraries, because its own files could be replaced between hashing and loading."""
    with contextlib.ExitStack() as stack:
        copies = []
        try:
            # Only this user may enter the folder.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-sdk-operators-")))
            for name in bundle.manifest.libraries:
                copies.append(folder / name)
                copies[-1].write_bytes(bundle.read(name))
        except OSError as cause:
            raise OutputError(f"{bundle.path}: no place for a copy of its libraries: {cause.strerror}") from cause
        yield copies
