"""The row of one model, for reports."""

from __future__ import annotations

from edge_sdk_tools.evaluate import Interval
from edge_sdk_tools.ledger import VariantRow
from edge_sdk_tools.variants.made import Made


def row_of(made: Made) -> VariantRow:
    """The row of one model."""
    figure = made.figure
    value = figure.value
    return VariantRow(
        name=made.name,
        precision=made.precision,
        size_wh=made.spec.input.size_wh,
        model_mb=made.proof.model_mb,
        latency_ms=made.latency_ms,
        latency_ratio=made.latency_ratio,
        metric=figure.name,
        value=value.value,
        change=figure.difference or Interval(*(x - 1 for x in (value.value, value.low, value.high))),
        integer_mac_share=made.proof.integer_mac_share if made.precision.startswith("int8") else None,
        estimate=made.estimate,
        problem=made.problem,
        doubt=made.doubt,
    )
