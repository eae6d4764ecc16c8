"""Targets: the kinds of devices that bundles are built for, each described by a TOML file in targets/.

`Target` is the schema of such a file; `load_target` finds and reads one. `ProviderOptions` are the options of execution
providers, by ONNX Runtime's own names, that a target and a bundle may set. No option is a path or a library, because a
bundle must not decide where a device writes or which code it loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_sdk.core.errors import IncompatibleError, TargetError
from edge_sdk.core.toml import nearest, read_toml

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Device = Annotated[int, Meta(ge=0, le=255)]


class TensorrtOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Options of TensorrtExecutionProvider; names and meaning are those of ONNX Runtime's documentation."""

    device_id: _Device | None = None
    trt_max_workspace_size: _Bytes | None = None
    trt_max_partition_iterations: _Count | None = None
    trt_min_subgraph_size: _Count | None = None
    trt_fp16_enable: bool | None = None
    trt_int8_enable: bool | None = None
    trt_dla_enable: bool | None = None
    trt_dla_core: _Device | None = None
    trt_force_sequential_engine_build: bool | None = None
    trt_context_memory_sharing_enable: bool | None = None
    trt_layer_norm_fp32_fallback: bool | None = None
    trt_build_heuristics_enable: bool | None = None
    trt_builder_optimization_level: Annotated[int, Meta(ge=0, le=5)] | None = None
    trt_sparsity_enable: bool | None = None
    trt_auxiliary_streams: Annotated[int, Meta(ge=-1, le=64)] | None = None
    trt_cuda_graph_enable: bool | None = None


class CudaOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Options of CUDAExecutionProvider; names and meaning are those of ONNX Runtime's documentation.

    Two defaults differ from ONNX Runtime's. An arena that doubles takes memory that a Jetson shares with its CPU, and
    trying every algorithm of each convolution at the first run takes longer than a camera waits.
    """

    device_id: _Device | None = None
    gpu_mem_limit: _Bytes | None = None
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] = "kSameAsRequested"
    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] = "HEURISTIC"
    cudnn_conv_use_max_workspace: bool | None = None
    do_copy_in_default_stream: bool | None = None
    use_tf32: bool | None = None
    prefer_nhwc: bool | None = None


class OpenvinoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Options of OpenVINOExecutionProvider; names and meaning are those of ONNX Runtime's documentation.

    How many threads it takes is `intra_op_num_threads`, as for the CPU.
    """

    device_type: Literal["CPU", "GPU", "NPU", "AUTO"] = "CPU"


class ProviderOptions(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={
        "tensorrt": "TensorrtExecutionProvider",
        "cuda": "CUDAExecutionProvider",
        "openvino": "OpenVINOExecutionProvider",
    },
):
    """Options by execution provider; the CPU provider has no options here."""

    tensorrt: TensorrtOptions = TensorrtOptions()
    cuda: CudaOptions = CudaOptions()
    openvino: OpenvinoOptions = OpenvinoOptions()

    def of(self, provider: str) -> dict[str, str]:
        """Return the options of a provider by name, as the strings that ONNX Runtime takes; true is 1, false is 0."""
        name = next((f.name for f in msgspec.structs.fields(self) if f.encode_name == provider), None)
        given = msgspec.structs.asdict(getattr(self, name)) if name else {}
        return {
            key: str(int(value)) if isinstance(value, bool) else str(value)
            for key, value in given.items()
            if value is not None
        }

    def given(self) -> list[str]:
        """Return the providers that have an option that is not the default."""
        return [f.encode_name for f in msgspec.structs.fields(self) if getattr(self, f.name) != f.default]


IntegerType = Literal["QUInt8", "QInt8"]
OPENVINO = "OpenVINOExecutionProvider"
CPU = "CPUExecutionProvider"
PROVIDERS = {
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "CUDAExecutionProvider": "onnxruntime-gpu",
    OPENVINO: "onnxruntime-openvino",
    CPU: "onnxruntime",
}
"""Execution providers that a target may ask for, by ONNX Runtime's own names, and the package that has each."""


def refuse_accelerators(where: str, providers: Sequence[str]) -> None:
    """Raise IncompatibleError where one of these is not the CPU's, the only one that a reduced ONNX Runtime has."""
    for provider in providers:
        if provider != CPU:
            package = PROVIDERS.get(provider, "one that has it")
            raise IncompatibleError(
                f"{where}: asks for {provider}, and a reduced ONNX Runtime computes on the CPU alone; install "
                f"{package} in its place"
            )


_Version = Annotated[str, Meta(pattern=r"^\d+\.\d+(\.\d+)?$", description="a version such as 1.20.1")]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of device that a bundle can be built for: the content of a file in targets/.

    Comments in each of those files explain its keys. `name` equals the name of the file. `cpu` is in qemu's spelling,
    and empty when the target is a family of cores. `clock_mhz` is 0 when it is not known. `max_onnxruntime` is empty
    where there is no upper limit. Without `latency_budget_ms` a result may be a second old, because nobody asked for
    less, and the loop takes the newest frame whatever the budget is (ADR 20).
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
    clock_mhz: Annotated[int, Meta(ge=0, le=10000)] = 0
    latency_budget_ms: Annotated[float, Meta(gt=0, le=1e9)] = 1000.0
    provider_options: ProviderOptions = ProviderOptions()

    def __post_init__(self) -> None:
        unknown = [p for p in self.providers if p not in PROVIDERS]
        if unknown:
            raise ValueError(f"providers: {unknown[0]!r} is not an execution provider; expected {', '.join(PROVIDERS)}")
        if self.providers[-1] != CPU:
            raise ValueError("providers: expected CPUExecutionProvider last, the one that runs everywhere")
        if len(set(self.providers)) != len(self.providers):
            raise ValueError("providers: expected each execution provider once")
        idle = [p for p in self.provider_options.given() if p not in self.providers]
        if idle:
            raise ValueError(
                f"provider_options.{idle[0]}: it is not among providers, which are {', '.join(self.providers)}"
            )
        if self.weight_type == "QUInt8" and self.activation_type == "QInt8":
            raise ValueError("weight_type: QUInt8 weights need QUInt8 activations; S8U8 has no kernels")


_OTHER_NAMES = {"amd64": "x86_64", "aarch64": "arm64", "rpi4": "pi4", "rpi5": "pi5", "rpizero2w": "zero2w"}


def load_target(name_or_path: str) -> Target:
    """Find and read one target.

    Args:
        name_or_path: a path that ends in `.toml`, or the name of a target that is part of edge-sdk.

    Raises:
        TargetError: there is no target of that name, or the file is invalid; the message names file and key.
    """
    if name_or_path.endswith(".toml"):
        return _read(Path(name_or_path))
    folder = targets_folder()
    path = folder / f"{name_or_path}.toml"
    names = target_names()
    if name_or_path not in names:
        given = _OTHER_NAMES.get(name_or_path.lower(), name_or_path.lower()).replace("-", "_")
        bare = given.replace("_", "")
        like = next((name for name in names if bare and bare in name.replace("_", "")), "") or nearest(given, names)
        hint = f"did you mean {like}? " if like else ""
        raise TargetError(
            f"unknown target {name_or_path!r}; {hint}expected a path to a .toml or one of: {', '.join(names)}"
        )
    return _read(path)


def target_names() -> list[str]:
    """Return the names of the targets that are part of edge-sdk, sorted."""
    return sorted(p.stem for p in targets_folder().glob("*.toml"))


def targets_folder() -> Path:
    """Return the folder of the target files: inside the installed package, or the checkout's `targets/`."""
    package = Path(__file__).parents[1]
    installed = package / "_targets"
    return installed if installed.is_dir() else package.parent / "targets"


def _read(path: Path) -> Target:
    target = read_toml(path, Target, TargetError)
    if target.name != path.stem:
        raise TargetError(f"{path}: name is {target.name!r}, expected {path.stem!r}, the file's own name")
    return target
