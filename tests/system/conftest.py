"""What system tests share: a real bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.bundles import build_cell_detector, write_cell_pictures


@pytest.fixture(scope="session")
def cell_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this machine; tests that change it work on a copy."""
    return build_cell_detector(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def cell_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four pictures with a red and a blue cell each."""
    return write_cell_pictures(tmp_path_factory.mktemp("pictures") / "cells")
