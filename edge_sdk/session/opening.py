"""Opening: a model's bytes and settings become ONNX Runtime's own session."""

from __future__ import annotations

import onnxruntime as ort

from edge_sdk.errors import SessionError
from edge_sdk.session.settings import GraphLevel, SessionSettings

_QUIET = 4  # fatal only: what goes wrong reaches the caller as an exception, once
_GRAPH_LEVELS: dict[GraphLevel, ort.GraphOptimizationLevel] = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def onnxruntime_version() -> str:
    """The version installed here."""
    return str(ort.__version__)


def open_inference(model: bytes, settings: SessionSettings, where: str) -> ort.InferenceSession:
    """Load a model.

    Args:
        model: the bytes of an .ort or .onnx file, verified by the caller.
        settings: threads, providers and the rest.
        where: what to call the model in errors.

    Raises:
        SessionError: ONNX Runtime cannot load it.
    """
    available = set(ort.get_available_providers())
    providers = [p for p in settings.providers if p in available]
    try:
        session = ort.InferenceSession(model, _options(settings), providers=providers)
    except Exception as cause:  # onnxruntime's exceptions share no root of their own
        raise SessionError(f"{where}: ONNX Runtime {ort.__version__} cannot load it: {first_line(cause)}") from cause
    # It would keep the file to load it again with other providers, which nobody asks for.
    session._model_bytes = None
    return session


def first_line(cause: Exception) -> str:
    """The first line of what ONNX Runtime says, without its own name."""
    return str(cause).splitlines()[0].removeprefix("[ONNXRuntimeError] : ") if str(cause) else type(cause).__name__


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
    if not settings.prepacking:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if settings.profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = settings.profile_prefix
    if settings.graph_file:
        options.optimized_model_filepath = settings.graph_file
        options.add_session_config_entry("session.save_model_format", "ONNX")
    return options
