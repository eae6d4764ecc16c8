"""Opening: a model's bytes and settings become ONNX Runtime's own session."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from edge_sdk.errors import SessionError
from edge_sdk.failure import first_line
from edge_sdk.heap import give_back_freed
from edge_sdk.self_contained import refuse_other_files
from edge_sdk.session.providers import CPU, Providers, not_installed, not_started, options_of, standard_error_read
from edge_sdk.session.settings import GraphLevel, SessionSettings

_QUIET = 4  # fatal only: what goes wrong reaches the caller as an exception, once
_GRAPH_LEVELS: dict[GraphLevel, ort.GraphOptimizationLevel] = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_TELLS_NODES = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")  # since 1.24


def onnxruntime_version() -> str:
    """The version installed here."""
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    """Execution providers that this ONNX Runtime was built with; whether their libraries load is another question."""
    return tuple(ort.get_available_providers())


def open_inference(
    model: bytes, settings: SessionSettings, where: str, libraries: Sequence[Path] = ()
) -> tuple[ort.InferenceSession, Providers]:
    """Load a model on the best providers that are to be had.

    Args:
        model: the bytes of an .ort or .onnx file, verified by the caller.
        settings: threads, providers and the rest.
        where: what to call the model in errors.
        libraries: of custom operators, verified by the caller.

    Raises:
        SessionError: ONNX Runtime cannot load it, on the CPU alone neither.
        BundleError: it takes weights from another file.
    """
    refuse_other_files(model, where)
    asked = settings.providers
    available = set(available_providers())
    why_not = {p: not_installed(p, onnxruntime_version()) for p in asked if p not in available}
    wanted = [p for p in asked if p in available and p != CPU]
    while True:
        said: list[str] = []
        # Only accelerators say on standard error alone what is wrong with them; with the CPU nothing is redirected.
        listening = standard_error_read(said) if wanted else contextlib.nullcontext()
        try:
            with listening:
                inference = _load(model, settings, wanted, libraries)
        except Exception as cause:  # onnxruntime's exceptions share no root of their own
            if not wanted:
                raise SessionError(
                    f"{where}: ONNX Runtime {ort.__version__} cannot load it: {first_line(cause)}"
                ) from cause
            # Its own way out would be the CPU at once, and a notice on standard output, where results go.
            why_not[wanted[0]] = not_started(wanted[0], "".join(said), first_line(cause))
            del wanted[0]
            continue
        # Kept by ONNX Runtime's Python class for its own way out alone, which is off: as much memory as the file.
        if hasattr(inference, "_model_bytes"):
            inference._model_bytes = None
        give_back_freed()
        got = tuple(inference.get_providers())
        why_not.update({p: not_started(p, "".join(said)) for p in wanted if p not in got})
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
    """How many nodes each provider runs."""
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
    # What spinning saves, it saves between the operators of a run; until the next frame it would only burn a core.
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
