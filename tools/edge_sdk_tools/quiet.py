"""What ONNX Runtime's tools print is kept from standard output.

Owns that one thread at a time does so: there is one standard output for all of them.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator

_ONE = threading.Lock()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Throw away what is printed inside."""
    with _ONE, contextlib.redirect_stdout(io.StringIO()):
        yield
