"""Classify AArch64 instructions by their 32 bits.

The table follows the encoding index of the Arm Architecture Reference Manual (DDI 0487, C4.1). The classes distinguish
kernels by their multiplications, loads and stores. SVE and SME are one class, because no core here has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FLOAT_MULTIPLIES = ("fmla",)
"""Classes of the multiplications of FP32 and FP16 kernels."""
INTEGER_MULTIPLIES = ("sdot", "udot", "mixed_dot", "smlal")
"""Classes of the multiplications of INT8 kernels."""


class _Rule(NamedTuple):
    """An instruction belongs to `name` when its bits under `mask` are `value`."""

    mask: int
    value: int
    name: str


# The first rule that fits decides, so exceptions stand above the general rules.
_RULES = (
    # Data processing with an immediate; branches and what else is in their group.
    _Rule(0x1C000000, 0x10000000, "integer"),
    _Rule(0x7C000000, 0x14000000, "branch"),  # B, BL
    _Rule(0x7C000000, 0x34000000, "branch"),  # CBZ, TBZ
    _Rule(0xFF000000, 0x54000000, "branch"),  # B.cond
    _Rule(0xFE000000, 0xD6000000, "branch"),  # BR, BLR, RET
    _Rule(0x1C000000, 0x14000000, "other"),
    # Loads and stores. Atomics first, whose bits look like a prefetch; prefetches next, which load nothing.
    _Rule(0x3B200C00, 0x38200000, "load"),  # atomics
    _Rule(0xFF000000, 0xD8000000, "other"),  # PRFM, literal
    _Rule(0xFEC00000, 0xF8800000, "other"),  # PRFM, register and immediate
    _Rule(0x3F000000, 0x18000000, "load"),  # literals
    _Rule(0x3F000000, 0x1C000000, "vector_load"),
    _Rule(0x3E400000, 0x08000000, "store"),  # exclusive and ordered
    _Rule(0x3E400000, 0x08400000, "load"),
    _Rule(0x3E400000, 0x0C000000, "vector_store"),  # structures: ST1, ST4
    _Rule(0x3E400000, 0x0C400000, "vector_load"),  # LD1, LD4, LD1R
    _Rule(0x3E400000, 0x28000000, "store"),  # pairs
    _Rule(0x3E400000, 0x28400000, "load"),
    _Rule(0x3E400000, 0x2C000000, "vector_store"),
    _Rule(0x3E400000, 0x2C400000, "vector_load"),
    _Rule(0x3FC00000, 0x19000000, "store"),  # ordered, unscaled
    _Rule(0x3F000000, 0x19000000, "load"),
    _Rule(0x3EC00000, 0x38000000, "store"),  # one register
    _Rule(0x3E000000, 0x38000000, "load"),
    _Rule(0x3E400000, 0x3C000000, "vector_store"),
    _Rule(0x3E400000, 0x3C400000, "vector_load"),
    _Rule(0x0A000000, 0x08000000, "other"),
    # Data processing with registers.
    _Rule(0x0E000000, 0x0A000000, "integer"),
    # Floating point and Advanced SIMD: scalars, then what has its top bit set (SHA3, SM4), then AES.
    _Rule(0x1E000000, 0x1E000000, "scalar_float"),
    _Rule(0x8E000000, 0x8E000000, "other"),
    _Rule(0xFF3E0C00, 0x4E280800, "other"),
    # ... shift by immediate, with the conversions among them; modified immediate.
    _Rule(0x9FF80400, 0x0F000400, "permute"),  # MOVI, FMOV
    _Rule(0x9F80FC00, 0x0F00E400, "vector_float"),  # SCVTF, UCVTF
    _Rule(0x9F80FC00, 0x0F00FC00, "vector_float"),  # FCVTZS, FCVTZU
    _Rule(0x9F800400, 0x0F000400, "vector_integer"),
    # ... by element.
    _Rule(0xBF00B400, 0x0F001000, "fmla"),  # FMLA, FMLS
    _Rule(0xBFC0B400, 0x0F800000, "fmla"),  # FMLAL, FMLSL
    _Rule(0xBFC0B400, 0x2F808000, "fmla"),  # FMLAL2, FMLSL2
    _Rule(0xBF009400, 0x2F001000, "vector_float"),  # FCMLA
    _Rule(0x9F00F400, 0x0F009000, "vector_float"),  # FMUL, FMULX
    _Rule(0xBF00F400, 0x0F00E000, "sdot"),
    _Rule(0xBF00F400, 0x2F00E000, "udot"),
    _Rule(0xBF40F400, 0x0F00F000, "mixed_dot"),  # SUDOT, USDOT
    _Rule(0xBF40F400, 0x0F40F000, "vector_float"),  # BFDOT, BFMLAL
    _Rule(0x9F000400, 0x0F000000, "smlal"),
    # ... three of a kind, half precision.
    _Rule(0xBF60FC00, 0x0E400C00, "fmla"),
    _Rule(0x9F60C400, 0x0E400400, "vector_float"),
    # ... three of a kind, the later additions.
    _Rule(0xBF20FC00, 0x0E009400, "sdot"),
    _Rule(0xBF20FC00, 0x2E009400, "udot"),
    _Rule(0x9F20FC00, 0x0E009C00, "mixed_dot"),  # USDOT
    _Rule(0x9F20F400, 0x0E00A400, "mixed_dot"),  # SMMLA, UMMLA, USMMLA
    _Rule(0x9F20F400, 0x0E008400, "smlal"),  # SQRDMLAH, SQRDMLSH
    _Rule(0x9F208400, 0x0E008400, "vector_float"),  # FCMLA, FCADD, BFDOT
    # ... three of a kind.
    _Rule(0xBF20FC00, 0x0E20CC00, "fmla"),
    _Rule(0xBF20FC00, 0x0E20EC00, "fmla"),  # FMLAL, FMLSL
    _Rule(0xBF20FC00, 0x2E20CC00, "fmla"),  # FMLAL2, FMLSL2
    _Rule(0x9F20C400, 0x0E20C400, "vector_float"),
    _Rule(0x9F20F400, 0x0E209400, "smlal"),  # MLA, MLS, MUL
    _Rule(0x9F20FC00, 0x0E20B400, "smlal"),  # SQDMULH
    _Rule(0x9F200400, 0x0E200400, "vector_integer"),
    # ... three that differ in width.
    _Rule(0x9F208C00, 0x0E208000, "smlal"),  # SMLAL, SMLSL, SMULL, SQDMLAL and their kin
    _Rule(0x9F200C00, 0x0E200000, "vector_integer"),
    # ... two registers; two registers in half precision; across lanes.
    _Rule(0x9FBFCC00, 0x0EA0C800, "vector_float"),  # FCMGT and its kin with zero, FABS, FNEG
    _Rule(0x9F3FEC00, 0x0E216800, "vector_float"),  # FCVTN, FCVTL
    _Rule(0x9F3F8C00, 0x0E218800, "vector_float"),  # FRINTN, FCVTZS, SCVTF, FRECPE, FSQRT
    _Rule(0x9F3E0C00, 0x0E200800, "vector_integer"),
    _Rule(0x9F7E0C00, 0x0E780800, "vector_float"),
    _Rule(0x9F3FCC00, 0x0E30C800, "vector_float"),  # FMAXV, FMINV
    _Rule(0x9F3E0C00, 0x0E300800, "vector_integer"),
    # ... ZIP, UZP, TRN, DUP, INS, UMOV, TBL, EXT.
    _Rule(0x9F208000, 0x0E000000, "permute"),
)

CLASSES = tuple(dict.fromkeys(rule.name for rule in _RULES))
"""Names of the classes; `other` includes instructions that fit no rule."""


def classify(words: NDArray[np.uint32]) -> NDArray[np.intp]:
    """Return the class of each instruction, as its index in `CLASSES`."""
    found = np.full(words.shape, CLASSES.index("other"), np.intp)
    open_ = np.ones(words.shape, np.bool_)
    for rule in _RULES:
        fits = open_ & ((words & np.uint32(rule.mask)) == np.uint32(rule.value))
        found[fits] = CLASSES.index(rule.name)
        open_ &= ~fits
    return found
