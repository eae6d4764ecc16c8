"""OperatorSchema: what an operator's inputs and outputs are called, for ONNX's own and ONNX Runtime's operators.

Owns the look-up. ONNX's schemas come from onnx; those of other domains that ONNX Runtime has, from ONNX Runtime.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import onnx

from edge_sdk_tools.check.values import Value, Values

ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


class Parameter(msgspec.Struct, frozen=True):
    """One input or output.

    Attributes:
        name: as the schema calls it.
        type_name: the type parameter (`T`), or a type.
        is_variadic: takes all that follow.
    """

    name: str
    type_name: str
    is_variadic: bool


class OperatorSchema(msgspec.Struct, frozen=True):
    """One version of one operator.

    Attributes:
        since_version: the opset that brought this version.
        inputs, outputs: in order.
        is_deprecated: it is in no opset from this one on.
    """

    since_version: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    is_deprecated: bool

    def value_of(self, parameter: str, node: onnx.NodeProto, values: Values) -> Value | None:
        """The first tensor of a node that a type parameter, or a parameter's own name, stands for; None for none."""
        for formals, names in ((self.inputs, node.input), (self.outputs, node.output)):
            for formal, name in zip(_spread(formals, len(names)), names, strict=False):
                if name and parameter in (formal.type_name, formal.name):
                    return values.get(name)
        return None


@functools.cache
def operator_schema(domain: str, operator: str, opset: int) -> OperatorSchema | None:
    """Find the version of an operator that `opset` means; None when there is none."""
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
    """Of the domains that onnx knows nothing of; each operator there has one version."""
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
