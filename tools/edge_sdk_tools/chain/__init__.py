"""All forms of a model on its way to a device, beside each other: their outputs and their memory."""

from edge_sdk_tools.chain.chain import CHAIN_IMAGES, Chain, Forms, measure_chain
from edge_sdk_tools.chain.output_change import OutputChange
from edge_sdk_tools.chain.step_kind import STEP_ORDER, StepKind

__all__ = ["CHAIN_IMAGES", "STEP_ORDER", "Chain", "Forms", "OutputChange", "StepKind", "measure_chain"]
