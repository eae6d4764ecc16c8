"""The export gate: what a model must be before anything else is done with it."""

from edge_sdk_tools.check.gate import CheckedModel, check_model

__all__ = ["CheckedModel", "check_model"]
