"""The lock of a device's name: one program of this machine publishes under it at one broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_sdk.core.errors import PublishError
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings

_HOLDS_IT = """
import sys
from edge_sdk.publishing.publisher import NameLock
from edge_sdk.publishing.settings import MqttSettings
lock = NameLock(MqttSettings(host="broker", port=1883, device="gate"))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))


def _settings(host: str = "broker", device: str = "gate", site: str = "default") -> MqttSettings:
    return MqttSettings(host=host, port=1883, device=device, site=site)


def test_a_name_that_is_held_is_refused_until_it_is_let_go_of() -> None:
    first = NameLock(_settings())
    with pytest.raises(PublishError, match=rf"\(process {os.getpid()}\) publishes as device 'gate' of site 'default'"):
        NameLock(_settings("BROKER"))
    for other in (_settings("other"), _settings(device="door"), _settings(site="yard")):
        NameLock(other).close()
    for _ in range(2):
        first.close()
    NameLock(_settings()).close()


def test_a_program_that_is_killed_lets_go_of_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDS_IT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(PublishError, match=rf"\(process {other.pid}\)"):
            NameLock(_settings())
        other.kill()
    NameLock(_settings()).close()


def test_without_a_folder_nothing_is_shown_and_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    locks = [NameLock(_settings()) for _ in range(2)]
    for lock in locks:
        lock.close()
