"""SessionSettings: how a model is run."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

GraphLevel: TypeAlias = Literal["disabled", "basic", "extended", "all"]
"""How far ONNX Runtime rewrites a graph when it loads it. An .ort file was rewritten when it was built."""


class SessionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to run a model.

    Attributes:
        providers: execution providers in order of preference; those that this ONNX Runtime lacks are passed over.
        intra_op_num_threads: threads inside one operator.
        allow_spinning: whether waiting threads burn a core; off, two threads cost 5 % of one, not 97 %, at 30 FPS.
        inter_op_num_threads: operators that run at once; above 1 branches of the graph run beside each other.
        arena: whether freed memory of tensors is kept for the next ones.
        prepacking: whether weights are laid out for the kernels once, at load; off, INT8 takes three times as long.
        graph_level: how far the graph is rewritten at load.
        profile_prefix: when given, a profile is written to this path plus a time stamp and `.json`.
        graph_file: when given, the graph as it runs is written to this path, in ONNX format.
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
