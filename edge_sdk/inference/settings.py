"""How a model is run: execution providers, threads and limits of a session."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from edge_sdk.bundle.manifest import Manifest
from edge_sdk.bundle.target import ProviderOptions

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
