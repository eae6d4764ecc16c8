"""The export gate: check a model before any other step uses it.

`examine` returns all findings; `check_model` returns a model to work with. A limited process reads the file first; this
process reads only sound files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec, read_labels
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, one_line
from edge_sdk_tools.check.labels import check_labels
from edge_sdk_tools.check.model_file import open_model
from edge_sdk_tools.check.report import CPU, CheckReport, RefusedModelError, in_order
from edge_sdk_tools.check.runtimes import check_options
from edge_sdk_tools.check.sandbox import Examined, Job, Limits, Runtime, run_limited

if TYPE_CHECKING:
    import onnx

_MODULE = "edge_sdk_tools.check.worker"
_LIMITS = Limits(memory_mb=4096, cpu_s=60, wall_s=180)
"""Of a model of no size; activations of the largest inputs that a device takes fit in."""
_MEMORY_MB_PER_MB = 4
_CPU_S_PER_MB = 0.2
_HERE = (CPU,)


class CheckedModel(msgspec.Struct, frozen=True, eq=False):
    """A model that passed the gate.

    Attributes:
        proto: with fixed shapes, inferred throughout.
        sha256: of the file it came from and of those that hold its weights, in hex.
        labels: one an output class.
        opset: of ai.onnx, raised where it was too low.
    """

    proto: onnx.ModelProto
    sha256: str
    labels: tuple[str, ...]
    opset: int


def examine(spec: ModelSpec, target: Target | None = None) -> CheckReport:
    """Return all findings about the model of `spec`.

    Returns:
        All findings at once; the model passes when none of them is an error.
    """
    return _examine(spec, target, wants_model=False).report


def check_model(spec: ModelSpec, target: Target | None) -> CheckedModel:
    """Load, check and fix the model of `spec`.

    Raises:
        ModelError: with the first thing that is wrong, where, what was expected and got.
        MissingDependencyError: onnx is not installed.
    """
    examined = _examine(spec, target, wants_model=True)
    report = examined.report
    if not report.passed:
        raise ModelError(_first_error(spec, target, report))
    from edge_sdk_tools.check.model_file import assemble

    try:
        proto = assemble(Path(spec.model), report.files, examined.skeleton, examined.weights, report.sha256)
    except RefusedModelError as cause:  # it was there a moment ago
        raise ModelError(f"{spec.model}: {cause}") from cause
    return CheckedModel(proto, report.sha256, read_labels(Path(spec.labels)), report.used_opset or 0)


def _examine(spec: ModelSpec, target: Target | None, *, wants_model: bool) -> Examined:
    try:
        examined = _examine_file(spec, target, wants_model=wants_model)
    except RefusedModelError as cause:
        version = target.min_onnxruntime if target else ""
        name = target.name if target else None
        finding = cause.finding("file")
        examined = Examined(
            CheckReport(name=spec.name, model=spec.model, target=name, onnxruntime=version, findings=(finding,))
        )
    report = _naming_file(msgspec.structs.replace(examined.report, model=str(Path(spec.model))))
    return msgspec.structs.replace(examined, report=_with_labels(spec, report))


def _examine_file(spec: ModelSpec, target: Target | None, *, wants_model: bool) -> Examined:
    """Examine the model alone.

    Raises:
        RefusedModelError: there is no such file, or it brings down the process that reads it.
    """
    path = Path(spec.model)
    with open_model(path) as file:
        size_mb = os.fstat(file.fileno()).st_size / 1e6
    limits = Limits(
        memory_mb=_LIMITS.memory_mb + int(size_mb * _MEMORY_MB_PER_MB),
        cpu_s=_LIMITS.cpu_s + int(size_mb * _CPU_S_PER_MB),
        wall_s=_LIMITS.wall_s + int(size_mb * _CPU_S_PER_MB * 3),
    )
    job = Job(spec.name, os.fsencode(path.absolute()), spec.input, _runtime(target), wants_model)
    answer = run_limited(_MODULE, msgspec.msgpack.encode(job), limits)
    return msgspec.msgpack.decode(answer, type=Examined)


def _runtime(target: Target | None) -> Runtime:
    if target is None:
        return Runtime(None, None, _HERE, None, None)
    return Runtime(target.min_onnxruntime, target.name, tuple(target.providers), target.max_opset, target.memory_mb)


def _naming_file(report: CheckReport) -> CheckReport:
    """Put the user's path of the file into findings about the whole file."""
    named = (
        msgspec.structs.replace(f, where=report.model, what=f"{report.model}: {f.what}")
        if f.rule == "file" and not f.where
        else f
        for f in report.findings
    )
    return msgspec.structs.replace(report, findings=tuple(named))


def _with_labels(spec: ModelSpec, report: CheckReport) -> CheckReport:
    """Add what labels and decoder make of the outputs."""
    found = check_labels(spec, report)
    passed = report.passed and not any(finding.severity == "error" for finding in found)
    return msgspec.structs.replace(report, passed=passed, findings=in_order((*report.findings, *found)))


def _first_error(spec: ModelSpec, target: Target | None, report: CheckReport) -> str:
    first, *others = report.of("error")
    names_file = first.what.startswith((one_line(f"{spec.labels}: "), one_line(f"{report.model}: ")))
    line = first.line if names_file else f"{report.model}: {first.line}"
    if not others:
        return line
    on = f" {check_options(target)}" if target else ""
    return f"{line} (and {len(others)} more: `edge-sdk check MODEL.toml{on}` lists them)"
