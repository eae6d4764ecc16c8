"""Cycles per instruction of the cores that have been compared with real boards.

Owns the table and what is known of its truth; docs/arm-cost.md tells how each figure came about.

`floating` was fitted on boards: fourteen ncnn networks, counted like this, against their published one-thread times on
a Raspberry Pi 4 and 5. One factor a core was off by 6-9 % in the median and by 24-35 % at worst.

`integer` was not fitted: there are no such times of quantized networks. It is `floating` times what a scheduling model
of the core (llvm-mca) makes of an instruction in ONNX Runtime's INT8 kernels against one in its FP32 kernels:

    Cortex-A72   FP32 .67 .81 .81   INT8 .52 .49 .48 (U8S8) .46 .45 .47 (S8S8)   ratio of the means .63
    Cortex-A76   FP32 .36 .34 .41 .42   INT8 .41 .39 .39 .39 (U8S8) .42 .40 .38 .39 (S8S8)   ratio of the means 1.03

(MobileNetV2, on A76 also EfficientNet-Lite0, then ResNet50 and YOLOv8n.) On a core with the dot product one instruction
costs the same in both; without it INT8 needs more instructions, shorter ones, and would look 1.6 times as slow.
"""

from __future__ import annotations

import msgspec

WORST_ERROR = 1.35
"""Factor by which the fit was off for the worst of its networks, either way. No bound: the next one may be worse."""


class CyclesPerInstruction(msgspec.Struct, frozen=True):
    """What an instruction of ONNX Runtime's kernels costs, in cycles.

    Attributes:
        floating: in FP32 kernels.
        integer: in INT8 kernels.
    """

    floating: float
    integer: float

    def mixed(self, integer_share: float) -> float:
        """The cost where that share of the multiplications (0-1) is of integers."""
        return self.floating + (self.integer - self.floating) * integer_share


CYCLES = {
    "cortex-a72": CyclesPerInstruction(floating=1.33, integer=0.84),
    "cortex-a76": CyclesPerInstruction(floating=0.57, integer=0.59),
}
"""By core, in qemu's spelling. A core that is not here has been compared with no board, and gets no estimate."""
