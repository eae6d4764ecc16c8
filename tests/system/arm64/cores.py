"""Which target's board has which core."""

from __future__ import annotations

from edge_sdk.target import load_target

BOARD_OF = {load_target(name).cpu: name for name in ("raspberry_pi_4", "raspberry_pi_5")}
"""Names of targets by core, in qemu's spelling."""
