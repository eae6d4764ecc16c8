"""What a worker has to have in common with the host: versions of packages, and edge-sdk's own sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from pathlib import Path

import edge_sdk
import edge_sdk_tools

PACKAGES = ("edge-sdk", "msgspec", "numpy", "onnx", "onnxruntime", "opencv-python-headless")
"""Those that decide what a job computes, and how its result is written."""


@functools.cache
def package_versions() -> dict[str, str]:
    """This process's versions of `PACKAGES`; "none" for one that is not installed."""
    return {name: _version(name) for name in PACKAGES}


@functools.cache
def source_digest() -> str:
    """SHA-256 of edge-sdk's sources: two checkouts may differ and have the same version."""
    digest = hashlib.sha256()
    for package in (edge_sdk, edge_sdk_tools):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
