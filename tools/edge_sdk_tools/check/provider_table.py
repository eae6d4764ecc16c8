"""What execution providers other than the CPU's take, by documents of their makers (providers/NAME.json).

Owns the reading. A document is no measurement: the table says where each statement comes from, and what it leaves open.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk_tools.check.kernel_table import implements
from edge_sdk_tools.check.operator_schema import operator_schema
from edge_sdk_tools.check.report import ProviderCoverage

TABLES = Path(__file__).parent / "providers"
"""The folder of the tables, one PROVIDER.json each."""

_MAKES_NO_KERNEL = "Constant"  # becomes a weight when the model is loaded


class ProviderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """What one provider takes.

    Attributes:
        provider: ONNX Runtime's name of it.
        source: the document.
        unknown: operators of ai.onnx that it takes in some versions only.
        operators: what it takes of ai.onnx: versions of the operator, first and last, with None for `first` only; no
            versions where the document names none.
    """

    provider: str
    source: str
    unknown: tuple[str, ...]
    operators: dict[str, tuple[tuple[int, int | None], ...]]

    def takes(self, node: onnx.NodeProto, opset: int) -> bool | None:
        """Whether it takes a node; None where the source does not say."""
        if node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == _MAKES_NO_KERNEL:
            return True
        versions = self.operators.get(node.op_type)
        if versions is None:
            return None if node.op_type in self.unknown else False
        schema = operator_schema("", node.op_type, opset)
        since = schema.since_version if schema else 1
        return not versions or any(implements(first, last, since) for first, last in versions)


@functools.cache
def provider_table(provider: str) -> ProviderTable | None:
    """Read the table of a provider; None when edge-sdk brings none."""
    path = TABLES / f"{provider}.json"
    return msgspec.json.decode(path.read_bytes(), type=ProviderTable) if path.is_file() else None


def coverage(provider: str, nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int]) -> ProviderCoverage:
    """Say what a provider takes of a model's nodes."""
    table = provider_table(provider)
    if table is None:
        every = tuple(sorted({node.op_type for node in nodes}))
        return ProviderCoverage(provider, "unknown", len(nodes), 0, every, ())
    taken = [(node.op_type, table.takes(node, opsets.get("", 1))) for node in nodes]
    return ProviderCoverage(
        provider=provider,
        source=table.source,
        nodes=len(nodes),
        taken=sum(answer is True for _, answer in taken),
        unknown=tuple(sorted({name for name, answer in taken if answer is None})),
        not_taken=tuple(sorted({name for name, answer in taken if answer is False})),
    )
