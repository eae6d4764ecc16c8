"""The operators of a model, held against what ONNX Runtime and the target's execution providers have.

`KernelTable` finds a kernel of the CPU provider by ONNX Runtime's own rules: by version, by type, and through inserted
Casts; docs/check.md says how they were compared with ONNX Runtime. An operator without a kernel that ONNX defines by
other operators runs as these; whether each of them has a kernel is left to the trial run. Tables are data: kernels.json
was measured by tools/scripts/kernel_tables.py, one table for each ONNX Runtime; providers/NAME.json follows the
documents of the providers' makers. The rest of the module says what is missing, in words.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import onnx

from edge_sdk.bundle.manifest import parse_version
from edge_sdk.bundle.target import CPU
from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, EXTENSIONS_PACKAGE
from edge_sdk_tools.check.report import Finding, ProviderCoverage, error, warning
from edge_sdk_tools.graph.index import Value, Values, graph_values, nodes_of
from edge_sdk_tools.graph.profile import has_extensions

KERNEL_TABLES = Path(__file__).with_name("kernels.json")
"""The kernel tables by version of ONNX Runtime; tools/scripts/kernel_tables.py writes them."""


class Kernel(msgspec.Struct, frozen=True, array_like=True):
    """One implementation of an operator.

    Attributes:
        first, last: versions of the operator that it implements; without a last one, `first` only.
        types: element types by type parameter or parameter name of the operator's schema, separated by spaces, or
            `=NAME` for one of the table's `type_sets`. Types that are not tensors are left out, and always match.
    """

    first: int
    last: int | None
    types: dict[str, str]


def implements(first: int, last: int | None, since_version: int) -> bool:
    """Tell whether a kernel for an operator's versions `first` to `last` implements its version `since_version`.

    The rule is that of ONNX Runtime's KernelRegistry: an open end (None) includes no later version of the operator,
    because a later version may compute something else.
    """
    return first == since_version or (last is not None and first < since_version <= last)


_HALF = "float16"
_MAKES_NO_KERNEL = "Constant"  # becomes a weight when the model is loaded


class KernelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The kernels of one ONNX Runtime, by domain (`ai.onnx` for the default one) and operator.

    The highest opset and IR version of a model that it loads were measured; `type_sets` are shared by many kernels.
    """

    onnxruntime: str
    max_opset: int
    max_ir_version: int
    type_sets: dict[str, str]
    kernels: dict[str, dict[str, tuple[Kernel, ...]]]

    def types(self, kernel: Kernel, parameter: str) -> tuple[str, ...]:
        """Return the element types (`float`, `int64` ...) that a kernel takes for a type parameter, sorted."""
        text = kernel.types.get(parameter, "")
        return tuple((self.type_sets[text[1:]] if text.startswith("=") else text).split())

    def judge(self, node: onnx.NodeProto, values: Values, opsets: Mapping[str, int]) -> Verdict:
        """Return the verdict on a node; a tensor of unknown type matches every kernel."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) == ("", _MAKES_NO_KERNEL):
            return Verdict("runs")
        if domain == EXTENSIONS_DOMAIN and has_extensions():  # only a trial run tells whether it has the operator
            return Verdict("extension")
        schema = operator_schema(domain, node.op_type, opsets.get(domain, 1))
        if schema is None or schema.is_deprecated:
            return Verdict("missing")
        verdict = self._find(node, values, schema)
        return Verdict("runs") if schema.has_body and not verdict.is_supported else verdict

    def _find(self, node: onnx.NodeProto, values: Values, schema: OperatorSchema) -> Verdict:
        kernels = self.kernels.get(node.domain or "ai.onnx", {}).get(node.op_type, ())
        fitting = [kernel for kernel in kernels if implements(kernel.first, kernel.last, schema.since_version)]
        if not fitting:
            return Verdict("version" if kernels else "missing")
        found = {p: schema.value_of(p, node, values) for kernel in fitting for p in kernel.types}
        given = {p: value.element if value else None for p, value in found.items()}
        refused = min((self._refused(kernel, given) for kernel in fitting), key=len)
        if not refused:
            return Verdict("runs")
        available = tuple(sorted({t for kernel in fitting for t in self.types(kernel, refused[0])}))
        as_float = {p: "float" if element == _HALF else element for p, element in given.items()}
        casts = any(not self._refused(kernel, as_float) for kernel in fitting)
        return Verdict("casts" if casts else "type", given[refused[0]] or "", available)

    def _refused(self, kernel: Kernel, given: Mapping[str, str | None]) -> list[str]:
        return [p for p in kernel.types if given[p] is not None and given[p] not in self.types(kernel, p)]


@functools.cache
def kernel_table(onnxruntime: str) -> KernelTable | None:
    """Read the table of the nearest version that is not above `onnxruntime`; None below the lowest.

    Operators and types are hardly ever removed, so that an older table errs on the safe side.
    """
    tables = msgspec.json.decode(KERNEL_TABLES.read_bytes(), type=dict[str, msgspec.Raw])
    chosen = [version for version in tables if parse_version(version) <= parse_version(onnxruntime)]
    return msgspec.json.decode(tables[max(chosen, key=parse_version)], type=KernelTable) if chosen else None


ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


class OperatorSchema(NamedTuple):
    """One version of one operator, with name and type parameter (`T`), or type, of each input and output.

    The last of them may stand for any further ones. A deprecated operator is absent from this opset on. One that
    `has_body` is defined by other operators too, as which it runs where there is no kernel.
    """

    since_version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    is_deprecated: bool
    has_body: bool = False

    def value_of(self, parameter: str, node: onnx.NodeProto, values: Values) -> Value | None:
        """Return the first tensor of a node for a type parameter or the name of a parameter; None without one."""
        for formals, names in ((self.inputs, node.input), (self.outputs, node.output)):
            for index, name in enumerate(names if formals else ()):
                if name and parameter in formals[min(index, len(formals) - 1)]:
                    return values.get(name)
        return None


@functools.cache
def operator_schema(domain: str, operator: str, opset: int) -> OperatorSchema | None:
    """Return the version of an operator in `opset`; None when there is none."""
    if domain not in ONNX_DOMAINS:
        return _runtime_schemas().get((domain, operator))
    try:
        # Any: onnx's stubs lack what it has about functions.
        found: Any = onnx.defs.get_schema(operator, opset, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None
    versions = (*found.function_opset_versions, *found.context_dependent_function_opset_versions)
    has_body = any(version <= opset for version in versions)
    return _schema(found, "type_str")._replace(has_body=has_body)


@functools.cache
def _runtime_schemas() -> Mapping[tuple[str, str], OperatorSchema]:
    """Return the schemas of domains that onnx does not know; each operator there has one version."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return {(str(found.domain), str(found.name)): _schema(found, "typeStr") for found in get_all_operator_schema()}


def _schema(found: Any, type_name: str) -> OperatorSchema:
    inputs, outputs = (
        tuple((str(p.name), str(getattr(p, type_name))) for p in side) for side in (found.inputs, found.outputs)
    )
    return OperatorSchema(int(found.since_version), inputs, outputs, bool(found.deprecated))


class Verdict(NamedTuple):
    """The verdict on one node: which kernel runs it, or why none does.

    Attributes:
        kind: `runs`; `casts` when it runs in float, between Casts that ONNX Runtime inserts; `type` when there are
            kernels, but not for this type; `version` when there are kernels, but not for this version of the operator;
            `missing` when there are none; `extension` when the installed onnxruntime-extensions has its domain.
        element, available: the type that has no kernel, and the types that have one.
    """

    kind: Literal["runs", "casts", "type", "version", "missing", "extension"]
    element: str = ""
    available: tuple[str, ...] = ()

    @property
    def is_supported(self) -> bool:
        """Whether the node runs at all."""
        return self.kind in ("runs", "casts", "extension")


class ProviderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The operators of ai.onnx that one execution provider takes, by the document `source`.

    `operators` have first and last versions as in `Kernel`, or none where the document names no versions; `unknown` are
    taken in some versions only.
    """

    provider: str
    source: str
    unknown: tuple[str, ...]
    operators: dict[str, tuple[tuple[int, int | None], ...]]

    def takes(self, node: onnx.NodeProto, opset: int) -> bool | None:
        """Tell whether the provider takes a node; None where the source does not say."""
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


def coverage(provider: str, nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int]) -> ProviderCoverage:
    """Return which nodes of a model a provider takes; unknown where edge-sdk has no table of it."""
    path = Path(__file__).parent / "providers" / f"{provider}.json"
    table = msgspec.json.decode(path.read_bytes(), type=ProviderTable) if path.is_file() else None
    taken = [(node.op_type, table.takes(node, opsets.get("", 1)) if table else None) for node in nodes]
    return _covered(provider, table.source if table else "unknown", taken)


def _covered(provider: str, source: str, taken: Sequence[tuple[str, bool | None]]) -> ProviderCoverage:
    """Sum up what a provider does with nodes of these operators: takes them or not, or None for unknown."""
    unknown, not_taken = (tuple(sorted({name for name, it in taken if it is wanted})) for wanted in (None, False))
    return ProviderCoverage(provider, source, len(taken), sum(it is True for _, it in taken), unknown, not_taken)


_STEPS = {
    "If": "export it with a condition that is fixed (traced, not scripted)",
    "Loop": "export it with the loop unrolled",
    "Scan": "export it with the loop unrolled",
}


def judge_nodes(
    graph: onnx.GraphProto, table: KernelTable, opsets: Mapping[str, int], around: Values | None = None
) -> list[tuple[onnx.NodeProto, Verdict]]:
    """Say of every node, those inside control flow included, what ONNX Runtime's CPU provider does with it.

    `around` has the tensors of the graphs that this one is inside of.
    """
    values = {**(around or {}), **graph_values(graph)}
    judged = []
    for node in graph.node:
        judged.append((node, table.judge(node, values, opsets)))
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                judged += judge_nodes(inner, table, opsets, values)
    return judged


def check_kernels(judged: Sequence[tuple[onnx.NodeProto, Verdict]], runtime: str, opset: int) -> list[Finding]:
    """Name the nodes that the CPU provider does not run, or not as they are; each kind of node once."""
    groups: dict[tuple[str, str, Verdict], list[onnx.NodeProto]] = {}
    for node, verdict in judged:
        if verdict.kind != "runs":
            groups.setdefault((node.domain, node.op_type, verdict), []).append(node)
    findings = []
    for (_, _, verdict), nodes in groups.items():
        rule, what, step = _words(nodes[0], verdict, f"{runtime}'s CPU provider", opset)
        make = warning if verdict.is_supported else error
        findings.append(make(rule, f"{_named(nodes)}: {what}", step, nodes[0].name))
    return findings


def check_control_flow(proto: onnx.ModelProto) -> list[Finding]:
    """Name If, Loop and Scan: they run, but hide what is in them from quantization and from other providers."""
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes_of(proto.graph.node):
        if node.op_type in _STEPS and not node.domain:
            groups.setdefault(node.op_type, []).append(node)
    said = "ONNX Runtime runs {}, but what is inside stays float"
    return [
        warning("control-flow", f"{_named(nodes)}: {said.format(kind)}", _STEPS[kind], nodes[0].name)
        for kind, nodes in groups.items()
    ]


def cover(
    providers: Sequence[str],
    judged: Sequence[tuple[onnx.NodeProto, Verdict]],
    opsets: Mapping[str, int],
    source: str,
) -> tuple[ProviderCoverage, ...]:
    """Say of each provider, in the target's order, what it takes."""
    nodes = [node for node, _ in judged]
    on_cpu = _covered(CPU, source, [(node.op_type, verdict.is_supported) for node, verdict in judged])
    return tuple(on_cpu if provider == CPU else coverage(provider, nodes, opsets) for provider in providers)


def _named(nodes: Sequence[onnx.NodeProto]) -> str:
    return f"node {nodes[0].name!r}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")


def _words(node: onnx.NodeProto, verdict: Verdict, provider: str, opset: int) -> tuple[str, str, str]:
    is_onnx = node.domain in ONNX_DOMAINS
    name = node.op_type if is_onnx else f"{node.domain}.{node.op_type}"
    if verdict.kind in ("casts", "type"):
        has = f"{name} of tensor({verdict.element}): {provider} has it for {', '.join(verdict.available)}"
        if verdict.is_supported:
            return "kernel", f"{has}; it will run in float, between Casts", "export the model in float32"
        return "kernel", has, "cast to one of these types before it, or export the model in float32"
    if verdict.kind == "version":
        what = f"{provider} has {name}, but not as opset {opset} defines it"
        return "kernel", what, "export the model with a lower opset"
    if node.domain == EXTENSIONS_DOMAIN:
        what = f"custom operator {name}, which comes with onnxruntime-extensions"
        install = f"pip install '{EXTENSIONS_PACKAGE}'"
        if verdict.is_supported:
            return "custom-operator", f"{what}; the device needs that too", f"there: {install}"
        return "custom-operator", f"{what}; that is not installed here", install
    if not is_onnx:
        what = f"custom operator {name}, which {provider} does not have, and edge-sdk brings no operators"
        return "custom-operator", what, "export the model in ONNX's own operators, or without that layer"
    schema = operator_schema(node.domain, node.op_type, opset)
    if schema is None or schema.is_deprecated:
        what = f"ONNX has no operator {name} in opset {opset}"
        return "unknown-operator", what, "export the model again, with the opset that it is written for"
    return "kernel", f"{provider} has no {name}", "export the model with other operators in its place"
