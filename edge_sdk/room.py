"""Room: whether there is memory for one more model while another one runs."""

from __future__ import annotations

from pathlib import Path

from edge_sdk.bundle import Bundle
from edge_sdk.errors import NoRoomError
from edge_sdk.free_memory import free_bytes

_MIB = 1 << 20
# Loading and golden inputs take 70 MiB for YOLOv8n's INT8 file of 3.9 MB, 44 for YOLOv4-tiny's of 6.2 MB, 40 for
# MobileNet's FP32 file of 10.4 MB and some 180 for ResNet50's of 98 MB.
_TIMES = 3
_BESIDE_MIB = 64


def check_room(bundle: Bundle, variant: str, root: Path = Path("/")) -> None:
    """Refuse to load a variant for which memory is short: what was running already must not be killed for it.

    Args:
        bundle: that has it.
        variant: its name.
        root: the folder that holds `proc` and `sys`; another one in tests. Where it does not say what is free, all
            is well.

    Raises:
        NoRoomError: memory is short now; later it may not be.
    """
    free = free_bytes(root)
    entry = bundle.manifest.entry(bundle.manifest.led_by(variant).variants[0].file)
    if free is None or entry is None:
        return
    needed_mib = _TIMES * entry.size // _MIB + _BESIDE_MIB
    free_mib = free // _MIB
    if free_mib < needed_mib:
        raise NoRoomError(f"{variant} needs about {needed_mib} MiB of memory to be loaded, {free_mib} are free")
