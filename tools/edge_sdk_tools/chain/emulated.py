"""Emulated: the file that ships on the target's own core, beside what this machine computes with the same file.

Owns when that is tried, how long it may take, and the words for where it was not done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from edge_sdk.bundle.target import Target
from edge_sdk.core.errors import EdgeError
from edge_sdk.core.frame import Tensor
from edge_sdk_tools.arm_cost import BoardOutputs, Counter
from edge_sdk_tools.arm_cost.counter import CPUS, Cpu

Emulated: TypeAlias = "BoardOutputs | str"
"""An emulation that runs; or why there is none, in words; empty where the target is no ARM."""

_SECONDS = 10.0  # for images, after the start of the emulated Python


@contextmanager
def begin_emulation(
    model: Path, target: Target, counter: Counter | None, tensors: Sequence[Tensor]
) -> Iterator[Emulated]:
    """Start the file that ships on the emulated core, beside this process.

    Args:
        model: the file that ships.
        target: whose core.
        counter: what emulates.
        tensors: prepared images.
    """
    cpu = core_of(target)
    if target.machine != "aarch64":
        yield ""
    elif cpu is None:
        what = target.cpu or f"{target.name}, a family of cores"
        yield f"not run: nothing here emulates {what}, but {' and '.join(CPUS)}"
    elif counter is None:
        yield "not run: `edge-sdk arm-cost setup` installs an emulator"
    else:
        try:
            running = BoardOutputs(counter, model, cpu, tensors, _SECONDS)
        except OSError as cause:
            yield f"not run: {cause.strerror or cause}"
            return
        with running:
            yield running


def core_of(target: Target) -> Cpu | None:
    """The target's core, where it can be emulated."""
    return next((cpu for cpu in CPUS if cpu == target.cpu), None)


def outputs_of(emulated: Emulated) -> list[tuple[Tensor, ...]] | str:
    """The outputs, of as many tensors as there was time for; or why there are none, in words."""
    if isinstance(emulated, str):
        return emulated
    try:
        return emulated.finish()
    except EdgeError as cause:
        return f"not run: {cause}"
