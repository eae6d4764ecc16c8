"""dynamic: INT8 weights of matrix products, the ranges of activations taken from each frame.

Owns for which models that is of use: those that spend most of their work in products with weights, such as vision
transformers. A convolution quantized that way takes 2.8 times as long as in float.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from edge_sdk.core.errors import ModelError, UsageError, first_line
from edge_sdk_tools.check.costs import node_macs
from edge_sdk_tools.check.values import graph_values
from edge_sdk_tools.disk import raise_if_full
from edge_sdk_tools.silenced import silenced

_PRODUCTS = ("Gemm", "MatMul")
_LEAST_SHARE = 0.5


class ProductWork(msgspec.Struct, frozen=True):
    """Multiply-accumulates of a model.

    Attributes:
        macs: of each product with weights, by node name.
        total: of all nodes.
    """

    macs: dict[str, int]
    total: int

    @property
    def share(self) -> float:
        """Of the products in all work, 0-1."""
        return sum(self.macs.values()) / self.total if self.total else 0.0


def product_work(proto: onnx.ModelProto) -> ProductWork:
    """Count a simplified model's multiply-accumulates."""
    values = graph_values(proto.graph)
    weights = {w.name for w in proto.graph.initializer}
    counts = [(node, node_macs(node, values) or 0) for node in proto.graph.node]
    products = {n.name: count for n, count in counts if n.op_type in _PRODUCTS and n.input[1] in weights}
    return ProductWork(products, sum(count for _, count in counts))


def refuse_without_products(proto: onnx.ModelProto) -> None:
    """Refuse a model that would only become slower.

    Raises:
        UsageError: less than half of its work is in products with weights.
    """
    share = product_work(proto).share
    if share < _LEAST_SHARE:
        raise UsageError(
            f"--with-dynamic: {share:.0%} of the model's multiply-accumulates are matrix products with weights, "
            f"expected {_LEAST_SHARE:.0%} or more: convolutions quantized dynamically are slower than in float; leave "
            "it out"
        )


def quantize_products(source: Path, path: Path, *, reduce_range: bool) -> None:
    """Quantize every product with weights, per channel.

    Args:
        source: a simplified model.
        path: of the file to write.
        reduce_range: 7-bit weights, for CPUs that would saturate.

    Raises:
        ModelError: the quantizer cannot handle the model.
        OSError: the disk is full.
    """
    try:
        with silenced():  # the quantizer narrates
            quantize_dynamic(
                source,
                path,
                op_types_to_quantize=list(_PRODUCTS),
                per_channel=True,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
            )
    except Exception as cause:  # the quantizer raises whatever its parts raise
        raise_if_full(path.parent, cause)
        raise ModelError(f"dynamic quantization failed: {first_line(cause)}") from cause
