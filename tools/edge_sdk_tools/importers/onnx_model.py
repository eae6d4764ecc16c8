"""ONNX -> ONNX as edge-sdk wants it: opset raised, weights inside, shapes fixed, compared with what it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk.core.errors import UsageError
from edge_sdk.sources.location import is_utf8
from edge_sdk_tools.check.gate import check_model
from edge_sdk_tools.graph.index import pool_means
from edge_sdk_tools.importers.comparison import Runner, observe
from edge_sdk_tools.importers.plan import ImportReport, check_source, plan_import
from edge_sdk_tools.jobs.runner import OnProgress, one_step, silent


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
    with one_step(on_progress, "compare with the original"):
        original = onnx.load(source)
        original.ir_version = min(original.ir_version, proto.ir_version)  # newer ones are refused, and mean the same
        # Not optimized: what ONNX Runtime's optimizer gets wrong must not be wrong on both sides.
        runner = Runner(original.SerializeToString(), str(source), optimize=False)
        observation = observe(runner, str(source), plan.probes)
        blame = "with its opset raised and its shapes fixed "
        remedy = "; export it again where it was trained, with opset 17"
        comparison = plan.verify(proto, "as it would be written", observation, blame, remedy)
    return plan.finish(proto, "ONNX", "edge-sdk's check", comparison.outputs)
