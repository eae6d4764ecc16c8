"""Which ONNX Runtimes a bundle admits, and so what `check` and `build` hold a model against: one rule for both.

A bundle admits the versions in which its golden outputs were replayed: the one that builds, and those of
`--prove-runtime`. A model must run in the lowest of them, not in the lowest that the target could have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from edge_sdk.bundle.manifest import RuntimeRange, parse_version
from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import UsageError
from edge_sdk_tools.check.cpu_kernels import kernel_table


def runtime_range(target: Target, versions: Sequence[str]) -> RuntimeRange:
    """Return the range of ONNX Runtime versions, from the lowest that will be proved to the one that builds.

    Raises:
        UsageError: a version is none, or outside what target and builder allow; or no device could run the bundle.
    """
    _check_versions(target, versions)
    lowest, limit = min([*versions, _builder()], key=parse_version), target.max_onnxruntime
    if limit and parse_version(lowest) > parse_version(limit):
        raise UsageError(
            f"{target.name} has ONNX Runtime {limit} at most and {lowest} builds: give --prove-runtime {limit}, or no "
            "device could run the bundle"
        )
    return RuntimeRange(lowest, _builder())


def as_admitted(target: Target, versions: Sequence[str]) -> Target:
    """The target with the lowest ONNX Runtime that its bundle admits, and the highest opset that this one runs.

    Where the target cannot have the version that builds, its highest is meant: no build does without a proof in that.

    Raises:
        UsageError: a version is none, or outside what target and builder allow.
    """
    _check_versions(target, versions)
    limit = [target.max_onnxruntime] if target.max_onnxruntime else []
    lowest = min([*versions, *limit, _builder()], key=parse_version)
    table = kernel_table(lowest)
    if table is None or parse_version(lowest) <= parse_version(target.min_onnxruntime):
        return target
    return msgspec.structs.replace(target, min_onnxruntime=lowest, max_opset=table.max_opset)


def check_options(target: Target) -> str:
    """The options with which `edge-sdk check` holds a model against this very target."""
    version = target.min_onnxruntime
    return f"--target {target.name}" + ("" if version == _builder() else f" --prove-runtime {version}")


def _builder() -> str:
    from edge_sdk.inference.runtime import onnxruntime_version  # a tenth of a second

    return onnxruntime_version()


def _check_versions(target: Target, versions: Sequence[str]) -> None:
    span = RuntimeRange(target.min_onnxruntime, _builder())
    for wanted in versions:
        if not re.fullmatch(r"\d+\.\d+\.\d+", wanted) or not span.admits(wanted):
            raise UsageError(
                f"--prove-runtime {wanted}: expected a version from {span.minimum}, the lowest of {target.name}, to "
                f"{span.maximum}, which builds"
            )
