"""What all tests of the device's code share."""

from collections.abc import Iterator

import pytest

from edge_sdk.cli import inspect, tune
from edge_sdk.service import model_selector


@pytest.fixture(autouse=True)
def _tried_nowhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bundle counts as tried where a process of its own shows nothing: it takes most of such a test's time."""
    with pytest.MonkeyPatch.context() as patch:  # of its own: a test's patches end when they ever did
        if request.node.get_closest_marker("sandbox") is None:
            for module in (model_selector, tune, inspect):
                patch.setattr(module, "prove_here", lambda *_given, **_named: True)
        yield
