"""Keep the output of ONNX Runtime's tools from standard output.

Only one thread at a time does so, because all threads share one standard output.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator

_ONE = threading.Lock()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Discard what is printed within the context."""
    with _ONE, contextlib.redirect_stdout(io.StringIO()):
        yield
