"""What a test needs and this machine lacks: it is skipped with the reason, or fails where it should be there.

And modules that take seconds to import: every worker collects every file, and few of them run its tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any, NoReturn

import pytest


class Lazy:
    """A module that is imported when a public name of it is used; pytest asks for private ones."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def needs_torch() -> pytest.MarkDecorator:
    """Skip a file's tests where PyTorch or its exporter is not installed."""
    missing = [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{missing} is the extra [torch]")


def not_installed(reason: str) -> NoReturn:
    """Something that could be installed, or fetched: a machine with CI=true has it."""
    _end(reason, is_failure=os.environ.get("CI") == "true")


def not_allowed(reason: str) -> NoReturn:
    """Something that takes root, a kernel or a system of another kind: with EDGE_SDK_REQUIRE=rights it is there."""
    _end(reason, is_failure=os.environ.get("EDGE_SDK_REQUIRE") == "rights")


def _end(reason: str, *, is_failure: bool) -> NoReturn:
    if is_failure:
        pytest.fail(reason)
    pytest.skip(reason)
