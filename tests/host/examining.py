"""Reports on models made in a test: without the limited process, which costs half a second a model."""

from __future__ import annotations

from pathlib import Path

import onnx

from edge_sdk.model_spec import InputSpec
from edge_sdk.target import load_target
from edge_sdk_tools.check.examination import examine_model
from edge_sdk_tools.check.job import Examined, Job, Runtime
from edge_sdk_tools.check.report import CheckReport, Finding

SIZE = 8


def examined(
    folder: Path,
    model: onnx.ModelProto | bytes | None,
    *,
    target: str | None = "arm64",
    version: str | None = None,
    size: int = SIZE,
) -> Examined:
    """Examine a model whose image is 1x3x`size`x`size`, for a target, or for another version of ONNX Runtime.

    Without a model, the one that lies in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if model is not None:
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    found = load_target(target) if target else None
    runtime = Runtime(
        version=version or (found.min_onnxruntime if found else None),
        target=target,
        providers=tuple(found.providers) if found else ("CPUExecutionProvider",),
        max_opset=found.max_opset if found and not version else None,
        memory_mb=found.memory_mb if found else None,
    )
    return examine_model(Job("tiny", str(path), InputSpec(size_wh=(size, size)), runtime, wants_model=True))


def report_on(
    folder: Path,
    model: onnx.ModelProto | bytes | None,
    *,
    target: str | None = "arm64",
    version: str | None = None,
    size: int = SIZE,
) -> CheckReport:
    """The report alone; whatever it says must have a next step."""
    report = examined(folder, model, target=target, version=version, size=size).report
    assert all(finding.next_step for finding in report.findings)
    return report


def only(report: CheckReport, rule: str) -> Finding:
    """The one finding of a rule."""
    [finding] = [finding for finding in report.findings if finding.rule == rule]
    return finding
