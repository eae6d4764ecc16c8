"""ONNX -> ONNX as edge-sdk wants it: opset raised, weights inside, shapes fixed, compared with what it was.

Means over a whole picture become GlobalAveragePool, which has an integer kernel: torch.export takes
`adaptive_avg_pool2d(x, 1)` apart into ReduceMean, around which a quantized model turns to float and back
(docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx
from onnx import helper

from edge_sdk.core.errors import UsageError
from edge_sdk.sources.location import is_utf8
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.graph.index import GraphIndex, attribute, graph_values, nodes_of
from edge_sdk_tools.importers.comparison import Runner, observe
from edge_sdk_tools.importers.plan import ImportReport, check_source, plan_import
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent

_RANK = 4  # NCHW


def pool_means(proto: onnx.ModelProto) -> int:
    """Replace, in place, every ReduceMean over height and width that keeps its dimensions; returns how many.

    The shapes of the tensors must be known, as exporters write them; axes that are an input must be an initializer.
    """
    links, values = GraphIndex(proto.graph), graph_values(proto.graph)
    four = {name for name, value in values.items() if value.shape is not None and len(value.shape) == _RANK}
    means = [node for node in proto.graph.node if node.op_type == "ReduceMean" and node.input[0] in four]
    found = [node for node in means if _means_pictures(node, links)]
    axes = {name for node in found for name in node.input[1:]}
    for node in found:
        node.CopyFrom(helper.make_node("GlobalAveragePool", node.input[:1], node.output, node.name))
    axes.difference_update(name for node in nodes_of(proto.graph.node) for name in node.input)
    for tensor in [tensor for tensor in proto.graph.initializer if tensor.name in axes]:
        proto.graph.initializer.remove(tensor)
    return len(found)


def _means_pictures(node: onnx.NodeProto, links: GraphIndex) -> bool:
    axes = attribute(node, "axes")  # an attribute until opset 17, an input since
    if len(node.input) > 1 and (given := links.value(node.input[1])) is not None:
        axes = given.tolist()
    return bool(attribute(node, "keepdims", 1)) and axes is not None and {a % _RANK for a in axes} == {2, 3}


def import_onnx(
    source: Path,
    model_toml: Path,
    *,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    on_progress: OnProgress = silent,
) -> ImportReport:
    """Rewrite an ONNX model of opset 7 or more as the ONNX file that model.toml names, which is another one.

    Files with its weights may lie beside it. The arguments are those of `plan_import`.
    """
    check_source(source, "SOURCE is the ONNX file to import")
    if not is_utf8(str(source)):
        raise UsageError(f"{source}: its path is not valid UTF-8, which ONNX Runtime cannot take; rename it")
    plan = plan_import(source, model_toml, target_name, images)
    with one_step(on_progress, "check"):
        proto = check_model(msgspec.structs.replace(plan.spec, model=str(source)), plan.target).proto
        pool_means(proto)
    with one_step(on_progress, "compare"):
        # Not optimized: what ONNX Runtime's optimizer gets wrong must not be wrong on both sides.
        runner = Runner(str(source), str(source), optimize=False)
        observation = observe(runner, str(source), plan.probes)
        blame = "with its opset raised and its shapes fixed "
        remedy = "; export it again where it was trained, with opset 17"
        comparison = plan.verify(proto, "as it would be written", observation, blame, remedy)
    return plan.finish(proto, "ONNX", "the export gate", comparison.outputs)
