"""Write kernel tables into edge_sdk_tools/check/kernels.json: `python tools/scripts/kernel_tables.py VERSION ...`.

A table is read from an ONNX Runtime, its limits are found by trial. docs/check.md says when a new one is needed.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import onnxruntime as ort
from onnx import TensorProto, helper

from edge_sdk.bundle.manifest import parse_version
from edge_sdk_tools.check.operators import KERNEL_TABLES, Kernel, KernelTable
from edge_sdk_tools.packages import pip_download

_LOWEST_OPSET = 13  # models of lower opsets are raised before they are checked
_TENSOR = re.compile(r"^tensor\((\w+)\)$")  # not a sequence, map or optional
_OPEN_END = 2**31 - 1
_INTERNAL = "com.microsoft.nchwc"  # only ONNX Runtime's own optimizer makes these
_OFTEN = 3  # uses from which on a name for a set is shorter
_FAR = 100  # no opset or IR version is near

_Types = dict[str, frozenset[str]]


def installed_table() -> KernelTable:
    """Read what the installed ONNX Runtime says of itself."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[tuple[str, str], dict[tuple[int, int | None], list[_Types]]] = {}
    for kernel in get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider != "CPUExecutionProvider" or kernel.domain == _INTERNAL:
            continue
        if not kernel.domain and last < _LOWEST_OPSET:
            continue
        versions = found.setdefault((kernel.domain or "ai.onnx", kernel.op_name), {})
        versions.setdefault((first, None if last == _OPEN_END else last), []).append(_types(kernel.type_constraints))
    return _compact({key: _merge_all(versions) for key, versions in sorted(found.items())})


def _text(table: KernelTable) -> str:
    """Return a table with one operator a line, so that the difference of two versions can be read."""
    head = {name: getattr(table, name) for name in ("onnxruntime", "max_opset", "max_ir_version", "type_sets")}
    lines = [f"{_json(name)}: {_json(value)}" for name, value in head.items()]
    domains = [
        f"{_json(domain)}: {{\n" + ",\n".join(f"{_json(o)}: {_json(k)}" for o, k in operators.items()) + "\n}"
        for domain, operators in table.kernels.items()
    ]
    return "{\n" + ",\n".join([*lines, '"kernels": {\n' + ",\n".join(domains) + "\n}"]) + "\n}"


def main(versions: Sequence[str]) -> None:
    """Write the tables of some versions, whose wheels are downloaded; without any, of the one that is installed."""
    if not versions:
        known = msgspec.json.decode(KERNEL_TABLES.read_bytes(), type=dict[str, KernelTable])
        known[str(ort.__version__)] = installed_table()
        tables = [f"{_json(version)}: {_text(known[version])}" for version in sorted(known, key=parse_version)]
        KERNEL_TABLES.write_text("{\n" + ",\n".join(tables) + "\n}\n")
    for version in versions:
        with tempfile.TemporaryDirectory() as folder:
            pip_download(f"onnxruntime=={version}", Path(folder))
            [wheel] = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            # First on the path, so that it is found before the one that is installed.
            path = os.pathsep.join([folder, *filter(None, sys.path)])
            subprocess.run([sys.executable, __file__], check=True, env={**os.environ, "PYTHONPATH": path})


def _types(constraints: dict[str, list[str]]) -> _Types:
    tensors = {
        parameter: frozenset(found[1] for name in names if (found := _TENSOR.match(name)))
        for parameter, names in constraints.items()
    }
    return {parameter: types for parameter, types in sorted(tensors.items()) if types}


def _merge_all(versions: dict[tuple[int, int | None], list[_Types]]) -> list[tuple[int, int | None, _Types]]:
    ordered = sorted(versions.items(), key=lambda item: item[0][0])
    return [(first, last, types) for (first, last), kernels in ordered for types in _merge(kernels)]


def _merge(kernels: list[_Types]) -> list[_Types]:
    """Join kernels that differ in one parameter only: ONNX Runtime registers many operators once a type."""
    merged: list[_Types] = []
    for kernel in kernels:
        for index, other in enumerate(merged):
            differing = [p for p in kernel if kernel[p] != other.get(p)]
            if kernel.keys() == other.keys() and len(differing) <= 1:
                merged[index] = {p: kernel[p] | other[p] for p in kernel}
                break
        else:
            merged.append(kernel)
    return merged if len(merged) == len(kernels) else _merge(merged)


def _compact(kernels: dict[tuple[str, str], list[tuple[int, int | None, _Types]]]) -> KernelTable:
    uses = collections.Counter(s for found in kernels.values() for _, _, types in found for s in types.values())
    often = [s for s, count in uses.most_common() if count >= _OFTEN and len(s) > 1]
    names = {types: str(number) for number, types in enumerate(often)}
    by_domain: dict[str, dict[str, tuple[Kernel, ...]]] = {}
    for (domain, operator), found in kernels.items():
        by_domain.setdefault(domain, {})[operator] = tuple(
            Kernel(first, last, {p: f"={names[s]}" if s in names else " ".join(sorted(s)) for p, s in types.items()})
            for first, last, types in found
        )
    return KernelTable(
        onnxruntime=str(ort.__version__),
        max_opset=_highest(lambda version: _loads(version, ir_version=8)),
        max_ir_version=_highest(lambda version: _loads(_LOWEST_OPSET, ir_version=version)),
        type_sets={name: " ".join(sorted(types)) for types, name in names.items()},
        kernels=by_domain,
    )


def _highest(loads: Callable[[int], bool]) -> int:
    """Return the last version before the first refused one, from one that every ONNX Runtime takes."""
    return next(version for version in range(8, _FAR) if not loads(version + 1))


def _loads(opset: int, ir_version: int) -> bool:
    # A Constant needs no kernel: an operator that has none for the newest opset would be taken for the limit.
    node = helper.make_node("Constant", [], ["y"], value_floats=[0.0])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "limit", [], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions share no root of their own
        return False
    return True


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


if __name__ == "__main__":
    main(sys.argv[1:])
