"""Counts: the instructions of one inference, in total and by class.

Owns the format that the plugin writes. Knows nothing of time.
"""

from __future__ import annotations

import msgspec
import numpy as np

from edge_sdk_tools.arm_cost.instructions import CLASSES, FLOAT_MULTIPLIES, INTEGER_MULTIPLIES, classify

_HEAD_WORDS = 3  # a block's runs take two, its length one


class Counts(msgspec.Struct, frozen=True):
    """What one inference on one thread costs.

    Attributes:
        model: the file's name.
        cpu: the core, in qemu's spelling.
        onnxruntime: the version that ran it.
        total: instructions.
        by_class: the same by class, in the order of `instructions.CLASSES`; they add up to the total.
    """

    model: str
    cpu: str
    onnxruntime: str
    total: int
    by_class: dict[str, int]

    @property
    def millions(self) -> float:
        """The total in millions."""
        return self.total / 1e6

    @property
    def integer_share(self) -> float:
        """Share of the multiplying instructions that multiply integers: 0 for FP32, near 1 for INT8; 0 for none."""
        integer = sum(self.by_class[name] for name in INTEGER_MULTIPLIES)
        multiplying = integer + sum(self.by_class[name] for name in FLOAT_MULTIPLIES)
        return integer / multiplying if multiplying else 0.0


def count_classes(record: bytes) -> dict[str, int]:
    """Read what the plugin wrote: for each block that ran, its runs, its length and its instructions.

    Returns:
        Instructions by class.

    Raises:
        ValueError: the record is cut short.
    """
    if len(record) % 4:
        raise ValueError("the record of counts is cut short")
    data = np.frombuffer(record, np.uint32)
    words, runs = [], []
    start = 0
    while start < len(data):
        if start + _HEAD_WORDS > len(data):
            raise ValueError("the record of counts is cut short")
        runs_of_block = int(data[start : start + 2].view(np.uint64)[0])
        end = start + _HEAD_WORDS + int(data[start + 2])
        if end > len(data):
            raise ValueError("the record of counts is cut short")
        words.append(data[start + _HEAD_WORDS : end])
        runs.append(np.full(len(words[-1]), runs_of_block, np.uint64))
        start = end
    totals = [0] * len(CLASSES)
    if words:
        classes, all_runs = classify(np.concatenate(words)), np.concatenate(runs)
        totals = [int(all_runs[classes == index].sum()) for index in range(len(CLASSES))]
    return dict(zip(CLASSES, totals, strict=True))
