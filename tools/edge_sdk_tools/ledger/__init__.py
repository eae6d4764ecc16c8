"""A typed record of every step of a build."""

from edge_sdk_tools.ledger.layer import LayerNoise, LayerSensitivity
from edge_sdk_tools.ledger.ledger import (
    SCHEMA_VERSION,
    Candidate,
    Ledger,
    OperatorSize,
    Precision,
    Verdict,
    WorstImage,
    from_json,
    to_json,
)
from edge_sdk_tools.ledger.operator_size import operator_sizes, size_by_operator
from edge_sdk_tools.ledger.picture import PANEL_PX, side_by_side
from edge_sdk_tools.ledger.schema import report_schema
from edge_sdk_tools.ledger.step import Measure, Step
from edge_sdk_tools.ledger.variant import VariantRow

__all__ = [
    "PANEL_PX",
    "SCHEMA_VERSION",
    "Candidate",
    "LayerNoise",
    "LayerSensitivity",
    "Ledger",
    "Measure",
    "OperatorSize",
    "Precision",
    "Step",
    "VariantRow",
    "Verdict",
    "WorstImage",
    "from_json",
    "operator_sizes",
    "report_schema",
    "side_by_side",
    "size_by_operator",
    "to_json",
]
