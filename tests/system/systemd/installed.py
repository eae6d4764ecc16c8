"""What tests under a real systemd share: one system with edge-sdk in it, and its service."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.absent import not_allowed, not_installed
from tests.system.program import edge_sdk
from tests.system.systemd.container import Container
from tests.system.systemd.debian_root import CannotRunError, NotInstalledError, make_root
from tests.system.systemd.service import Service


@pytest.fixture(scope="session")
def systemd_container(
    cell_bundle: Path, long_video: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """One system for all tests here."""
    shared = tmp_path_factory.mktemp("shared")
    shutil.copytree(cell_bundle, shared / "cells.edge")
    assert edge_sdk("keygen", shared / "fleet.key").returncode == 0
    assert edge_sdk("sign", shared / "cells.edge", "--key", shared / "fleet.key").returncode == 0
    shutil.copy(long_video, shared / "cells.avi")
    for path in (shared, *shared.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        with Container(make_root(), shared) as running:
            yield running
    except CannotRunError as reason:
        not_allowed(str(reason))
    except NotInstalledError as reason:
        not_installed(str(reason))


@pytest.fixture
def service(systemd_container: Container) -> Iterator[Service]:
    """The unit, which no test leaves running."""
    service = Service(systemd_container)
    yield service
    service.control("stop")
