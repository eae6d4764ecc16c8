"""KernelTable: which operators one version of ONNX Runtime's CPU provider has, for which opsets and types.

Owns the tables that edge-sdk brings (kernels/VERSION.json), the choice among them, and the reading of the one that is
installed. Knows nothing of models.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

TABLES = Path(__file__).parent / "kernels"
"""The folder of the tables, one VERSION.json each."""

_TENSOR = re.compile(r"^tensor\((\w+)\)$")
_TABLE = re.compile(r"^(\d+\.\d+\.\d+)\.json$")


class Kernel(msgspec.Struct, frozen=True, array_like=True):
    """One implementation of an operator.

    Attributes:
        first: the operator's version from which on it holds.
        last: the last such version; None for the operator's version `first` only, as ONNX Runtime reads an open end.
        types: element types by type parameter or parameter name of the operator's schema, separated by spaces, or
            `=NAME` for one of the table's `type_sets`. Types that are no tensors are left out, and match.
    """

    first: int
    last: int | None
    types: dict[str, str]

    def implements(self, since_version: int) -> bool:
        """Whether it is for the operator's version `since_version`."""
        return implements(self.first, self.last, since_version)


def implements(first: int, last: int | None, since_version: int) -> bool:
    """Whether a kernel for an operator's versions `first` to `last` is for its version `since_version`.

    The rule is that of ONNX Runtime's KernelRegistry: an open end (None) takes no later version of the operator,
    because that may compute something else.
    """
    return first == since_version or (last is not None and first < since_version <= last)


class KernelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, eq=False):
    """The kernels of one ONNX Runtime.

    Attributes:
        onnxruntime: its version.
        max_opset: the highest ai.onnx opset of a model that it loads, measured.
        max_ir_version: the highest IR version of a model that it loads, measured.
        type_sets: names of sets of types that many kernels share.
        kernels: by domain (`ai.onnx` for the default one) and operator.
    """

    onnxruntime: str
    max_opset: int
    max_ir_version: int
    type_sets: dict[str, str]
    kernels: dict[str, dict[str, tuple[Kernel, ...]]]

    def find(self, domain: str, operator: str) -> tuple[Kernel, ...]:
        """All kernels of an operator; none for one that it does not have."""
        return self.kernels.get(domain or "ai.onnx", {}).get(operator, ())

    def types(self, kernel: Kernel, parameter: str) -> tuple[str, ...]:
        """Element types (`float`, `int64` ...) that a kernel takes for a type parameter, sorted."""
        text = kernel.types.get(parameter, "")
        return tuple((self.type_sets[text[1:]] if text.startswith("=") else text).split())


def table_versions() -> tuple[str, ...]:
    """Versions of ONNX Runtime that edge-sdk brings a table of, ascending."""
    names = (_TABLE.match(file.name) for file in TABLES.iterdir())
    return tuple(sorted((m.group(1) for m in names if m), key=_parts))


@functools.cache
def kernel_table(onnxruntime: str) -> KernelTable | None:
    """Read the table of the nearest version that is not above `onnxruntime`; None below the lowest.

    Operators and types are hardly ever taken away, so that an older table errs on the safe side.
    """
    chosen = [version for version in table_versions() if _parts(version) <= _parts(onnxruntime)]
    if not chosen:
        return None
    return msgspec.json.decode((TABLES / f"{chosen[-1]}.json").read_bytes(), type=KernelTable)


def element_type(name: str) -> str | None:
    """`float` of `tensor(float)`; None of a sequence, map or optional."""
    match = _TENSOR.match(name)
    return match.group(1) if match else None


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
