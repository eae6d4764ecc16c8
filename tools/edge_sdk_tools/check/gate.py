"""Check a model before any other step uses it.

`examine` returns all findings; `check_model` returns a model to work with. A limited process reads the file first; this
process reads only sound files. A model must run in the lowest ONNX Runtime that its bundle admits: bundles admit the
versions in which their golden outputs were replayed, which are the one that builds and those of `--prove-runtime`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import onnx

from edge_sdk.bundle.manifest import RuntimeRange, parse_version
from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import ModelError, UsageError, one_line
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.tasks.entry import Labels
from edge_sdk_tools.check.labels import check_labels
from edge_sdk_tools.check.model_file import assemble, open_model
from edge_sdk_tools.check.operators import kernel_table
from edge_sdk_tools.check.report import CheckReport, RefusedModelError, error, in_order
from edge_sdk_tools.check.sandbox import Examined, Job, Limits, run_limited
from edge_sdk_tools.datasets.class_names import read_labels


def runtime_range(target: Target, versions: Sequence[str]) -> RuntimeRange:
    """Return the range of ONNX Runtime versions, from the lowest that will be proved to the one that builds.

    A UsageError says that a text is no version, target and builder do not allow it, or no device could run the bundle.
    """
    _check_versions(target, versions)
    lowest, limit = min([*versions, onnxruntime_version()], key=parse_version), target.max_onnxruntime
    if limit and parse_version(lowest) > parse_version(limit):
        raise UsageError(
            f"{target.name} has ONNX Runtime {limit} at most and {lowest} builds: give --prove-runtime {limit}, or no "
            "device could run the bundle"
        )
    return RuntimeRange(lowest, onnxruntime_version())


def as_admitted(target: Target, versions: Sequence[str]) -> Target:
    """Return the target with the lowest ONNX Runtime that its bundle admits, and the highest opset that this one runs.

    Where the target cannot have the version that builds, its highest counts, because every build must prove that one.
    Errors are those of `runtime_range`.
    """
    _check_versions(target, versions)
    limit = [target.max_onnxruntime] if target.max_onnxruntime else []
    lowest = min([*versions, *limit, onnxruntime_version()], key=parse_version)
    table = kernel_table(lowest)
    if table is None or parse_version(lowest) <= parse_version(target.min_onnxruntime):
        return target
    return msgspec.structs.replace(target, min_onnxruntime=lowest, max_opset=table.max_opset)


def _check_versions(target: Target, versions: Sequence[str]) -> None:
    span = RuntimeRange(target.min_onnxruntime, onnxruntime_version())
    expected = f"a version from {span.minimum}, the lowest of {target.name}, to {span.maximum}, which builds"
    for wanted in versions:
        if not re.fullmatch(r"\d+\.\d+\.\d+", wanted) or not span.admits(wanted):
            raise UsageError(f"--prove-runtime {wanted}: expected {expected}")


_MODULE = "edge_sdk_tools.check.examination"
_LIMITS = Limits(memory_mb=4096, cpu_s=60, wall_s=180)
"""Limits for an empty file; the activations of the largest inputs that a device takes fit in."""
_MEMORY_MB_PER_MB = 4
_CPU_S_PER_MB = 0.2


class CheckedModel(msgspec.Struct, frozen=True, eq=False):
    """A model that passed the gate: with fixed shapes, inferred throughout, and an opset that is high enough.

    `sha256` is that of the file it came from and of those that hold its weights, in hex.
    """

    proto: onnx.ModelProto
    sha256: str
    labels: Labels
    opset: int
    warnings: tuple[str, ...] = ()


def examine(
    spec: ModelSpec, target: Target | None = None, run: Callable[[CheckedModel], object] | None = None
) -> CheckReport:
    """Return all findings about the model of `spec` that is to be built; it passes when none of them is an error.

    What passes is given to `run`, where there is one; the ModelError that it raises is a finding too.
    """
    examined = _examine(spec, target, wants_model=run is not None)
    report = _judged(spec, examined.report, is_float=True)
    if run is None or not report.passed:
        return report
    try:
        run(_assembled(spec, examined, report))
    except ModelError as cause:
        what, _, step = str(cause).removeprefix(f"{spec.model}: ").partition("; ")
        found = error("run", what, step or "export the model again")
        return msgspec.structs.replace(report, passed=False, findings=in_order((*report.findings, found)))
    return report


def examine_as_declared(spec: ModelSpec) -> Examined:
    """Examine a model for this machine, without labels and decoder.

    Where the file itself fixes size, layout or channels, these count and not those of `spec`.
    """
    return _examine(spec, None, wants_model=True, adopts=True)


_INTEGER_TYPES = (
    *("ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger"),
    *("MatMulIntegerToFloat", "MatMulNBits", "QGemm", "QLinearConv", "QLinearMatMul", "QuantizeLinear"),
)
_NAMED = 3


def check_model(
    spec: ModelSpec, target: Target | None, examined: Examined | None = None, *, is_float: bool = False
) -> CheckedModel:
    """Load, check and fix the model of `spec`; a ModelError has the first thing that is wrong.

    `examined` is what `examine_as_declared` gave for the same input. A model that `is_float` is refused where it is
    quantized already: it rounds in ways of its own.
    """
    if examined is None:
        examined = _examine(spec, target, wants_model=True)
    report = _judged(spec, examined.report, is_float=is_float)
    if not report.passed:
        raise ModelError(_first_error(spec, target, report))
    return _assembled(spec, examined, report)


def _assembled(spec: ModelSpec, examined: Examined, report: CheckReport) -> CheckedModel:
    try:
        proto = assemble(Path(spec.model), report.files, examined.skeleton, report.sha256)
    except RefusedModelError as cause:  # it was there a moment ago
        raise ModelError(f"{spec.model}: {cause}") from cause
    warnings = tuple(finding.line for finding in report.of("warning"))
    return CheckedModel(proto, report.sha256, read_labels(Path(spec.labels)), report.used_opset or 0, warnings)


def _examine(spec: ModelSpec, target: Target | None, *, wants_model: bool, adopts: bool = False) -> Examined:
    path = Path(spec.model)
    job = Job(spec.name, os.fsencode(path.absolute()), spec.input, target, wants_model, adopts)
    try:
        with open_model(path) as file:
            size_mb = os.fstat(file.fileno()).st_size / 1e6
        limits = Limits(
            memory_mb=_LIMITS.memory_mb + int(size_mb * _MEMORY_MB_PER_MB),
            cpu_s=_LIMITS.cpu_s + int(size_mb * _CPU_S_PER_MB),
            wall_s=_LIMITS.wall_s + int(size_mb * _CPU_S_PER_MB * 3),
        )
        answer = run_limited(_MODULE, msgspec.msgpack.encode(job), limits)
        examined = msgspec.msgpack.decode(answer, type=Examined)
    except RefusedModelError as cause:
        examined = Examined(job.report(cause.finding("file")))
    findings = (
        msgspec.structs.replace(found, where=str(path), what=f"{path}: {found.what}")
        if found.rule == "file" and not found.where
        else found
        for found in examined.report.findings
    )
    report = msgspec.structs.replace(examined.report, model=str(path), findings=tuple(findings))
    return msgspec.structs.replace(examined, report=report)


def _judged(spec: ModelSpec, report: CheckReport, *, is_float: bool) -> CheckReport:
    """Add what is wrong with labels, decoder and precision to the report of an examination."""
    found = check_labels(spec, report)
    integer = sorted((-use.nodes, use.name) for use in report.operators if use.name in _INTEGER_TYPES)
    if is_float and integer:
        named = ", ".join(f"{-count} {kind}" for count, kind in integer[:_NAMED])
        what = f"is quantized already ({named}), expected float"
        found.append(error("quantized", what, "build from what it was made of"))
    passed = report.passed and not any(finding.severity == "error" for finding in found)
    return msgspec.structs.replace(report, passed=passed, findings=in_order((*report.findings, *found)))


def _first_error(spec: ModelSpec, target: Target | None, report: CheckReport) -> str:
    first, *others = report.of("error")
    names_file = first.what.startswith((one_line(f"{spec.labels}: "), one_line(f"{report.model}: ")))
    line = first.line if names_file else f"{report.model}: {first.line}"
    if not others:
        return line
    on = ""
    if target is not None:
        version = target.min_onnxruntime
        on = f" --target {target.name}" + ("" if version == onnxruntime_version() else f" --prove-runtime {version}")
    return f"{line} (and {len(others)} more: `edge-sdk check MODEL.toml{on}` lists them)"
