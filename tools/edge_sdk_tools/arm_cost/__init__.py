"""What one inference costs on an ARM board that is not here: instructions counted under emulation, and an estimate."""

from edge_sdk_tools.arm_cost.board_outputs import BoardOutputs
from edge_sdk_tools.arm_cost.counter import Counter, find_counter
from edge_sdk_tools.arm_cost.counts import Counts
from edge_sdk_tools.arm_cost.estimate import Estimate, estimate
from edge_sdk_tools.arm_cost.installation import set_up

__all__ = ["BoardOutputs", "Counter", "Counts", "Estimate", "estimate", "find_counter", "set_up"]
