"""Plan: a request that was found possible before anything slow is done."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.bundle.target import Target
from edge_sdk_tools.check import check_model
from edge_sdk_tools.evaluate import OnProgress
from edge_sdk_tools.quantize import simplify
from edge_sdk_tools.variants.dynamic import refuse_without_products
from edge_sdk_tools.variants.half import with_half_weights
from edge_sdk_tools.variants.request import Request, size_text
from edge_sdk_tools.variants.resize import Resized, resize


class Plan(msgspec.Struct, frozen=True, eq=False):
    """What will be made.

    Attributes:
        request: what was asked for.
        resized: the model at each of the request's sizes but model.toml's own, in their order.
    """

    request: Request
    resized: tuple[Resized, ...] = ()


def plan_variants(spec: ModelSpec, target: Target, request: Request, work: Path, on_progress: OnProgress) -> Plan:
    """Try every size, and look at whether half weights and dynamic quantization fit.

    Args:
        spec: describes the model.
        target: what must run it.
        request: what is asked for.
        work: a folder for files.
        on_progress: for a progress bar.

    Raises:
        ModelError: the model does not pass the export gate, cannot have one of the sizes, or has weights too large
            for half.
        UsageError: dynamic quantization would only make it slower.
    """
    sizes = [size for size in request.sizes if size != spec.input.size_wh]
    if not (sizes or request.fp16 or request.dynamic):
        return Plan(request)
    on_progress("try sizes", 0, len(sizes))
    checked = check_model(spec, target)
    folder = work / "plan"
    folder.mkdir()
    if request.fp16:
        with_half_weights(checked.proto)
    if request.dynamic:
        refuse_without_products(simplify(checked.proto, folder).proto)
    resized = []
    for done, size_wh in enumerate(sizes, start=1):
        resized.append(resize(spec, checked, target, size_wh, folder / f"{size_text(size_wh)}.onnx"))
        on_progress("try sizes", done, len(sizes))
    return Plan(request, tuple(resized))
