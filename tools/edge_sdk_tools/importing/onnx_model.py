"""ONNX -> ONNX as edge-sdk wants it: opset raised, weights inside, shapes fixed, compared with what it was.

The export gate does the changing; this owns the proof that nothing else changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edge_sdk.core.errors import ModelError, UsageError
from edge_sdk.sources.location import is_utf8
from edge_sdk_tools.check import check_model
from edge_sdk_tools.importing.comparison import Runner, compare_model
from edge_sdk_tools.importing.global_pool import pool_means
from edge_sdk_tools.importing.import_plan import plan_import
from edge_sdk_tools.importing.import_report import ImportReport, OnProgress
from edge_sdk_tools.importing.observation import observe
from edge_sdk_tools.importing.source_file import check_source


def import_onnx(
    source: Path,
    model_toml: Path,
    *,
    target_name: str | None = None,
    images: Sequence[Path] = (),
    on_progress: OnProgress = lambda _step, _done, _total: None,
) -> ImportReport:
    """Rewrite an ONNX model of opset 7 or more as the ONNX file that model.toml names.

    Args:
        source: the model; files with its weights may lie beside it.
        model_toml: describes the input and names the file to write, which is another one than `source`.
        target_name: name or path of a target, whose ONNX Runtime limits the opset.
        images: folders of images to compare on; model.toml's calibration folder by default.
        on_progress: for progress bars.

    Raises:
        EdgeError: of the family that says who can mend it; what was at the file's place is still there.
    """
    check_source(source, "SOURCE is the ONNX file to import")
    if not is_utf8(str(source)):
        raise UsageError(f"{source}: its path is not valid UTF-8, which ONNX Runtime cannot take; rename it")
    plan = plan_import(source, model_toml, target_name, images)
    on_progress("check", 0, 1)
    proto = check_model(msgspec.structs.replace(plan.spec, model=str(source)), plan.target).proto
    pool_means(proto)
    on_progress("check", 1, 1)
    on_progress("compare", 0, 1)
    # Not optimized: what ONNX Runtime's optimizer gets wrong must not be wrong on both sides.
    observation = observe(Runner(str(source), str(source), optimize=False), plan.probes)
    written = f"{source} as it would be written"
    comparison = compare_model(proto.SerializeToString(), written, plan.probes, observation.outputs, observation.names)
    if comparison.problem is not None:
        remedy = "" if comparison.is_explained else "; export it again where it was trained, with opset 17"
        raise ModelError(f"{source}: with its opset raised and its shapes fixed {comparison.problem}{remedy}")
    on_progress("compare", 1, 1)
    return plan.finish(proto, "ONNX", "the export gate", comparison.outputs)
