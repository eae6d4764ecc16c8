"""The body of an operator that ONNX defines by other operators, as a graph of its own with the types of one call.

Owns the call's substitution. ONNX Runtime puts such a body in the place of a node for which it has no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import onnx
from onnx import helper

from edge_sdk_tools.check.values import Values

_IR_VERSION = 8


def function_body(node: onnx.NodeProto, values: Values, opset: int) -> onnx.ModelProto | None:
    """Write out what a node stands for.

    Args:
        node: a call of one of ONNX's own operators.
        values: the types of its inputs.
        opset: of the model, for the node's domain.

    Returns:
        A model whose graph is the body, with inferred types; empty when the body depends on a type that is not known;
        None when ONNX has no body for this operator.
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


class _Bodies(Protocol):
    """What onnx's OpSchema offers beside what its stubs say."""

    @property
    def function_opset_versions(self) -> Sequence[int]: ...
    @property
    def context_dependent_function_opset_versions(self) -> Sequence[int]: ...
    def get_function_with_opset_version(self, version: int, /) -> bytes: ...
    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, input_types: list[bytes], /
    ) -> bytes: ...


def _function(node: onnx.NodeProto, values: Values, opset: int) -> onnx.FunctionProto | None:
    schema = cast("_Bodies", onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain))
    fixed = [version for version in schema.function_opset_versions if version <= opset]
    by_type = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
    function: onnx.FunctionProto | None = None
    if fixed:
        function = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fixed)))
    elif by_type:
        types = [_typed(name, name, values).type for name in node.input]
        if any(not type_.HasField("tensor_type") for name, type_ in zip(node.input, types, strict=True) if name):
            return onnx.FunctionProto()  # onnx crashes where it has to know a type and does not
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
    """A node of a function whose attributes that refer to the call's are replaced by them; graphs inside it too."""
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
