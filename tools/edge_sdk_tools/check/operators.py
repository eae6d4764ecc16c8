"""The operators of a model, held against what ONNX Runtime and the target's execution providers have.

`CpuKernels` finds a kernel of the CPU provider by ONNX Runtime's own rules: by version, by type, through the function
body of an operator, and through inserted Casts; docs/check.md says how they were compared with ONNX Runtime. Tables are
data: kernels.json was measured by tools/scripts/kernel_tables.py, one table for each ONNX Runtime; providers/NAME.json
follows the documents of the providers' makers. The rest of the module says what is missing, in words.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx
from onnx import helper

from edge_sdk.bundle.manifest import parse_version
from edge_sdk.inference.runtime import EXTENSIONS_DOMAIN, EXTENSIONS_PACKAGE
from edge_sdk_tools.check.report import CPU, Finding, ProviderCoverage
from edge_sdk_tools.graph.index import Value, Values, graph_values, nodes_of
from edge_sdk_tools.graph.profile import has_extensions

_IR_VERSION = 8


def function_body(node: onnx.NodeProto, values: Values, opset: int) -> onnx.ModelProto | None:
    """Return the function body of a node, which computes the same with other operators, as a model with inferred types.

    The graph is empty when the body depends on an unknown type. None when ONNX has no body for this operator.
    """
    function = _function(node, values, opset)
    if function is None:
        return None
    given = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    nodes = [_substituted(inside, given) for inside in function.node]
    inputs = [
        _typed(formal, actual, values) for formal, actual in zip(function.input, node.input, strict=False) if actual
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in function.output]
    graph = helper.make_graph(nodes, node.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=list(function.opset_import), ir_version=_IR_VERSION)
    return onnx.shape_inference.infer_shapes(model)


def _function(node: onnx.NodeProto, values: Values, opset: int) -> onnx.FunctionProto | None:
    # Any: onnx's stubs lack what it has about functions.
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain)
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    by_type = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    function: onnx.FunctionProto | None = None
    if fixed:
        function = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fixed)))
    elif by_type:
        types = [_typed(name, name, values).type for name in node.input]
        if any(not type_.HasField("tensor_type") for name, type_ in zip(node.input, types, strict=True) if name):
            return onnx.FunctionProto()  # onnx crashes where it needs a type that is unknown
        data = schema.get_context_dependent_function_with_opset_version(
            max(by_type), node.SerializeToString(), [type_.SerializeToString() for type_ in types]
        )
        function = onnx.FunctionProto.FromString(data)
    return function


def _typed(formal: str, actual: str, values: Values) -> onnx.ValueInfoProto:
    value = values.get(actual)
    if value is None or value.element is None:
        return onnx.ValueInfoProto(name=formal)
    element = onnx.TensorProto.DataType.Value(value.element.upper())
    return helper.make_tensor_value_info(formal, element, value.shape)


def _substituted(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """A node of a function with references to attributes replaced by `given`, in graphs inside it too."""
    result = onnx.NodeProto()
    result.CopyFrom(node)
    del result.attribute[:]
    for attribute in node.attribute:
        replaced = onnx.AttributeProto()
        replaced.CopyFrom(given.get(attribute.ref_attr_name, attribute))
        replaced.name = attribute.name
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        if replaced.HasField("g"):
            nodes = [_substituted(inside, given) for inside in replaced.g.node]
            del replaced.g.node[:]
            replaced.g.node.extend(nodes)
        result.attribute.append(replaced)
    return result


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

    def implements(self, since_version: int) -> bool:
        """Tell whether the kernel implements the operator's version `since_version`."""
        return implements(self.first, self.last, since_version)


def implements(first: int, last: int | None, since_version: int) -> bool:
    """Tell whether a kernel for an operator's versions `first` to `last` implements its version `since_version`.

    The rule is that of ONNX Runtime's KernelRegistry: an open end (None) includes no later version of the operator,
    because a later version may compute something else.
    """
    return first == since_version or (last is not None and first < since_version <= last)


class KernelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The kernels of one ONNX Runtime.

    Attributes:
        max_opset, max_ir_version: the highest ai.onnx opset and IR version of a model that it loads, measured.
        type_sets: sets of types that many kernels share, by name.
        kernels: kernels by domain (`ai.onnx` for the default one) and operator.
    """

    onnxruntime: str
    max_opset: int
    max_ir_version: int
    type_sets: dict[str, str]
    kernels: dict[str, dict[str, tuple[Kernel, ...]]]

    def find(self, domain: str, operator: str) -> tuple[Kernel, ...]:
        """Return all kernels of an operator; empty for an unknown operator."""
        return self.kernels.get(domain or "ai.onnx", {}).get(operator, ())

    def types(self, kernel: Kernel, parameter: str) -> tuple[str, ...]:
        """Return the element types (`float`, `int64` ...) that a kernel takes for a type parameter, sorted."""
        text = kernel.types.get(parameter, "")
        return tuple((self.type_sets[text[1:]] if text.startswith("=") else text).split())


@functools.cache
def kernel_table(onnxruntime: str) -> KernelTable | None:
    """Read the table of the nearest version that is not above `onnxruntime`; None below the lowest.

    Operators and types are hardly ever removed, so that an older table errs on the safe side.
    """
    tables = msgspec.json.decode(KERNEL_TABLES.read_bytes(), type=dict[str, msgspec.Raw])
    chosen = [version for version in tables if parse_version(version) <= parse_version(onnxruntime)]
    return msgspec.json.decode(tables[max(chosen, key=parse_version)], type=KernelTable) if chosen else None


ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


class Parameter(msgspec.Struct, frozen=True):
    """One input or output of an operator.

    Attributes:
        type_name: the type parameter (`T`), or a type.
        is_variadic: whether it stands for all further inputs or outputs.
    """

    name: str
    type_name: str
    is_variadic: bool


class OperatorSchema(msgspec.Struct, frozen=True):
    """One version of one operator.

    Attributes:
        since_version: the opset that brought this version.
        is_deprecated: whether the operator is absent from this opset on.
    """

    since_version: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    is_deprecated: bool

    def value_of(self, parameter: str, node: onnx.NodeProto, values: Values) -> Value | None:
        """Return the first tensor of a node for a type parameter or the name of a parameter; None without one."""
        for formals, names in ((self.inputs, node.input), (self.outputs, node.output)):
            for formal, name in zip(_spread(formals, len(names)), names, strict=False):
                if name and parameter in (formal.type_name, formal.name):
                    return values.get(name)
        return None


@functools.cache
def operator_schema(domain: str, operator: str, opset: int) -> OperatorSchema | None:
    """Return the version of an operator in `opset`; None when there is none."""
    if domain not in ONNX_DOMAINS:
        return _runtime_schemas().get((domain, operator))
    try:
        found = onnx.defs.get_schema(operator, opset, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None
    inputs, outputs = (
        tuple(Parameter(p.name, p.type_str, p.option == _VARIADIC) for p in side)
        for side in (found.inputs, found.outputs)
    )
    return OperatorSchema(found.since_version, inputs, outputs, found.deprecated)


@functools.cache
def _runtime_schemas() -> Mapping[tuple[str, str], OperatorSchema]:
    """The schemas of domains that onnx does not know; each operator there has one version."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    schemas = {}
    for found in get_all_operator_schema():
        inputs, outputs = (
            tuple(Parameter(p.name, p.typeStr, p.option.name == "Variadic") for p in side)
            for side in (found.inputs, found.outputs)
        )
        schema = OperatorSchema(int(found.since_version), inputs, outputs, bool(found.deprecated))
        schemas[str(found.domain), str(found.name)] = schema
    return schemas


def _spread(formals: Sequence[Parameter], count: int) -> tuple[Parameter, ...]:
    if formals and formals[-1].is_variadic:
        return (*formals, *[formals[-1]] * (count - len(formals)))
    return tuple(formals)


_DEEPEST_BODY = 8  # bodies of ONNX's own operators nest two or three times
_HALF = "float16"


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on one node: which kernel runs it, or why none does.

    Attributes:
        kind: `runs`; `casts` when it runs in float, between Casts that ONNX Runtime inserts; `type` when there are
            kernels, but not for this type; `version` when there are kernels, but not for this version of the operator;
            `missing` when there are none; `extension` when the installed onnxruntime-extensions has its domain.
        operator: the operator that the verdict is about: the node's own, or one in its function body.
        element, available: the type that has no kernel, and the types that have one.
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
    """The CPU provider of one ONNX Runtime."""

    def __init__(self, table: KernelTable) -> None:
        self.table = table

    def judge(self, node: onnx.NodeProto, values: Values, opsets: Mapping[str, int]) -> Verdict:
        """Return the verdict on a node; a tensor of unknown type matches every kernel."""
        return self._judge(node, values, opsets, _DEEPEST_BODY)

    def _judge(self, node: onnx.NodeProto, values: Values, opsets: Mapping[str, int], levels: int) -> Verdict:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) == ("", "Constant"):  # becomes a weight when the model is loaded
            return Verdict("runs", node.op_type)
        if domain == EXTENSIONS_DOMAIN and has_extensions():  # only a trial run tells whether it has the operator
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
        """The parameters whose type a kernel does not take."""
        return [p for p in kernel.types if given[p] is not None and given[p] not in self.table.types(kernel, p)]


def _may_have_body(verdict: Verdict, domain: str) -> bool:
    return not verdict.is_supported and domain in ONNX_DOMAINS


def _element(parameter: str, node: onnx.NodeProto, values: Values, schema: OperatorSchema) -> str | None:
    value = schema.value_of(parameter, node, values)
    return value.element if value else None


PROVIDER_TABLES = Path(__file__).parent / "providers"
"""The folder of the provider tables, one NAME.json for each provider."""

_MAKES_NO_KERNEL = "Constant"  # becomes a weight when the model is loaded


class ProviderTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The operators and types that one execution provider supports.

    Attributes:
        source: the document that the table follows.
        unknown: operators of ai.onnx that the provider takes in some versions only.
        operators: operators of ai.onnx that the provider takes, each with its first and last versions as in `Kernel`.
            Empty where the document names no versions.
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


@functools.cache
def provider_table(provider: str) -> ProviderTable | None:
    """Read the table of a provider; None when edge-sdk has none."""
    path = PROVIDER_TABLES / f"{provider}.json"
    return msgspec.json.decode(path.read_bytes(), type=ProviderTable) if path.is_file() else None


def coverage(provider: str, nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int]) -> ProviderCoverage:
    """Return which nodes of a model a provider takes."""
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


_STEPS = {
    "If": "export it with a condition that is fixed (traced, not scripted)",
    "Loop": "export it with the loop unrolled",
    "Scan": "export it with the loop unrolled",
}


def judge_nodes(
    proto: onnx.ModelProto, kernels: CpuKernels, opsets: Mapping[str, int]
) -> list[tuple[onnx.NodeProto, Verdict]]:
    """Say of every node, those inside control flow included, what ONNX Runtime's CPU provider does with it."""
    return _judge_graph(proto.graph, {}, kernels, opsets)


def check_kernels(judged: Sequence[tuple[onnx.NodeProto, Verdict]], runtime: str, opset: int) -> list[Finding]:
    """Name the nodes that the CPU provider does not run, or not as they are; each kind of node once."""
    groups: dict[tuple[str, str, Verdict], list[onnx.NodeProto]] = {}
    for node, verdict in judged:
        if verdict.kind != "runs":
            groups.setdefault((node.domain, node.op_type, verdict), []).append(node)
    return [_kernel_finding(nodes, verdict, runtime, opset) for (_, _, verdict), nodes in groups.items()]


def check_control_flow(proto: onnx.ModelProto) -> list[Finding]:
    """Name If, Loop and Scan: they run, but hide what is in them from quantization and from other providers."""
    groups: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes_of(proto.graph.node):
        if node.op_type in _STEPS and not node.domain:
            groups.setdefault(node.op_type, []).append(node)
    return [
        Finding(
            severity="warning",
            rule="control-flow",
            where=nodes[0].name,
            what=f"{_named(nodes)}: ONNX Runtime runs {operator}, but what is inside stays float",
            next_step=_STEPS[operator],
        )
        for operator, nodes in groups.items()
    ]


def cover(
    providers: Sequence[str],
    judged: Sequence[tuple[onnx.NodeProto, Verdict]],
    opsets: Mapping[str, int],
    source: str,
) -> tuple[ProviderCoverage, ...]:
    """Say of each provider, in the target's order, what it takes."""
    nodes = [node for node, _ in judged]
    left = tuple(sorted({node.op_type for node, verdict in judged if not verdict.is_supported}))
    on_cpu = sum(verdict.is_supported for _, verdict in judged)
    return tuple(
        ProviderCoverage(CPU, source, len(nodes), on_cpu, (), left) if p == CPU else coverage(p, nodes, opsets)
        for p in providers
    )


def _judge_graph(
    graph: onnx.GraphProto, around: Values, kernels: CpuKernels, opsets: Mapping[str, int]
) -> list[tuple[onnx.NodeProto, Verdict]]:
    values = {**around, **graph_values(graph)}
    judged = []
    for node in graph.node:
        judged.append((node, kernels.judge(node, values, opsets)))
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                judged += _judge_graph(inner, values, kernels, opsets)
    return judged


def _kernel_finding(nodes: Sequence[onnx.NodeProto], verdict: Verdict, runtime: str, opset: int) -> Finding:
    node = nodes[0]
    rule, what, step = _words(node, verdict, f"{runtime}'s CPU provider", opset)
    return Finding(
        severity="warning" if verdict.is_supported else "error",
        rule=rule,
        where=node.name,
        what=f"{_named(nodes)}: {what}",
        next_step=step,
    )


def _named(nodes: Sequence[onnx.NodeProto]) -> str:
    return f"node {nodes[0].name!r}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")


def _words(node: onnx.NodeProto, verdict: Verdict, provider: str, opset: int) -> tuple[str, str, str]:
    """Rule, sentence and next step for a node that does not simply run."""
    is_onnx = node.domain in ONNX_DOMAINS
    name = node.op_type if is_onnx else f"{node.domain}.{node.op_type}"
    of_body = f"{verdict.operator} in the body of {name}" if verdict.operator != node.op_type else name
    if verdict.kind in ("casts", "type"):
        has = f"{of_body} of tensor({verdict.element}): {provider} has it for {', '.join(verdict.available)}"
        if verdict.is_supported:
            return "kernel", f"{has}; it will run in float, between Casts", "export the model in float32"
        return "kernel", has, "cast to one of these types before it, or export the model in float32"
    if verdict.kind == "version":
        what = f"{provider} has {of_body}, but not as opset {opset} defines it"
        return "kernel", what, "export the model with a lower opset"
    if node.domain == EXTENSIONS_DOMAIN:
        return _of_extensions(name, verdict)
    if not is_onnx:
        what = f"custom operator {name}, which {provider} does not have, and edge-sdk brings no operators"
        return "custom-operator", what, "export the model in ONNX's own operators, or without that layer"
    schema = operator_schema(node.domain, node.op_type, opset)
    if schema is None or schema.is_deprecated:
        what = f"ONNX has no operator {name} in opset {opset}"
        return "unknown-operator", what, "export the model again, with the opset that it is written for"
    return "kernel", f"{provider} has no {of_body}", "export the model with other operators in its place"


def _of_extensions(name: str, verdict: Verdict) -> tuple[str, str, str]:
    what = f"custom operator {name}, which comes with onnxruntime-extensions"
    if verdict.is_supported:
        return "custom-operator", f"{what}; the device needs that too", f"there: pip install '{EXTENSIONS_PACKAGE}'"
    return "custom-operator", f"{what}; that is not installed here", f"pip install '{EXTENSIONS_PACKAGE}'"
