"""Target: what a device is and how it likes its models, as one flat TOML in targets/.

Owns the fields, their limits and where target files are found. Knows nothing of models.
"""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.errors import TargetError
from edge_sdk.provider_options import ProviderOptions
from edge_sdk.toml_file import read_toml

IntegerType = Literal["QUInt8", "QInt8"]
PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
"""Execution providers that a target may ask for, by ONNX Runtime's own names."""

_Version = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?$", description="a version such as 1.20.1")]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One device, as data.

    Attributes:
        name: equals the file's name without `.toml`.
        description: one line for `edge-sdk targets`.
        machine: `platform.machine()` there.
        cpu: the core, in qemu's spelling (`cortex-a72`); empty when the target is a family of cores.
        providers: execution providers in order of preference; the CPU provider comes last, always.
        provider_options: what some of them are told, in tables such as [provider_options.CUDAExecutionProvider].
        intra_op_num_threads: threads inside one operator, 1 or more.
        allow_spinning: whether threads spin while they wait for each other within a run.
        activation_type: integer type of activations after quantization.
        weight_type: integer type of weights after quantization.
        per_channel: one weight scale an output channel instead of one a tensor.
        reduce_range: 7-bit weights, for CPUs whose U8S8 product saturates (x86 before VNNI).
        max_opset: the highest ai.onnx opset that `min_onnxruntime` runs.
        min_onnxruntime: the lowest ONNX Runtime there.
        max_onnxruntime: the highest ONNX Runtime that can be had there; empty where there is no such limit.
        python: the Python minor version there.
        wheel_platform: pip's platform tag for its wheels.
        memory_mb: memory of the board, in MiB.
        clock_mhz: the core's highest clock, in MHz, which estimates of latency go by; 0 when it is not known.
        latency_budget_ms: capture to outbox, in milliseconds, unless model.toml says otherwise.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_]+$", description="lower-case letters, digits and underscore")]
    description: str
    machine: Literal["x86_64", "aarch64"]
    cpu: str
    providers: Annotated[list[str], Meta(min_length=1)]
    intra_op_num_threads: Annotated[int, Meta(ge=1, le=256)]
    allow_spinning: bool
    activation_type: IntegerType
    weight_type: IntegerType
    per_channel: bool
    reduce_range: bool
    max_opset: Annotated[int, Meta(ge=13, le=30)]
    min_onnxruntime: _Version
    max_onnxruntime: Annotated[str, Meta(pattern=r"^(\d+\.\d+\.\d+)?$", description="a version, or empty")]
    python: _Version
    wheel_platform: str
    memory_mb: Annotated[int, Meta(ge=64)]
    latency_budget_ms: Annotated[float, Meta(gt=0)]
    clock_mhz: Annotated[int, Meta(ge=0, le=10000)] = 0
    provider_options: ProviderOptions = ProviderOptions()

    def __post_init__(self) -> None:
        unknown = [p for p in self.providers if p not in PROVIDERS]
        if unknown:
            raise ValueError(f"providers: {unknown[0]!r} is not an execution provider; expected {', '.join(PROVIDERS)}")
        if self.providers[-1] != "CPUExecutionProvider":
            raise ValueError("providers: expected CPUExecutionProvider last, the one that runs everywhere")
        if len(set(self.providers)) != len(self.providers):
            raise ValueError("providers: expected each execution provider once")
        idle = [p for p in self.provider_options.given() if p not in self.providers]
        if idle:
            raise ValueError(
                f"provider_options.{idle[0]}: it is not among providers, which are {', '.join(self.providers)}"
            )
        if not math.isfinite(self.latency_budget_ms):
            raise ValueError(f"latency_budget_ms is {self.latency_budget_ms}, expected a finite number")
        if self.weight_type == "QUInt8" and self.activation_type == "QInt8":
            raise ValueError("weight_type: QUInt8 weights need QUInt8 activations; S8U8 has no kernels")


def load_target(name_or_path: str) -> Target:
    """Find and read one target.

    Args:
        name_or_path: a path that ends in `.toml`, or the name of a target that edge-sdk brings.

    Raises:
        TargetError: when there is none of that name, or the file is wrong; it names file and key.
    """
    if name_or_path.endswith(".toml"):
        return _read(Path(name_or_path))
    folder = targets_folder()
    path = folder / f"{name_or_path}.toml"
    if name_or_path not in target_names():
        near = difflib.get_close_matches(name_or_path, target_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise TargetError(
            f"unknown target {name_or_path!r}; {hint}expected a path to a .toml or one of: {', '.join(target_names())}"
        )
    return _read(path)


def target_names() -> list[str]:
    """Names of the targets that edge-sdk brings, sorted."""
    return sorted(p.stem for p in targets_folder().glob("*.toml"))


def targets_folder() -> Path:
    """The folder of the target files: inside the installed package, or the checkout's `targets/`."""
    package = Path(__file__).parent
    installed = package / "_targets"
    return installed if installed.is_dir() else package.parent / "targets"


def _read(path: Path) -> Target:
    target = read_toml(path, Target, TargetError)
    if target.name != path.stem:
        raise TargetError(f"{path}: name is {target.name!r}, expected {path.stem!r}, the file's own name")
    return target
