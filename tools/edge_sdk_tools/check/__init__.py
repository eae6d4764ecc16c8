"""The export gate: what a model must be before anything else is done with it."""

from edge_sdk_tools.check.gate import CheckedModel, check_model, examine
from edge_sdk_tools.check.report import CheckReport, Finding
from edge_sdk_tools.check.runtimes import as_admitted, runtime_range

__all__ = [
    "CheckReport",
    "CheckedModel",
    "Finding",
    "as_admitted",
    "check_model",
    "examine",
    "runtime_range",
]
