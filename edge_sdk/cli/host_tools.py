"""What a verb of the workstation says on a device, where the workstation's packages are not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from edge_sdk.errors import MissingDependencyError
from edge_sdk.want_of_memory import is_want_of_memory


@contextlib.contextmanager
def host_tools(verb: str, extra: str = "host") -> Iterator[None]:
    """Import the workstation's packages inside this; a missing one becomes an error that names the remedy.

    Raises:
        MissingDependencyError: exit code 8.
    """
    try:
        yield
    except ImportError as cause:
        if is_want_of_memory(cause):
            raise
        missing = cause.name or "a package"
        raise MissingDependencyError(
            f"`edge-sdk {verb}` runs on the workstation and needs {missing}; in the checkout: "
            f"pip install -c constraints.txt '.[{extra}]'"
        ) from cause
