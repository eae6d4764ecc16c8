"""What all host tests share."""

from __future__ import annotations

import pytest

from edge_sdk_tools import board


@pytest.fixture(autouse=True)
def _no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds are the same whether or not somebody has set up a counter on this machine."""
    monkeypatch.setattr(board, "find_counter", lambda _folder=None: None)
