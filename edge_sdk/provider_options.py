"""Options of execution providers, by ONNX Runtime's own names.

Owns which of them a target and a bundle may give. None of them is a path or a library: a bundle must not say where a
device writes, nor what code it loads.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Bytes = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Device = Annotated[int, Meta(ge=0, le=255)]


class TensorrtOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Those of TensorrtExecutionProvider; what is not given is as ONNX Runtime has it.

    Attributes:
        device_id: which GPU.
        trt_max_workspace_size: memory that TensorRT may take while it runs, in bytes.
        trt_max_partition_iterations: how often the graph is cut again for the parts that TensorRT takes.
        trt_min_subgraph_size: nodes that a part must have, at least.
        trt_fp16_enable: half precision, where it is faster.
        trt_int8_enable: integers, where the model says their scales.
        trt_dla_enable, trt_dla_core: the deep learning accelerator of a Jetson, and which one.
        trt_force_sequential_engine_build: engines for several GPUs are built in turn.
        trt_context_memory_sharing_enable: parts of the graph share their memory.
        trt_layer_norm_fp32_fallback: LayerNorm stays in single precision.
        trt_build_heuristics_enable: engines are built sooner, and may run slower.
        trt_builder_optimization_level: 0 to 5; the higher, the longer an engine takes to build.
        trt_sparsity_enable: weights of which two of four are zero are used as such.
        trt_auxiliary_streams: streams beside the main one; -1 leaves it to TensorRT.
        trt_cuda_graph_enable: all kernels are started at once.
    """

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
    """Those of CUDAExecutionProvider; what is not given is as ONNX Runtime has it.

    Attributes:
        device_id: which GPU.
        gpu_mem_limit: of the arena, in bytes; other memory comes on top.
        arena_extend_strategy: by how much the arena grows. ONNX Runtime's own doubles it, which on a Jetson takes the
            memory from the CPU.
        cudnn_conv_algo_search: how algorithms of convolutions are found. ONNX Runtime's own tries every one at the
            first run, which takes longer than a camera waits.
        cudnn_conv_use_max_workspace: algorithms may take as much memory as they like.
        do_copy_in_default_stream: copies wait for kernels.
        use_tf32: products of floats have ten bits of mantissa.
        prefer_nhwc: convolutions in NHWC.
    """

    device_id: _Device | None = None
    gpu_mem_limit: _Bytes | None = None
    arena_extend_strategy: Literal["kNextPowerOfTwo", "kSameAsRequested"] = "kSameAsRequested"
    cudnn_conv_algo_search: Literal["EXHAUSTIVE", "HEURISTIC", "DEFAULT"] = "HEURISTIC"
    cudnn_conv_use_max_workspace: bool | None = None
    do_copy_in_default_stream: bool | None = None
    use_tf32: bool | None = None
    prefer_nhwc: bool | None = None


class ProviderOptions(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"tensorrt": "TensorrtExecutionProvider", "cuda": "CUDAExecutionProvider"},
):
    """Options by execution provider; the CPU provider has none of interest.

    Attributes:
        tensorrt: of TensorrtExecutionProvider.
        cuda: of CUDAExecutionProvider.
    """

    tensorrt: TensorrtOptions = TensorrtOptions()
    cuda: CudaOptions = CudaOptions()

    def of(self, provider: str) -> dict[str, str]:
        """What ONNX Runtime is given for a provider, by name: text, with 1 and 0 for true and false."""
        name = next((f.name for f in msgspec.structs.fields(self) if f.encode_name == provider), None)
        given = msgspec.structs.asdict(getattr(self, name)) if name else {}
        return {
            key: str(int(value)) if isinstance(value, bool) else str(value)
            for key, value in given.items()
            if value is not None
        }

    def given(self) -> list[str]:
        """The providers for which there is anything that is not a default."""
        return [f.encode_name for f in msgspec.structs.fields(self) if getattr(self, f.name) != f.default]
