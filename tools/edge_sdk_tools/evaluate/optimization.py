"""Whether ONNX Runtime still computes the model after its own graph optimization.

It fuses and rewrites what it loads, and has rewritten some graphs wrongly. Whoever compares INT8 with FP32 would not
notice: both are wrong alike.
"""

from __future__ import annotations

import numpy as np

from edge_sdk.bundle.model_spec import ModelSpec
from edge_sdk.core.errors import ModelError
from edge_sdk.core.frame import Tensor
from edge_sdk.inference.prepare import Prepare
from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk.inference.session import Session
from edge_sdk.inference.settings import SessionSettings

_TOLERANCE = 1e-3  # of the largest value: fused kernels round otherwise, and deep networks add that up
_FLIPPED = 0.01  # share of whole numbers that may differ: of nearly equal scores the other one wins


def check_optimization(model: bytes, session: Session, spec: ModelSpec) -> None:
    """Run a picture of noise through the model as it is and as ONNX Runtime optimizes it.

    Args:
        model: bytes of the .onnx.
        session: of the same model, optimized.
        spec: how a picture becomes an input.

    Raises:
        ModelError: the results differ.
    """
    plain = Session(model, SessionSettings(graph_level="disabled"), spec.model)
    prepare = Prepare(spec.input)
    width, height = spec.input.size_wh
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    tensor = prepare.normalise(prepare.resize(noise))
    for number, (got, expected) in enumerate(zip(session.run(tensor), plain.run(tensor), strict=True)):
        if problem := _difference(got, expected):
            runtime = f"ONNX Runtime {onnxruntime_version()}"
            raise ModelError(
                f"{spec.model}: {runtime} computes output {number} differently after its own graph optimization "
                f"({problem}), expected the same; export the model in another way: known is a MatMul by a vector after "
                "a Transpose, which a matrix of one column mends"
            )


def _difference(got: Tensor, expected: Tensor) -> str:
    if not np.issubdtype(expected.dtype, np.floating):
        flipped = float(np.mean(got != expected))
        return f"{flipped:.1%} of its values" if flipped > _FLIPPED else ""
    known = np.isfinite(expected)
    largest = float(np.abs(expected[known]).max(initial=0))
    worst = float(np.abs(got[known] - expected[known]).max(initial=0))
    same = bool((known == np.isfinite(got)).all()) and worst <= _TOLERANCE * largest
    return "" if same else f"by up to {worst:.3g}, the largest value is {largest:.3g}"
