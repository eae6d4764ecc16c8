"""How a model is run: execution providers, threads and limits of a session."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from edge_sdk.bundle.manifest import Manifest
from edge_sdk.bundle.target import ProviderOptions

GraphLevel: TypeAlias = Literal["disabled", "basic", "extended", "all"]
"""How far ONNX Runtime rewrites a graph when it loads it. An .ort file was rewritten when it was built."""

UNKNOWN_LIMIT_S = 300.0
"""Seconds for a run of which nothing is known: a large model, an emulated board, an accelerator that builds first."""

_LEAST_LIMIT_S = 5.0
_LIMIT_BUDGETS = 10


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an ONNX Runtime session.

    Attributes:
        providers: execution providers in order of preference; those that are not to be had here are passed over, and
            `Session.providers` says why. The CPU comes last, always.
        intra_op_num_threads: threads inside one operator.
        allow_spinning: whether threads spin while they wait for each other within a run. They sleep between runs.
        inter_op_num_threads: parts of the graph that run at once, where providers share it. On the CPU alone it
            only makes idle threads: since ONNX Runtime 1.14 all of a provider's nodes run in turn.
        arena: whether freed memory of tensors is kept for the next ones.
        prepacking: whether weights are laid out for the kernels once, at load; off, INT8 takes three times as long.
        graph_level: how far the graph is rewritten at load.
        profile_prefix: when given, a profile is written to this path plus a time stamp and `.json`.
        graph_file: when given, the graph as it runs is written to this path, in ONNX format.
        limit_s: seconds after which a run is ended. It is raised to ten times what the slowest golden input took.
        cache_folder: where accelerators keep what they build; in the state folder by default.
        provider_options: what some of the providers are told.
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
        """Return the settings that a bundle promises; a run may take ten times its budget, at least five seconds."""
        return cls(
            manifest.providers,
            manifest.intra_op_num_threads,
            manifest.allow_spinning,
            limit_s=max(_LEAST_LIMIT_S, _LIMIT_BUDGETS * manifest.latency_budget_ms / 1000),
            provider_options=manifest.provider_options,
        )
