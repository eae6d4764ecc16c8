"""Recipe: what a counter is made from, by version, and the key under which it is kept."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import msgspec

from edge_sdk.inference.runtime import onnxruntime_version
from edge_sdk_tools.arm_cost.core import CORES, Core

PLUGIN_SOURCE = Path(__file__).with_name("icount.c")


class Recipe(msgspec.Struct, frozen=True):
    """Everything that decides what a counter counts.

    Attributes:
        machine: that it runs on, by `platform.machine()`.
        onnxruntime: the version that runs the models, this machine's own.
        plugin: source of the plugin.
        cores: what it can count for.
        numpy: the version beside it; its share of an inference is nothing that could be seen.
        qemu: Debian's package version of the emulator. Later ones are linked statically and load no plugins.
        release: the Debian release that has it.
        python: the minor version of that release, on the emulated board.
    """

    machine: str
    onnxruntime: str
    plugin: str
    cores: tuple[Core, ...] = CORES
    numpy: str = "2.4.6"
    qemu: str = "1:7.2*"
    release: str = "bookworm"
    python: str = "3.11"

    @property
    def key(self) -> str:
        """Name of the folder: readable where it matters, and another one whenever anything changes."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        return f"onnxruntime-{self.onnxruntime}-{digest[:12]}"

    @property
    def requirements(self) -> tuple[str, ...]:
        """Wheels for the emulated board, as pip wants them."""
        return (f"onnxruntime=={self.onnxruntime}", f"numpy=={self.numpy}")


def current_recipe() -> Recipe:
    """The recipe for this machine and its ONNX Runtime."""
    return Recipe(platform.machine(), onnxruntime_version(), PLUGIN_SOURCE.read_text(encoding="utf-8"))
