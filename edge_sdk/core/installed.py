"""Find libraries of installed packages that were cut short, before importing one ends the process with SIGBUS."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

from edge_sdk.core.errors import MissingDependencyError

_PACKAGES = {"numpy": "numpy", "cv2": "opencv_", "onnxruntime": "onnxruntime"}
_HEAD_BYTES = 4096  # has the table of what is loaded, which follows the header of an ELF file


def check_libraries() -> None:
    """Raise MissingDependencyError for a library of numpy, OpenCV or ONNX Runtime that a full disk or an outage cut.

    Only those that are shorter than their wheel's RECORD says are opened: some systems strip what they install.
    """
    for package, distribution in _PACKAGES.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        site = Path(spec.origin).parent.parent
        for record in site.glob(f"{distribution}*.dist-info/RECORD"):
            try:
                lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                continue  # the import says more
            for line in lines:
                name, _, size = line.rpartition(",")
                name = name.rpartition(",")[0]
                if ".so" in name and size.isdecimal():
                    _check(site / name, int(size), record.parent.name.removesuffix(".dist-info"))


def _check(library: Path, expected: int, distribution: str) -> None:
    try:
        size = library.stat().st_size
        if size >= expected or size >= _end_of(library):
            return
    except OSError:
        return  # what is missing is said by the import
    raise MissingDependencyError(
        f"{library}: {size:,} bytes of {expected:,} are there; install {distribution} again, with --force-reinstall"
    )


def _end_of(library: Path) -> int:
    """Return where the last part of a library ends that is loaded."""
    with library.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    try:
        table, count = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<H", head, 56)[0]
        parts = [struct.unpack_from("<Q16xQ", head, table + 8 + 56 * number) for number in range(count)]
        return max((offset + length for offset, length in parts), default=0)
    except struct.error:  # it ends before that
        return _HEAD_BYTES
