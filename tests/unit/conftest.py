"""What all tests of the device's code share."""

from __future__ import annotations

import pytest

from edge_sdk.cli import inspect, tune
from edge_sdk.service import model_selector


@pytest.fixture(autouse=True)
def _tried_nowhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A bundle counts as tried where a process of its own shows nothing: it takes most of such a test's time."""
    if request.node.get_closest_marker("sandbox") is None:
        for module in (model_selector, tune, inspect):
            monkeypatch.setattr(module, "prove_here", lambda *_given, **_named: True)
