"""What a test needs and this machine lacks: it is skipped with the reason, or fails where it should be there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


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
