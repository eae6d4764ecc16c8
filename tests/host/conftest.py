"""What all host tests share."""

from __future__ import annotations

import pytest

from edge_sdk_tools import board


@pytest.fixture(autouse=True)
def _no_counter_and_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds are the same whatever somebody has set up, or built before, on this machine."""
    monkeypatch.setattr(board, "find_counter", lambda _folder=None: None)
    monkeypatch.setenv("EDGE_SDK_CACHE", str(tmp_path_factory.mktemp("cache")))
