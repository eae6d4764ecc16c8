"""Core: one CPU of a board, as programs on it see it."""

from __future__ import annotations

from dataclasses import dataclass

_PROCESSORS = 4


@dataclass(frozen=True)
class Core:
    """One CPU.

    Attributes:
        model: the CPU in qemu's spelling, which is the targets' too.
        part: its part number, as /proc/cpuinfo spells it.
        variant: the r of its revision rNpM, likewise.
        revision: the p.
        features: what /proc/cpuinfo lists; `asimddp` is the dot product.
    """

    model: str
    part: str
    variant: str
    revision: str
    features: str

    def cpuinfo(self) -> str:
        """What /proc/cpuinfo says on the board."""
        fields = (
            ("BogoMIPS", "108.00"),
            ("Features", self.features),
            ("CPU implementer", "0x41"),
            ("CPU architecture", "8"),
            ("CPU variant", self.variant),
            ("CPU part", self.part),
            ("CPU revision", self.revision),
        )
        body = "".join(f"{name}\t: {value}\n" for name, value in fields)
        return "".join(f"processor\t: {number}\n{body}\n" for number in range(_PROCESSORS))

    def files(self) -> dict[str, str]:
        """Files of the kernel that differ from this machine's, by path.

        ONNX Runtime chooses its kernels by what it reads there, and dies of what an x86 kernel writes.
        """
        span = f"0-{_PROCESSORS - 1}\n"
        return {
            "proc/cpuinfo": self.cpuinfo(),
            "sys/devices/system/cpu/possible": span,
            "sys/devices/system/cpu/present": span,
        }


CORTEX_A72 = Core("cortex-a72", "0xd08", "0x0", "3", "fp asimd evtstrm crc32 cpuid")
CORTEX_A76 = Core(
    "cortex-a76",
    "0xd0b",
    "0x4",
    "1",
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
)
CORES = (CORTEX_A72, CORTEX_A76)
