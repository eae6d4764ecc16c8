"""Custom operators: the libraries that a bundle's model needs beside ONNX Runtime.

Owns the rule of whose code may run: that of the onnxruntime-extensions package, which whoever set the device up
installed, and that of a bundle which a trusted key signed. Nobody else's.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edge_sdk.bundle import Bundle
from edge_sdk.errors import BundleError, MissingDependencyError, OutputError

EXTENSIONS_DOMAIN = "ai.onnx.contrib"
"""Of the operators that come with onnxruntime-extensions."""
EXTENSIONS_PACKAGE = "onnxruntime-extensions>=0.15"


@contextlib.contextmanager
def operator_libraries(bundle: Bundle) -> Iterator[list[Path]]:
    """Libraries to load with the variant that runs; private copies of a bundle's own, gone at the end.

    Raises:
        BundleError: it carries libraries and was not verified by a trusted key, or one was altered.
        MissingDependencyError: it needs onnxruntime-extensions, which is not installed.
        OutputError: there is no place for a copy.
    """
    promise = bundle.manifest
    if promise.libraries:
        if not bundle.signed:
            raise BundleError(
                f"{bundle.path}: carries {promise.libraries[0]}, a library of custom operators, which is loaded only "
                "from a bundle that is signed by a trusted key; sign it with `edge-sdk sign` and give --trust KEY.pub"
            )
        with _copies(bundle) as copies:
            yield copies
        return
    needed = [name for name in promise.variants[0].operators if name.startswith(f"{EXTENSIONS_DOMAIN}:")]
    yield [_extensions(bundle, needed[0])] if needed else []


def extension_libraries(model: bytes) -> list[Path]:
    """The library of the installed onnxruntime-extensions, where a model names its domain; else none.

    For who builds: what a bundle gets is a matter of its manifest.
    """
    if EXTENSIONS_DOMAIN.encode() not in model:
        return []
    try:
        import onnxruntime_extensions
    except ImportError:
        return []
    return [Path(onnxruntime_extensions.get_library_path())]


def _extensions(bundle: Bundle, operator: str) -> Path:
    try:
        import onnxruntime_extensions
    except ImportError as cause:
        raise MissingDependencyError(
            f"{bundle.path}: the operator {operator} comes with onnxruntime-extensions, which is not installed: "
            f"pip install '{EXTENSIONS_PACKAGE}'"
        ) from cause
    return Path(onnxruntime_extensions.get_library_path())


@contextlib.contextmanager
def _copies(bundle: Bundle) -> Iterator[list[Path]]:
    """What is loaded is what was hashed: the bundle's own files may be swapped between the two."""
    with contextlib.ExitStack() as stack:
        copies = []
        try:
            # Only this user may enter the folder.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-sdk-operators-")))
            for name in bundle.manifest.libraries:
                copies.append(folder / name)
                copies[-1].write_bytes(bundle.read(name))
        except OSError as cause:
            raise OutputError(f"{bundle.path}: no place for a copy of its libraries: {cause.strerror}") from cause
        yield copies
