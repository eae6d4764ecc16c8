"""CpuKernels: whether ONNX Runtime's CPU provider runs a node, by the kernel table of a version.

Owns the rules by which ONNX Runtime finds a kernel: by version, by type, through a function's body, through Casts.
docs/check.md says how they were held against the real thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import onnx

from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN
from edge_sdk_tools.check.function_body import function_body
from edge_sdk_tools.check.kernel_table import Kernel, KernelTable
from edge_sdk_tools.check.operator_schema import ONNX_DOMAINS, OperatorSchema, operator_schema
from edge_sdk_tools.check.values import Values, graph_values
from edge_sdk_tools.extensions import has_extensions

_DEEPEST_BODY = 8  # bodies of ONNX's own operators nest two or three times
_HALF = "float16"


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a node.

    Attributes:
        kind: `runs`; `casts` when it runs in float, between Casts that ONNX Runtime inserts; `type` when there are
            kernels, but not for this type; `version` when there are, but not for this version of the operator;
            `missing` when there are none; `extension` when the installed onnxruntime-extensions brings its domain.
        operator: whose kernel it is about: the node's own, or of an operator in its function body.
        element: the type that has no kernel, where it is one.
        available: the types that have.
    """

    kind: Literal["runs", "casts", "type", "version", "missing", "extension"]
    operator: str
    element: str = ""
    available: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Whether the node runs at all."""
        return self.kind in ("runs", "casts", "extension")


class CpuKernels:
    """The CPU provider of one ONNX Runtime.

    Args:
        table: its kernels.
    """

    def __init__(self, table: KernelTable) -> None:
        self.table = table

    def judge(self, node: onnx.NodeProto, values: Values, opsets: Mapping[str, int]) -> Verdict:
        """Say what becomes of a node.

        Args:
            node: of a model, or of a graph inside it.
            values: types of its tensors; one that is not known matches every kernel.
            opsets: version of each domain that the model imports.
        """
        return self._judge(node, values, opsets, _DEEPEST_BODY)

    def _judge(self, node: onnx.NodeProto, values: Values, opsets: Mapping[str, int], levels: int) -> Verdict:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) == ("", "Constant"):  # becomes a weight when the model is loaded
            return Verdict("runs", node.op_type)
        if domain == EXTENSIONS_DOMAIN and has_extensions():  # whether it has the operator, a trial tells
            return Verdict("extension", node.op_type)
        opset = opsets.get(domain, 1)
        schema = operator_schema(domain, node.op_type, opset)
        if schema is None or schema.is_deprecated:
            return Verdict("missing", node.op_type)
        verdict = self._find(node, values, schema)
        body = function_body(node, values, opset) if levels and _may_have_body(verdict, domain) else None
        if body is None:
            return verdict
        inner = {imported.domain: int(imported.version) for imported in body.opset_import}
        known = graph_values(body.graph)
        judged = (self._judge(inside, known, inner, levels - 1) for inside in body.graph.node)
        return next((v for v in judged if not v.is_supported), Verdict("runs", node.op_type))

    def _find(self, node: onnx.NodeProto, values: Values, schema: OperatorSchema) -> Verdict:
        kernels = self.table.find(node.domain, node.op_type)
        fitting = [kernel for kernel in kernels if kernel.implements(schema.since_version)]
        if not fitting:
            return Verdict("version" if kernels else "missing", node.op_type)
        given = {p: _element(p, node, values, schema) for kernel in fitting for p in kernel.types}
        if any(not self._refused(kernel, given) for kernel in fitting):
            return Verdict("runs", node.op_type)
        refused = min((self._refused(kernel, given) for kernel in fitting), key=len)[0]
        available = tuple(sorted({t for kernel in fitting for t in self.table.types(kernel, refused)}))
        as_float = {p: "float" if element == _HALF else element for p, element in given.items()}
        casts = any(not self._refused(kernel, as_float) for kernel in fitting)
        return Verdict("casts" if casts else "type", node.op_type, given[refused] or "", available)

    def _refused(self, kernel: Kernel, given: Mapping[str, str | None]) -> list[str]:
        """Parameters whose type a kernel does not take."""
        return [p for p in kernel.types if given[p] is not None and given[p] not in self.table.types(kernel, p)]


def _may_have_body(verdict: Verdict, domain: str) -> bool:
    return not verdict.is_supported and domain in ONNX_DOMAINS


def _element(parameter: str, node: onnx.NodeProto, values: Values, schema: OperatorSchema) -> str | None:
    value = schema.value_of(parameter, node, values)
    return value.element if value else None
